"""Autoguides, which look at the model when they are first run, and keep what they see."""

from typing import Any

from numpyro.handlers import block, seed
from numpyro.infer.autoguide import AutoGuide


def set_up(guide: Any, args: tuple, kwargs: dict[str, Any]) -> None:
    """Runs an autoguide that never was run, so that a compiled program finds it ready.

    Were its first run inside of `jax.jit`, it would keep what is of no use outside.
    """
    if isinstance(guide, AutoGuide) and guide.prototype_trace is None:
        with block(), seed(rng_seed=0):
            guide(*args, **kwargs)
