"""Other libraries, each in a module of its own that is imported here alone; the package itself needs none of them."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from relbo.lab.bench.steps import Setting
from relbo.types import Pair


def load(name: str) -> ModuleType | str:
    """A module of this package, or why it cannot be used."""
    try:
        return importlib.import_module(f"relbo.lab.bench.{name}")
    except ImportError as error:
        return f"{error.name or error} is not installed"


def weights_of(pair: Any) -> dict[str, Any]:
    """The network's arrays, as the contenders take them."""

    def layers(conditionals: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.array(c.output.matrix.T), np.array(c.output.bias)) for c in conditionals]

    return {
        "down": layers(pair.model.downward),
        "prior": np.array(pair.model.prior),
        "up": layers(pair.proposal.upward),
        "data_mean": np.array(pair.proposal.data_mean),
    }


def find(
    setting: Setting, pair: Pair, data: Float[Array, "n d"], thresholds: Float[Array, " m"]
) -> tuple[dict[str, Callable[[int], object]], dict[str, str]]:
    """Steps of the other libraries by name, and why some are missing."""
    weights = weights_of(pair)
    found: dict[str, Callable[[int], object]] = {}
    missing: dict[str, str] = {}
    torch_step = load("eager_torch")
    for label, compiled in {"PyTorch eager, VRS": False, "torch.compile, VRS": True}.items():
        if isinstance(torch_step, str):
            missing[label] = torch_step
            continue
        rows = slice(0, setting.batch_size)
        batch = np.array(data[rows]), np.array(thresholds[rows])
        budget = {"num_samples": setting.num_samples, "num_proposals": setting.num_proposals}
        found[label] = torch_step.make_step(*batch, **weights, **budget, compiled=compiled)
    numpyro_step = load("numpyro_sbn")
    for name in ("Trace_ELBO", "TraceGraph_ELBO"):
        label = f"NumPyro {name}, no rejection"
        if isinstance(numpyro_step, str):
            missing[label] = numpyro_step
            continue
        import numpyro

        loss = getattr(numpyro.infer, name)(num_particles=setting.num_proposals)
        found[label] = numpyro_step.make_step(loss, np.array(data), setting.batch_size, **weights)
    return found, missing
