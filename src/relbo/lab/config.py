"""What a run of the command line is, as plain JSON, and how its parts are built from it."""

import ast
import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from relbo import acceptance, thresholds
from relbo._check import did_you_mean, refuse, root_key
from relbo._options import check
from relbo.data import Dataset
from relbo.estimators import REGISTRY, AbstractEstimator
from relbo.lab import user_model
from relbo.models.sbn import sbn
from relbo.thresholds import AbstractThreshold
from relbo.train.directory import CONFIG, read_config
from relbo.train.errors import first_line
from relbo.train.optimizers import named_optimizer
from relbo.types import Pair

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
    num_draws: int | None = None
    """Draws behind each T that is solved for; None is what the threshold does by itself."""
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
    shards: int = 1
    """Parts that the rows are split into, see `relbo.train.layout`."""
    valid_bound: str = "is:10"
    valid_every: int = 1
    patience: int | None = None

    def __post_init__(self) -> None:
        check(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the one that it continues."""
        free = set(EXTENDABLE) - ({"epochs"} if self.schedule != "constant" else set())
        shared = {name: value for name, value in dataclasses.asdict(self).items() if name not in free}
        if self.model is not None:  # a file may move, as long as it stays the same
            shared["model"] = self.model.rpartition(":")[2]
        if self.shards == 1:
            del shared["shards"]  # runs that were begun before there were any go on
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

    @classmethod
    def load(cls, run: Path) -> "RunConfig":
        """Reads RUN/config.json."""
        path = Path(run) / CONFIG
        values = read_config(Path(run))
        try:
            return cls(**{**values, "layers": tuple(values["layers"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: expected the configuration of a run, got {first_line(error)}.") from error


def build_pair(config: RunConfig, data: Dataset) -> Pair:
    """The user's pair or the sigmoid belief network of a run, as it is before the first step."""
    key = jax.random.fold_in(root_key(config.seed), 1)
    if config.model is not None:
        return user_model.make_pair(config.model, key, data)
    mean = jnp.asarray(data.mean(), jnp.result_type(float))
    refuse_too_large(config.layers, mean.size, config.num_hidden)
    return _sbn(key, config.layers, mean, num_hidden=config.num_hidden)


_sbn = eqx.filter_jit(sbn)
"""One program for all layers; compiled one by one, each of its operations for each shape, it takes seconds."""


def refuse_too_large(layers: tuple[int, ...], num_pixels: int, num_hidden: int) -> None:
    """Raises `ValueError` for a network whose weights, gradients and optimiser's moments exceed the memory."""
    sizes = (num_pixels, *layers)
    weights = 2 * sum(a * b + num_hidden * b * b for a, b in zip(sizes[:-1], sizes[1:], strict=True))
    needed = 4 * weights * jnp.result_type(float).itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        refuse(
            "layers", f"a network that fits into {there / 2**30:.0f} GB with its gradients", "-".join(map(str, layers))
        )


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
        raise ValueError(
            f"estimator must be one of {', '.join(sorted(REGISTRY))}, got {config.estimator!r}"
            f"{did_you_mean(config.estimator, REGISTRY)}"
        )
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
        raise ValueError(
            f"{config.estimator} has no setting {unknown[0]!r}, only {known}{did_you_mean(unknown[0], fields)}"
        )
    try:
        return cls(**{name: value for name, value in common.items() if name in fields} | config.settings)
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ValueError) and not config.settings:
            raise
        raise ValueError(f"{config.estimator} does not take these settings: {first_line(error)}.") from error


OF_THRESHOLDS = {"refresh_epochs": ("quantile",), "num_draws": ("quantile", "rate")}
"""Settings that not every kind of threshold has."""
TAKEN_AS = {
    "num_proposals": "num_proposals",
    "acceptance": "acceptance",
    **dict.fromkeys(("threshold", "rate", "warmup_epochs", *OF_THRESHOLDS), "threshold"),
}
"""Options that only some estimators take, and the field of the estimator that takes them."""


def refuse_idle(estimator: str, threshold: str, said: Iterable[str]) -> None:
    """Raises `ValueError` for an option that was said and means nothing.

    Args:
        estimator: its name.
        threshold: in words.
        said: the options, as they are called in `OPTIONS`, or `rate`.
    """
    kind = threshold.partition(":")[0]
    for name in sorted(said):
        option = f"--{name.replace('_', '-')}"
        known = takers(TAKEN_AS[name])
        if estimator in REGISTRY and estimator not in known:  # others are refused by their name
            raise ValueError(f"{option} means nothing to {estimator}, leave it out: it is for {', '.join(known)}.")
        if kind not in OF_THRESHOLDS.get(name, (kind,)):
            kinds = " or ".join(OF_THRESHOLDS[name])
            raise ValueError(f"{option} means nothing to the threshold {threshold}, leave it out: it is for {kinds}.")


def takers(field: str) -> list[str]:
    """Names of the estimators that have a field."""
    return [name for name, cls in REGISTRY.items() if field in {one.name for one in dataclasses.fields(cls)}]


def build_optimizer(config: RunConfig, num_steps: int) -> optax.GradientTransformation:
    """The optimiser of a run: any one of Optax that takes a learning rate."""
    schedules = {
        "constant": lambda: config.lr,
        "cosine": lambda: optax.cosine_decay_schedule(config.lr, max(num_steps, 1)),
        "linear": lambda: optax.linear_schedule(config.lr, 0.0, max(num_steps, 1)),
    }
    return named_optimizer(config.optimizer, schedules[config.schedule](), **config.optimizer_settings)


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words; a value that is not a Python literal is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"a setting must be NAME=VALUE, got {pair!r}.")
        if name in settings:
            raise ValueError(f"a setting must be given once, got {name} twice: {settings[name]!r} and {text}.")
        try:
            settings[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            settings[name] = text
    return settings
