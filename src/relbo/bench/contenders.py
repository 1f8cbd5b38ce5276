"""Other libraries, as scripts of a `benchmarks` folder; the package itself needs none of them."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from relbo.bench.steps import Setting
from relbo.types import Pair


def load(folder: Path, name: str) -> ModuleType | str:
    """The script, or why it cannot be used."""
    path = folder / f"{name}.py"
    if not path.is_file():
        return f"{path} is not there: run from the repository, or name the folder with --contenders"
    spec = importlib.util.spec_from_file_location(f"relbo_bench_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        return f"{error.name or error} is not installed"
    return module


def weights_of(pair: Any) -> dict[str, Any]:
    """The network's arrays, as the scripts take them."""

    def layers(conditionals: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        return [(np.array(c.output.weight), np.array(c.output.bias)) for c in conditionals]

    return {
        "down": layers(pair.model.downward),
        "prior": np.array(pair.model.prior),
        "up": layers(pair.proposal.upward),
        "data_mean": np.array(pair.proposal.data_mean),
    }


def find(
    folder: Path, setting: Setting, pair: Pair, data: Float[Array, "n d"], thresholds: Float[Array, " n"]
) -> tuple[dict[str, Callable[[int], object]], dict[str, str]]:
    """Steps of the other libraries by name, and why some are missing."""
    weights = weights_of(pair)
    found: dict[str, Callable[[int], object]] = {}
    missing: dict[str, str] = {}
    torch_step = load(folder, "eager_torch")
    if isinstance(torch_step, str):
        missing["PyTorch eager, VRS"] = torch_step
    else:
        rows = slice(0, setting.batch_size)
        batch = np.array(data[rows]), np.array(thresholds[rows])
        found["PyTorch eager, VRS"] = torch_step.make_step(*batch, **weights, num_samples=setting.num_samples)
    numpyro_step = load(folder, "numpyro_sbn")
    for name in ("Trace_ELBO", "TraceGraph_ELBO"):
        label = f"NumPyro {name}, no rejection"
        if isinstance(numpyro_step, str):
            missing[label] = numpyro_step
            continue
        import numpyro

        loss = getattr(numpyro.infer, name)(num_particles=setting.num_samples)
        found[label] = numpyro_step.make_step(loss, np.array(data), setting.batch_size, **weights)
    return found, missing
