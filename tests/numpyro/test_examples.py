"""Every example in its short form, and what the text of one of them claims."""

import importlib.util
import pathlib

import jax
import matplotlib
import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def as_a_user_runs_them():
    """Examples are written for JAX's defaults."""
    matplotlib.use("Agg")
    with jax.enable_x64(False):
        yield


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bars_sbn", "minibatch_mixture")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic_regression", *SLOW])
def test_short_form(name, tmp_path):
    load(name).main(short=True, out=tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_resampling_halves_the_error_of_the_standard_deviations(tmp_path):
    result = load("logistic_regression").main(out=tmp_path)
    sizes = {name: np.mean(np.abs(error.sd)) for name, error in result["errors"].items()}
    assert result["acceptance"]["r at 0.11"] >= 0.1
    assert sizes["r at 0.11"] <= 0.5 * sizes["guide"]
