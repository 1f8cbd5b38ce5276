"""How much a reproduction of Table 1 spends: which rows, how long, at which learning rates, and how it is judged."""

import dataclasses
from collections.abc import Mapping, Sequence

from relbo.lab.config import RunConfig
from relbo.lab.paper.table1_rows import ADDED, ARCHITECTURES, LONG_ROWS, RECIPE, TABLE, Row

MNIST = "binarized-mnist"
PUBLISHED_EPOCHS = 5_000
BOUNDS = ("elbo", "is:25", "rs:25")
LONG = "is:5000"
"""The bound that is all but the likelihood."""


@dataclasses.dataclass(frozen=True)
class Group:
    """Cells that are run together."""

    rows: tuple[str, ...]
    architectures: tuple[str, ...] = ARCHITECTURES
    num_seeds: int = 1


@dataclasses.dataclass(frozen=True)
class Preset:
    """How much a reproduction spends."""

    name: str
    about: str
    common: RunConfig
    """What all cells share; a row sets the estimator, an architecture the layers."""
    width: int = 200
    """Units of each layer."""
    bounds: tuple[str, ...] = BOUNDS
    repeats: int = 2
    """Independent evaluations."""
    max_seconds: float | None = None
    """Of training, for each cell; compilation and validation do not count."""
    checkpoint_every: int | None = None
    rows: tuple[Row, ...] = (*TABLE, *ADDED)
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Learning rate of each family (estimator); that of `common` for families that are not here."""
    epochs: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Epochs on each architecture; those of `common` for architectures that are not here."""
    groups: Mapping[str, Group] = dataclasses.field(default_factory=dict)
    """What `--group` may say, in the order in which they are worth running."""

    def config(self, row: Row, arch: str, seed: int) -> RunConfig:
        """What a cell trains."""
        epochs = self.epochs.get(arch, self.common.epochs)
        warmup = {} if row.warmup_share is None else {"warmup_epochs": row.warmup_share * epochs}
        config = dataclasses.replace(
            self.common,
            layers=(self.width,) * (1 + arch.count("-")),
            estimator=row.estimator,
            lr=self.rates.get(row.estimator, self.common.lr),
            epochs=epochs,
            seed=seed,
            **{**warmup, **row.settings, **row.by_architecture.get(arch, {})},
        )
        if row.control_steps is None:
            return config
        own = {"learning_rate": row.control_steps * config.lr}
        return dataclasses.replace(config, settings={**config.settings, **own})

    def with_rates(self, words: Sequence[str]) -> "Preset":
        """The same at other learning rates, given as LR for all families or as FAMILY=LR."""
        families = {row.estimator: self.common.lr for row in self.rows} | dict(self.rates)
        for word in words:
            name, _, text = word.rpartition("=")
            if "=" in word and name not in families:
                raise ValueError(f"--lr must be LR or FAMILY=LR with one of {', '.join(families)}; got {word!r}.")
            try:
                rate = float(text)
            except ValueError:
                raise ValueError(f"--lr must be LR or FAMILY=LR with a number LR > 0, got {word!r}.") from None
            dataclasses.replace(self.common, lr=rate)  # refuses what no learning rate can be
            families.update({name: rate} if name else dict.fromkeys(families, rate))
        return dataclasses.replace(self, rates=families)

    def with_epochs(self, epochs: int) -> "Preset":
        """The same with as many epochs on every architecture."""
        if epochs < 1:
            raise ValueError(f"--epochs must be an integer >= 1, got {epochs}.")
        return dataclasses.replace(self, common=dataclasses.replace(self.common, epochs=epochs), epochs={})

    def is_comparable(self) -> bool:
        """Whether the networks, the data and the length of training are those of the published numbers."""
        return not self._differences()

    def _differences(self) -> list[str]:
        is_long = self.max_seconds is None and min(self._epochs()) >= PUBLISHED_EPOCHS
        return [
            *([] if self.common.data == MNIST else ["other images"]),
            *([] if self.width == 200 else ["other networks"]),
            *([] if is_long else ["far shorter training"]),
        ]

    def _epochs(self) -> list[int]:
        return [self.epochs.get(arch, self.common.epochs) for arch in ARCHITECTURES]

    def _rates(self) -> str:
        families: dict[float, dict[str, None]] = {}
        for row in self.rows:
            families.setdefault(self.rates.get(row.estimator, self.common.lr), {})[row.estimator] = None
        start = "" if self.common.schedule == "constant" else f"a {self.common.schedule} schedule from "
        if len(families) == 1:
            return f"{start}{next(iter(families)):g}"
        return start + " and ".join(f"{rate:g} ({', '.join(names)})" for rate, names in families.items())

    def note(self) -> str:
        """What the numbers are."""
        lengths = dict.fromkeys(str(epochs) for epochs in self._epochs())
        length = f"{', '.join(lengths)} epochs" if self.max_seconds is None else f"{self.max_seconds / 60:g} minutes"
        settings = ", ".join(f"{name} {value:g}" for name, value in self.common.optimizer_settings.items())
        adam = f"Adam ({settings})" if settings else "Adam"
        mine = (
            f"Ours: {self.common.data}, {self.width} units a layer, {adam} at {self._rates()}, {length} of training a "
            f"cell; {self.about}. Published: {MNIST}, 200 units a layer, millions of steps."
        )
        differences = self._differences()
        if not differences:
            return mine
        return (
            f"{mine} The two are NOT COMPARABLE: {', '.join(differences)}. The published numbers stand here for their "
            "metrics."
        )


_COSINE = RunConfig(
    data=MNIST,
    lr=3e-3,
    schedule="cosine",
    epochs=100,
    batch_size=50,
    num_draws=20,
    refresh_epochs=10.0,
    # IS-10 prefers a tight q to a good model, and would throw the half with rejection away
    valid_bound="is:100",
    valid_every=10,
)

PRESETS = {
    "smoke": Preset(
        "smoke",
        "enough to see that everything runs, too little to rank methods",
        RunConfig(lr=3e-3, epochs=10, refresh_epochs=2.0, valid_every=5, valid_bound="is:25"),
        width=50,
        repeats=1,
        checkpoint_every=125,
    ),
    "budget": Preset(
        "budget",
        "the same training seconds for every cell",
        # 100 draws behind each threshold would take half of the time
        RunConfig(data=MNIST, lr=1e-3, epochs=5_000, num_draws=20, refresh_epochs=10.0, valid_bound="is:25"),
        repeats=1,  # RS-25 on 10,000 images takes minutes
        max_seconds=300.0,
    ),
    "long": Preset(
        "long",
        "batches of 50, parameters by IS-100 on the validation images, every 10 epochs",
        _COSINE,
        bounds=(*BOUNDS, "is:1000"),
        checkpoint_every=5_000,
        rows=LONG_ROWS,
        # of {1e-3, 3e-3}, by validation after 30 epochs on one layer; --lr says another one
        rates={
            **dict.fromkeys(("rloo", "vrs", "vimco", "rws", "disarm", "rebar"), 3e-3),
            "nvil": 1e-3,
            "muprop": 1e-3,
            "concrete": 3e-3,
        },
        groups={
            "a": Group(("rloo-6", "vrs-recipe", "vimco-6", "rws-6")),
            "b": Group(("rloo-6", "vrs-recipe", "vimco-6", "rws-6"), ("200",), num_seeds=3),
            "c": Group(("vrs-0.9", "disarm-6", "nvil-6", "rebar")),
            "d": Group(("vrs-recipe-20", "vimco-20", "rws-20", "rloo-20"), ("200-200-200",)),
            "e": Group(("nvil-1", "muprop", "rebar-0.1", "concrete-0.1"), ("200", "200-200")),
            "f": Group(
                tuple(f"{name}-{k}" for k in (2, 5, 10, 50) for name in ("nvil", "rws", "vimco")) + ("nvil-1",),
                ("200-200-200",),
            ),
        },
    ),
    "headline": Preset(
        "headline",
        "one long run of VRS by the recipe on each architecture",
        # Adam's usual eps of 1e-8 lets weights of pixels that are hardly ever on, whose gradients are all but 0, drift
        # by whole step sizes: after 300 epochs a validation image with such a pixel can cost thousands of nats.
        # The best epoch of so long a schedule is among the last, so looking for it every 10 is waste.
        dataclasses.replace(_COSINE, optimizer_settings={"eps": 1e-3}, valid_every=25),
        bounds=(*BOUNDS, "is:1000", LONG),
        checkpoint_every=10_000,
        rows=(RECIPE,),
        epochs={"200": 1_000, "200-200": 500, "200-200-200": 500},
    ),
    "paper": Preset(
        "paper",
        "the paper's protocol: batches of 50, thresholds every 100 epochs",
        RunConfig(data=MNIST, lr=3e-4, epochs=5_000, refresh_epochs=100.0, valid_every=10, valid_bound="is:25"),
        bounds=(*BOUNDS, LONG),
        checkpoint_every=10_000,
    ),
}
