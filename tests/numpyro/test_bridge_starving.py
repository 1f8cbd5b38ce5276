"""Programs on which rejection is hard train with the defaults, and what happens where nothing is accepted is said."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro_programs as programs
import pytest
import scipy.stats
from numpyro.infer import Trace_ELBO

import relbo
from relbo.numpyro import SVI, ResampledELBO
from relbo.thresholds import OnceSettled

_file = Path(__file__).parents[2] / "benchmarks" / "starving.py"
_spec = importlib.util.spec_from_file_location("starving", _file)
starving = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(starving)


def test_a_minibatch_that_moves_log_w_as_a_whole():
    # the likelihood of 20 of 200 rows, times 10, moves by some 20 nats from step to step
    program = starving.subsampled()
    found = starving.train(program, ResampledELBO(2, rate=0.5, warmup=50), 300)
    assert np.isfinite(found.loss) and found.exhausted < 0.01


def small_autoencoder():
    return starving.autoencoder(starving.strokes(300, 8), hidden=40, latent=5, batch=32)


CASES = {
    "subsampled": (starving.subsampled, 2_000, 2.0),
    "groups": (starving.groups, 2_500, 2.0),
    "groups, slowly": (lambda: starving.groups()._replace(lr=0.01), 2_500, 2.0),
    "regression": (starving.regression, 2_000, 0.3),
    "annealed": (starving.annealed, 1_000, 0.5),
    "autoencoder": (small_autoencoder, 1_500, 4.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.5, 0.1])
@pytest.mark.parametrize("name", CASES)
def test_bounds_at_least_as_good_as_those_of_as_many_plain_draws(name, rate):
    # up to the noise of a mean loss over the last fifth of the steps, the last number of each case
    make, num_steps, noise = CASES[name]
    program = make()
    found = starving.train(program, ResampledELBO(program.num_samples, rate=rate), num_steps)
    plain = starving.train(program, Trace_ELBO(program.num_samples), num_steps)
    assert found.exhausted < 0.01
    assert found.loss < plain.loss + noise


def make_svi(**settings):
    loss = ResampledELBO(2, threshold=-60.0, warmup=0, max_rounds=2, **settings)
    return SVI(programs.model, programs.guide, numpyro.optim.Adam(0.01), loss)


def test_rows_that_run_out_are_told_of_at_the_end_of_a_run(caplog):
    result = make_svi().run(jax.random.key(0), 3, programs.X, progress_bar=False)
    assert np.isfinite(result.losses).all()
    told = [record.message for record in caplog.records if "ran out of proposals" in record.message]
    assert len(told) == 1 and told[0].startswith(
        "100.0% of the rows ran out of proposals and took their step at T = +inf"
    )


def test_as_an_error_it_is_one_sentence():
    with pytest.raises(RuntimeError, match=r"^Rejection sampling was exhausted: .*throw=False.*\.$") as error:
        make_svi(throw=True).run(jax.random.key(0), 3, programs.X, progress_bar=False)
    assert "\n" not in str(error.value) and error.value.__cause__ is None
    said = (
        "With the parameters that the run began with: of 1,000 draws of the guide 0 have a density that is NaN, 0 are"
    )
    assert said in str(error.value)


def test_with_many_rows_n_is_so_large_that_few_steps_go_on():
    def go_on(size, rate, rows):
        # by the distribution of the number of acceptances, not by the formula that the code has
        return 1 - (1 - scipy.stats.binom.cdf(1, size, rate)) ** rows

    for num_samples, rate, rows in [(5, 0.5, 85), (5, 0.5, 1), (2, 0.1, 30), (5, 0.9, 10_000)]:
        loss = ResampledELBO(num_samples, rate=rate)
        fewest = loss.estimator.num_proposals
        size = loss.for_rows(loss.estimator, rows).num_proposals
        assert fewest <= size <= 2 * fewest
        assert size == 2 * fewest or go_on(size, rate, rows) < 0.03
        assert size == fewest or go_on(size - 1, rate, rows) > 0.02
    assert ResampledELBO(5, rate=0.5).for_rows(ResampledELBO(5, rate=0.5).estimator, 85).num_proposals == 16
    assert ResampledELBO(5, rate=0.5, num_proposals=10).for_rows is None


def test_what_the_defaults_are():
    loss = ResampledELBO(rate=0.1)
    assert isinstance(loss.estimator, relbo.VRSPath) and isinstance(loss.without_path, relbo.VRS)
    for estimator in (loss.estimator, loss.without_path):
        assert (estimator.num_samples, estimator.num_proposals, estimator.max_rounds) == (2, 50, 500)
        assert estimator.threshold == OnceSettled(relbo.Rate(0.1), first=500) and not estimator.throw
    assert ResampledELBO(rate=0.1, warmup=7).estimator.threshold == relbo.Rate(0.1, warmup=7)
    assert ResampledELBO(4).estimator.num_proposals == 5  # the 0.9 quantile
    assert ResampledELBO(4, rate=lambda step: jnp.asarray(0.5)).estimator.num_proposals == 8
    assert ResampledELBO(4, threshold=3.0).estimator.num_proposals == 4
    mine = relbo.Rate(0.5, warmup=7)
    assert ResampledELBO(threshold=mine).estimator.threshold is mine
    assert isinstance(ResampledELBO(rate=0.5, path=False).estimator, relbo.VRS)
    assert isinstance(ResampledELBO(rate=0.5, acceptance=relbo.Hard()).estimator, relbo.VRS)
    assert ResampledELBO(rate=0.5, path=True).without_path is None
    with pytest.raises(ValueError, match="ResampledELBO: num_samples must be an integer >= 2, got 1"):
        ResampledELBO(1, rate=0.5)
    with pytest.raises(ValueError, match=r"must be smooth .* got Hard\(\)"):
        ResampledELBO(rate=0.5, acceptance=relbo.Hard(), path=True)
