"""Every numeric option and what it may be, in one table: for the command line, for config.json and for Python.

An upper limit is where an option stops to make sense on any machine; beyond it a program would run for ever, or out of
memory, before it could say why.
"""

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from relbo._check import is_int, is_real, refuse

COMMAND_LINE = "--"
"""Owner of what is said on the command line."""
MANY = 1_000_000_000
COUNT = 1_000_000


class Rule(abc.ABC):
    """What a value must be."""

    @abc.abstractmethod
    def broken(self, value: Any) -> str | None:
        """What was expected, if the value is something else; None if it is good."""


@dataclasses.dataclass(frozen=True)
class Integer(Rule):
    """A plain integer from `low` to `high`."""

    low: int
    high: int

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        if not is_int(value, at_least=self.low):
            return f"an integer >= {self.low}"
        return None if value <= self.high else f"an integer <= {self.high:,}"


@dataclasses.dataclass(frozen=True)
class Real(Rule):
    """A finite number from `low` to `high`; `low` itself only where `closed`."""

    low: float
    high: float
    closed: bool = True

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        is_low = is_real(value) and (value >= self.low if self.closed else value > self.low)
        if not is_low:
            return f"a number {'>=' if self.closed else '>'} {self.low:g}"
        return None if value <= self.high else f"a number <= {self.high:g}"


@dataclasses.dataclass(frozen=True)
class Share(Rule):
    """A number from 0 up to, but not, 1."""

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        return None if is_real(value) and 0 <= value < 1 else "a number in [0, 1)"


@dataclasses.dataclass(frozen=True)
class Text(Rule):
    """A text that is not empty; of `among`, if there are any."""

    among: tuple[str, ...] = ()

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        if self.among:
            return None if isinstance(value, str) and value in self.among else _among(self.among)
        is_text = isinstance(value, str) and 0 < len(value) <= 4096 and "\0" not in value
        return None if is_text else "a text of 1 to 4,096 characters"


def _among(words: tuple[str, ...]) -> str:
    return " or ".join(words) if len(words) == 2 else f"one of {', '.join(words)}"


@dataclasses.dataclass(frozen=True)
class Flag(Rule):
    """True or False."""

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        return None if isinstance(value, bool) else "True or False"


@dataclasses.dataclass(frozen=True)
class OrNone(Rule):
    """None, or what a rule says."""

    rule: Rule

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        expected = None if value is None else self.rule.broken(value)
        return None if expected is None else f"None or {expected}"


@dataclasses.dataclass(frozen=True)
class Several(Rule):
    """A tuple of 1 to `longest` values that a rule holds for."""

    rule: Rule
    longest: int

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        if not isinstance(value, tuple | list) or not 0 < len(value) <= self.longest:
            return f"a list of 1 to {self.longest} values"
        expected = next((found for item in value if (found := self.rule.broken(item)) is not None), None)
        return None if expected is None else f"a list in which each is {expected}"


@dataclasses.dataclass(frozen=True)
class Settings(Rule):
    """A dictionary of names and plain values: finite numbers, texts, flags, None and short lists of them."""

    def broken(self, value: Any) -> str | None:
        """What was expected."""
        is_plain = isinstance(value, dict) and all(isinstance(name, str) for name in value)
        return None if is_plain and all(map(_is_plain, value.values())) else "names with finite numbers or texts"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) <= 100 and all(not isinstance(item, list | tuple) and _is_plain(item) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return math.isfinite(value) and abs(value) <= 1e30
    return value is None or isinstance(value, bool | str)


OPTIONS: dict[str, Rule] = {
    # a run
    "data": Text(),
    "model": OrNone(Text()),
    "model_sha256": OrNone(Text()),
    "layers": Several(Integer(1, 100_000), 100),
    "num_hidden": Integer(0, 100),
    "estimator": Text(),
    "num_samples": Integer(1, COUNT),
    "num_proposals": OrNone(Integer(1, COUNT)),
    "threshold": Text(),
    "num_draws": OrNone(Integer(1, COUNT)),
    "refresh_epochs": Real(0.0, 1e6),
    "warmup_epochs": OrNone(Real(0.0, 1e6)),
    "acceptance": Text(),
    "settings": Settings(),
    "optimizer": Text(),
    "lr": Real(0.0, 1e3, closed=False),
    "schedule": Text(("constant", "cosine", "linear")),
    "optimizer_settings": Settings(),
    "batch_size": Integer(1, MANY),
    "epochs": Integer(0, MANY),
    "num_epochs": Integer(0, MANY),
    "seed": Integer(0, 2**32 - 1),
    "shards": OrNone(Integer(1, 1 << 20)),
    "valid_bound": Text(),
    "valid_every": Integer(1, MANY),
    "patience": OrNone(Integer(1, MANY)),
    "max_seconds": OrNone(Real(0.0, 1e12, closed=False)),
    "checkpoint_every": OrNone(Integer(1, MANY)),
    "log_every": Integer(1, MANY),
    "resume": Flag(),
    "progress": OrNone(Flag()),
    # what is done with it
    "which": Text(("best", "last")),
    "split": Text(("train", "valid", "test")),
    "limit": OrNone(Integer(1, MANY)),
    "repeats": Integer(1, COUNT),
    "max_rounds": Integer(1, MANY),
}

OPTIMIZER_SETTINGS: dict[str, Rule] = {
    **dict.fromkeys(("b1", "b2", "b3", "momentum", "decay", "decay_rate", "momentum_decay", "beta"), Share()),
    **dict.fromkeys(("eps", "eps_root", "weight_decay", "initial_accumulator_value", "initial_scale"), Real(0.0, 1e6)),
    **dict.fromkeys(("nesterov", "centered", "bias_correction"), Flag()),
}
"""Settings that many optimisers share; Optax itself refuses none of their values."""


def check(owner: str = "", **values: Any) -> None:
    """Refuses values that their options do not allow.

    Args:
        owner: whose options they are, for messages, such as "fit: ".
        **values: options of the table by name.

    Raises:
        ValueError: the first that is not allowed.
    """
    check_all(OPTIONS, values, owner)


def check_all(rules: Mapping[str, Rule], values: Mapping[str, Any], owner: str = "") -> None:
    """The same for another table; values without a rule pass."""
    for name, value in values.items():
        rule = rules.get(name)
        expected = None if rule is None else rule.broken(_host(value))
        if expected is None:
            continue
        if owner == COMMAND_LINE:  # where a value is left out to say None
            name, expected = name.replace("_", "-"), expected.removeprefix("None or ")
        refuse(f"{owner}{name}", expected, value, rule.among if isinstance(rule, Text) else ())


def _host(value: Any) -> Any:
    return value.item() if isinstance(value, np.number) else value
