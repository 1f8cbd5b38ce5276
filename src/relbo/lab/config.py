"""What a run of the command line is, as plain JSON, and how its parts are built from it."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from relbo import acceptance, thresholds
from relbo._check import root_key
from relbo.data import Dataset
from relbo.estimators import REGISTRY, AbstractEstimator
from relbo.lab import user_model
from relbo.models.sbn import sbn
from relbo.thresholds import AbstractThreshold
from relbo.train.log import write_json
from relbo.types import Pair

SCHEDULES = ("constant", "cosine", "linear")
EXTENDABLE = ("epochs", "patience", "valid_every")
"""What a resumed run may change."""


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run of `relbo train`."""

    data: str = "digits"
    model: str | None = None
    """`FILE_OR_MODULE:FUNCTION` of the user's own pair, see `user_model.py`; None is a sigmoid belief network."""
    model_sha256: str | None = None
    """Of that file, as it was when the run began."""
    layers: tuple[int, ...] = (200,)
    num_hidden: int = 0
    estimator: str = "vrs"
    num_samples: int = 5
    num_proposals: int | None = None
    """N, proposals that every row evaluates; read by estimators with a budget. None is `num_samples`."""
    threshold: str = "quantile:0.9"
    """`quantile:GAMMA`, `rate:RATE` or `fixed:T`; read by estimators with a threshold."""
    num_draws: int = 100
    refresh_epochs: float = 10.0
    """Epochs between refreshes of a quantile; 0 follows it online."""
    warmup_epochs: float | None = None
    """Epochs with T = +inf; None is what the threshold does by itself."""
    acceptance: str = "soft:1.0"
    """`soft:SHARPNESS`, `soft:SHARPNESS:FLOOR`, `hard` or `always`; read by estimators with an acceptance."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Other fields of the estimator."""
    optimizer: str = "adam"
    lr: float = 1e-3
    schedule: str = "constant"
    optimizer_settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = 50
    epochs: int = 30
    seed: int = 0
    valid_bound: str = "is:10"
    valid_every: int = 1
    patience: int | None = None

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the one that it continues."""
        free = set(EXTENDABLE) - ({"epochs"} if self.schedule != "constant" else set())
        shared = {name: value for name, value in dataclasses.asdict(self).items() if name not in free}
        if self.model is not None:  # a file may move, as long as it stays the same
            shared["model"] = self.model.rpartition(":")[2]
        return shared

    def settled(self) -> "RunConfig":
        """The same with the model's file by its absolute path, and its hash where there is none yet."""
        if self.model is None:
            return self
        place = user_model.find(self.model)
        return dataclasses.replace(
            self, model=place.words(), model_sha256=self.model_sha256 or user_model.sha256(place)
        )

    def model_change(self) -> str | None:
        """The sentence that the model's file is no longer what the run was begun with; None if it is."""
        return None if self.model is None else user_model.change(self.model, self.model_sha256)

    def save(self, run: Path) -> None:
        """Writes RUN/config.json."""
        write_json(run / "config.json", dataclasses.asdict(self))

    @classmethod
    def load(cls, run: Path) -> "RunConfig":
        """Reads RUN/config.json."""
        path = Path(run) / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{run} is not a run of `relbo train`: expected the file {path}.")
        try:
            values = json.loads(path.read_text())
            return cls(**{**values, "layers": tuple(values["layers"])})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: expected the configuration of a run, got {error}.") from error


def build_pair(config: RunConfig, data: Dataset) -> Pair:
    """The user's pair or the sigmoid belief network of a run, as it is before the first step."""
    key = jax.random.fold_in(root_key(config.seed), 1)
    if config.model is not None:
        return user_model.make_pair(config.model, key, data)
    mean = jnp.asarray(data.mean(), jnp.result_type(float))
    # one program for all layers; compiled one by one, each of its operations for each shape, it takes seconds
    return eqx.filter_jit(sbn)(key, config.layers, mean, num_hidden=config.num_hidden)


def build_threshold(config: RunConfig, steps_per_epoch: int) -> AbstractThreshold:
    """The threshold of a run, its epochs counted in steps."""

    def steps(epochs: float | None, at_least: int) -> int | None:
        return None if epochs is None else max(at_least, round(epochs * steps_per_epoch))

    return thresholds.parse(
        config.threshold,
        num_draws=config.num_draws,
        every=steps(config.refresh_epochs, 1) if config.refresh_epochs else None,
        warmup=steps(config.warmup_epochs, 0),
    )


def build_estimator(config: RunConfig, steps_per_epoch: int) -> AbstractEstimator:
    """The estimator of a run."""
    if config.estimator not in REGISTRY:
        raise ValueError(f"estimator must be one of {', '.join(sorted(REGISTRY))}, got {config.estimator!r}.")
    cls = REGISTRY[config.estimator]
    fields = {field.name for field in dataclasses.fields(cls)}
    common: dict[str, Any] = {
        "num_samples": config.num_samples,
        "num_proposals": config.num_proposals,
        "threshold": build_threshold(config, steps_per_epoch),
        "acceptance": acceptance.parse(config.acceptance),
    }
    unknown = sorted(set(config.settings) - fields)
    if unknown:
        known = ", ".join(sorted(fields))
        raise ValueError(f"{config.estimator} has no setting {unknown[0]!r}; its settings are {known}.")
    return cls(**{name: value for name, value in common.items() if name in fields} | config.settings)


def build_optimizer(config: RunConfig, num_steps: int) -> optax.GradientTransformation:
    """The optimiser of a run: any one of Optax that takes a learning rate."""
    make = getattr(optax, config.optimizer, None)
    if not callable(make):
        raise ValueError(f"optimizer must be the name of an Optax optimiser such as adam, got {config.optimizer!r}.")
    schedules = {
        "constant": lambda: config.lr,
        "cosine": lambda: optax.cosine_decay_schedule(config.lr, max(num_steps, 1)),
        "linear": lambda: optax.linear_schedule(config.lr, 0.0, max(num_steps, 1)),
    }
    if config.schedule not in schedules:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {config.schedule!r}.")
    if not config.lr > 0:
        raise ValueError(f"lr must be a number > 0, got {config.lr!r}.")
    try:
        return make(learning_rate=schedules[config.schedule](), **config.optimizer_settings)
    except TypeError as error:
        raise ValueError(f"optax.{config.optimizer} does not take these settings: {error}.") from error


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words; a value that is not a Python literal is a string."""
    settings = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"a setting must be NAME=VALUE, got {pair!r}.")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings
