"""Every native example in a short form, and what would be false if the method did not work."""

import importlib.util
import pathlib

import jax
import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    """Examples are written for JAX's defaults."""
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_categorical_mixture():
    found = load("categorical_mixture").main(epochs=20, num_rows=1_000)
    for rate in (0.5, 0.2, 0.05):
        assert found["acceptance"][rate] == pytest.approx(rate, rel=0.1)
        # an estimate of log p(x) that is biased downwards, by KL(r || p) at the most
        assert -found["kl"][rate] < found["estimate"][rate] - found["evidence"][rate] < 0.02
    kls = [found["kl"][rate] for rate in (1.0, 0.5, 0.2, 0.05)]
    assert kls == sorted(kls, reverse=True)
    assert kls[-1] < 0.4 * kls[0]
    assert found["evidence"][1.0] > -4.6  # -8.9 before the first step, -3.9 for the model that made the data


@pytest.mark.slow
def test_dictionary_x():
    found = load("dictionary_x").main(epochs=30)
    assert found["VRS"]["log p"] > found["truth"]["log p"] - 0.5  # it starts 6.2 below
    assert found["draws"]["accuracy"] > 0.85  # 0.59 with the first parameters
    assert found["draws"]["log p"] == pytest.approx(found["VRS"]["log p"], abs=0.1)


@pytest.mark.slow
def test_vae():
    found = load("vae").main(epochs=9)
    for bounds in found.values():
        assert bounds["IS-500"] > -23  # independent pixels are worth -25.2 nats
        gap, left = (bounds["IS-500"] - bounds[name] for name in ("ELBO", "R-ELBO"))
        assert left < 0.5 * gap
