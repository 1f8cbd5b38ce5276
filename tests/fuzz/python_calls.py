"""Python calls: good ones with one or two arguments that are something else."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from hypothesis import strategies as st

import relbo
from relbo.estimators import REGISTRY

ROWS = np.random.default_rng(0).integers(0, 2, (8, 4)).astype(np.float32)
KEY = jax.random.key(0)
PAIR = relbo.sbn(KEY, [2], jnp.full(4, 0.5))


class Call(NamedTuple):
    """A function and arguments that it takes."""

    function: Callable[..., Any]
    good: dict[str, Any]


CALLS = {
    "fit": Call(
        relbo.fit,
        {"pair": PAIR, "estimator": relbo.RLOO(2), "data": ROWS, "num_epochs": 0, "batch_size": 4}
        | {"optimizer": None, "lr": None, "seed": 0, "valid": None, "valid_bound": "is:2", "valid_every": 1}
        | {
            "patience": None,
            "max_seconds": None,
            "out": None,
            "resume": False,
            "checkpoint_every": None,
            "log_every": 1,
        }
        | {"progress": None},
    ),
    "evaluate": Call(
        relbo.evaluate,
        {"pair": PAIR, "x": ROWS, "bounds": "elbo", "key": KEY, "repeats": 1, "threshold": None, "rate": None}
        | {"acceptance": None, "max_rounds": 10},
    ),
    "posterior": Call(
        relbo.posterior,
        {"key": KEY, "pair": PAIR, "x": ROWS, "rate": 0.5, "num_samples": 2, "num_draws": 4, "max_rounds": 100}
        | {"acceptance": None, "throw": False},
    ),
    "load": Call(relbo.load, {"path": "rloo", "make_pair": None, "which": "best", "data_dir": None}),
    "data.load": Call(relbo.data.load, {"name_or_path": "digits", "data_dir": None}),
    "sbn": Call(relbo.sbn, {"key": KEY, "widths": [2], "data_mean": jnp.full(4, 0.5), "num_hidden": 0}),
    "Rate": Call(relbo.Rate, {"rate": 0.5, "num_draws": 10}),
    "Quantile": Call(relbo.Quantile, {"gamma": 0.5, "num_draws": 10, "every": 5}),
    "IS": Call(relbo.IS, {"num_samples": 2}),
    "RS": Call(relbo.RS, {"num_samples": 2, "threshold": 1.0}),
    "Soft": Call(relbo.Soft, {"sharpness": 1.0}),
    **{
        name: Call(cls, {"num_samples": 2}) for name, cls in REGISTRY.items() if name in ("vrs", "rloo", "vimco", "rws")
    },
}
WEIGHTS = ["fit"] * 6 + ["evaluate"] * 4 + ["posterior"] * 2 + ["load"] * 2 + list(CALLS)[4:]

ODD: list[Any] = [None, {}, [], (), "", "x", "elbo", "adam", "vrs", 0, -1, 1, 3, 1.5, float("nan"), float("inf"), True]
ODD += [2**70, -(2**70), 1e300, b"x", object(), np.zeros(0), np.zeros((8, 0)), np.zeros((3, 4)), np.array("text")]
ODD += [np.array([None]), jnp.zeros((8, 5)), {"a": ROWS, "b": ROWS[:3]}, {"a": None}, [1, 2], ["elbo", "elbo"], ["e"]]
ODD += [relbo.RLOO, relbo.VRS(2, rate=0.5), relbo.Pair, (PAIR.model, PAIR.proposal), optax.adam, optax.sgd(0.1)]
ODD += [KEY, jax.random.split(KEY), "nowhere", "notes", "tiny.npz", np.float64(2.0), np.int64(2), 1 + 2j, "is:2", "\0"]
ODD += [relbo.Soft(), relbo.Fixed(1.0), relbo.IS(2), jnp.asarray(0.3), "rate:0.5", "\ud800"]


@st.composite
def python_calls(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """The name of a call, and for some of its arguments the number of an odd value."""
    name = draw(st.sampled_from(WEIGHTS))
    changed = draw(st.lists(st.sampled_from(sorted(CALLS[name].good)), min_size=1, max_size=2, unique=True))
    return name, {argument: draw(st.integers(0, len(ODD) - 1)) for argument in changed}


def run(name: str, changed: dict[str, int]) -> Any:
    """Makes the call."""
    call = CALLS[name]
    return call.function(**{**call.good, **{argument: ODD[number] for argument, number in changed.items()}})
