"""What is wrong with data and settings is said before anything is written or compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import relbo
from relbo.data import Dataset
from relbo.models.toy import PoissonProposal, PoissonTarget

ROWS = np.random.default_rng(0).integers(0, 2, (40, 6)).astype(np.uint8)
X = ROWS.astype(np.float64)


def network():
    return relbo.sbn(jax.random.key(0), [3], jnp.full(6, 0.5))


def with_value(value, row=17, column=4):
    x = X.copy()
    x[row, column] = value
    return x


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (X, {"valid": X[:, :5]}, r"fit: valid must be like the data, rows of floats of shape \(6,\), got .*\(5,\)"),
        (X, {"valid": X[0]}, r"fit: valid must be like the data, .* got rows of floats of shape \(\)"),
        (X, {"valid": X.astype(int)}, "fit: valid must be like the data, .* got rows of integers"),
        (X, {"valid": (X, X)}, "fit: valid must be like the data, a tree such as PyTreeDef"),
        (Dataset("d", "binary", ROWS, ROWS, ROWS), {"valid": X[:, :2]}, "fit: valid must be like the data"),
        (X, {"patience": 2}, "fit: patience must be None where nothing is validated; give valid=.* got 2"),
        (
            X,
            {"valid": X, "patience": 2, "valid_every": 3},
            "fit: valid_every must be at most the 2 epochs that patience is to end, got 3",
        ),
        (with_value(255.0), {}, r"fit: data must hold numbers in \[0, 1\], .*got 255.0 in row 17"),
        (255 * ROWS, {}, r"fit: data must hold numbers in \[0, 1\], .*got 255 in row 0.*255"),
        (X, {"valid": with_value(-1.0)}, r"fit: valid must hold numbers in \[0, 1\], .*got -1.0 in row 17"),
        (with_value(np.nan), {}, r"fit: data must hold numbers in \[0, 1\], .*got nan in row 17"),
    ],
)
def test_fit_refuses(tmp_path, data, options, message):
    out = tmp_path / "run"
    with pytest.raises(ValueError, match=message):
        relbo.fit(network(), relbo.RLOO(2), data, **{"num_epochs": 2, "batch_size": 8, "out": out, **options})
    assert not out.exists()


def test_bytes_and_floats_are_alike():
    # stored images are bytes; models are given floats of them
    data = Dataset("d", "binary", ROWS, ROWS, ROWS)
    for valid in (ROWS[:8], X[:8]):
        found = relbo.fit(network(), relbo.RLOO(2), data, num_epochs=1, batch_size=8, valid=valid, valid_bound="elbo")
        assert found.best_bound is not None


def test_evaluate_and_posterior_refuse():
    for x in (255 * ROWS, with_value(2.0), with_value(np.nan)):
        with pytest.raises(ValueError, match=r"evaluate: x must hold numbers in \[0, 1\]"):
            relbo.evaluate(network(), x, key=jax.random.key(0))
        with pytest.raises(ValueError, match=r"posterior: x must hold numbers in \[0, 1\]"):
            relbo.posterior(jax.random.key(0), network(), x, rate=0.5)


class Missing(PoissonTarget):
    """A model to which NaN means that a number is missing."""

    def check_x(self, x):
        return None


def test_nan_is_named_unless_the_model_takes_it():
    x = np.zeros((5, 1))
    x[3] = np.nan
    message = "must hold no NaN, got one in row 3 .*; remove the row, or override check_x"
    for model, taken in ((PoissonTarget, False), (Missing, True)):
        pair = relbo.Pair(model(jnp.asarray(2.0)), PoissonProposal(jnp.asarray(0.0)))
        if taken:
            relbo.evaluate(pair, x, "elbo", key=jax.random.key(0))
            continue
        with pytest.raises(ValueError, match=f"evaluate: x {message}"):
            relbo.evaluate(pair, x, key=jax.random.key(0))
        with pytest.raises(ValueError, match=f"fit: data {message}"):
            relbo.fit(pair, relbo.RLOO(2), x, num_epochs=1, batch_size=5)


def test_fewer_epochs_than_a_run_has_had_are_refused(tmp_path):
    options = {"batch_size": 8, "out": tmp_path / "run", "optimizer": optax.sgd(1e-2)}
    relbo.fit(network(), relbo.RLOO(2), X, num_epochs=3, **options)
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"num_epochs must be at least the 3 that .*run has had already, .* got 1"):
        relbo.fit(network(), relbo.RLOO(2), X, num_epochs=1, resume=True, **options)
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert relbo.fit(network(), relbo.RLOO(2), X, num_epochs=3, resume=True, **options).stopped == "finished"
