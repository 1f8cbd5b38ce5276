"""`relbo.load`: any run directory gives back its pair, its estimator and its history."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo.lab.runs import open_run
from relbo.train.directory import Description
from relbo.train.sealed import write_sealed

ROWS = np.random.default_rng(0).integers(0, 2, (40, 6)).astype(float)


def make_pair(width=3):
    return relbo.sbn(jax.random.key(5), [width], jnp.full(6, 0.5))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run of `fit` whose best parameters, those of the one validation, are not its last."""
    out = tmp_path_factory.mktemp("fitted") / "run"
    pair = relbo.sbn(jax.random.key(0), [3], jnp.asarray(ROWS.mean(axis=0)))
    with jax.numpy_dtype_promotion("standard"):
        result = relbo.fit(
            pair,
            relbo.VRS(3, relbo.Fixed(30.0)),
            ROWS,
            valid=ROWS[:10],
            valid_bound="is:2",
            valid_every=3,
            num_epochs=4,
            batch_size=10,
            out=out,
        )
    return out, result


def test_a_run_of_fit(fitted):
    out, result = fitted
    run = relbo.load(out, make_pair)
    assert bool(eqx.tree_equal(run.pair, result.best)) and not bool(eqx.tree_equal(run.pair, result.pair))
    assert bool(eqx.tree_equal(relbo.load(str(out), make_pair(), which="last").pair, result.pair))
    assert bool(eqx.tree_equal(run.estimator, relbo.VRS(3, relbo.Fixed(30.0))))
    assert (run.path, run.step, run.metrics) == (out, 16, result.metrics)
    assert run.record["best_bound"] == result.best_bound and run.record["identity"]["batch_size"] == 10


def test_a_run_of_the_command_line(tiny_runs):
    run, opened = relbo.load(tiny_runs / "vrs"), open_run(tiny_runs / "vrs")
    assert bool(eqx.tree_equal(run.pair, opened.pair)) and bool(eqx.tree_equal(run.estimator, opened.estimator))
    assert (run.step, run.metrics) == (opened.step, opened.metrics) and run.record["identity"]["layers"] == [3]
    given = relbo.load(tiny_runs / "vrs", opened.pair)  # neither configuration nor data are looked at
    assert bool(eqx.tree_equal(given.pair, opened.pair)) and bool(eqx.tree_equal(given.estimator, opened.estimator))


class Mine(relbo.AbstractEstimator):
    inner: relbo.RLOO
    bound, unbiased, needs, paper = relbo.ELBO(), True, relbo.Needs.DRAWS, ""

    def init(self, key, pair, num_data):
        return self.inner.init(key, pair, num_data)

    def estimate(self, key, pair, state, batch):
        return self.inner.estimate(key, pair, state, batch)


def test_an_estimator_of_the_users_stays_a_text(tmp_path):
    relbo.fit(make_pair(), Mine(relbo.RLOO(2)), ROWS, num_epochs=1, batch_size=20, out=tmp_path / "run")
    run = relbo.load(tmp_path / "run", make_pair)
    assert run.estimator is None
    assert run.record["identity"]["estimator_settings"] == "Mine(inner=RLOO())"


def test_refusals(fitted, tmp_path):
    out, _ = fitted
    with pytest.raises(ValueError, match="run is a run of `relbo.fit`: give `load` a function that makes a pair"):
        relbo.load(out)
    message = (
        r"the best of checkpoint .*16 does not fit: \d arrays differ, the first being \.model.*expected .*, got .*"
    )
    with pytest.raises(ValueError, match=message):
        relbo.load(out, lambda: make_pair(4))
    with pytest.raises(ValueError, match=r"make_pair must return a relbo.Pair, got int\."):
        relbo.load(out, lambda: 3)
    with pytest.raises(ValueError, match="must be best or last, got 'worst'"):
        relbo.load(out, make_pair, which="worst")
    with pytest.raises(FileNotFoundError, match=r"nothing is not a run directory: expected the file .*run\.json"):
        relbo.load(tmp_path / "nothing", make_pair)
    write_sealed(tmp_path / "run.json", Description("name", "0", {}, None)._asdict())
    with pytest.raises(FileNotFoundError, match="has no checkpoint yet"):
        relbo.load(tmp_path, make_pair)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="expected the description of a run"):
        relbo.load(tmp_path, make_pair)
