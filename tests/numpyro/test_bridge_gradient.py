"""Expected gradients against enumeration.

Every test takes the mean of many estimates and asks for |z| < 6 in some 15 correlated numbers: a false-failure rate
of 15 * 2e-9 = 3e-8 a test, over the choice of seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_programs as programs
import pytest
from helpers import assert_trees_close
from numpyro.infer.autoguide import AutoBNAFNormal, AutoMultivariateNormal, AutoNormal

import relbo
from relbo import exact
from relbo.numpyro import RLOO, RWS, VIMCO, EstimatorELBO, ResampledELBO

MAX_Z = 6.0
NUM_KEYS = 4_000


def estimates(loss, params, model, guide, num_keys, **kwargs):
    """Losses and gradients over many keys."""

    def one(key):
        return jax.value_and_grad(lambda p: loss.loss(key, p, model, guide, programs.X, **kwargs))(params)

    return programs.quick(jax.vmap(one))(jax.random.split(jax.random.key(7), num_keys))


def assert_mean(samples, expected):
    """Every component of the sample mean lies within its standard error of what is expected."""
    for actual, wanted in zip(jax.tree.leaves(samples), jax.tree.leaves(expected), strict=True):
        error = np.std(actual, axis=0) / np.sqrt(len(actual))
        z = (np.mean(actual, axis=0) - wanted) / np.maximum(error, 1e-12)
        assert np.abs(z).max() < MAX_Z, (z, np.mean(actual, axis=0), wanted)


T = 0.5
CASES = {
    "vrs": (ResampledELBO(threshold=T, num_samples=2), lambda p: programs.exact_total(exact.r_elbo, p, T)),
    "vrs-hard": (
        ResampledELBO(threshold=T, num_samples=3, acceptance=relbo.Hard()),
        lambda p: programs.exact_total(exact.r_elbo, p, T, relbo.Hard()),
    ),
    "vimco": (VIMCO(3), lambda p: programs.exact_total(exact.iwae, p, 3)),
    "rloo": (RLOO(2), lambda p: programs.exact_total(exact.elbo, p)),
    "rws": (RWS(3), lambda p: programs.exact_total(exact.iwae, p, 3)),
}


@pytest.mark.parametrize("subsample_size", [pytest.param(None, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "vrs-hard" else ()) for name in CASES]
)
def test_expected_gradient_is_exact(name, subsample_size):
    loss, bound = CASES[name]
    losses, grads = estimates(
        loss, programs.PARAMS, programs.model, programs.guide, NUM_KEYS, subsample_size=subsample_size
    )
    value, gradient = programs.quick(jax.value_and_grad(bound))(programs.PARAMS)
    if name == "rws":
        gradient = programs.wake_gradient(programs.PARAMS, 3)
    assert_mean(losses, -value)
    assert_mean(grads, jax.tree.map(jnp.negative, gradient))


@pytest.mark.parametrize(
    ("loss", "bound"),
    [
        pytest.param(
            ResampledELBO(threshold=T, num_samples=2, num_shared=2),
            lambda p: programs.exact_shared(exact.r_elbo, p, T),
            marks=pytest.mark.slow,
        ),
        (VIMCO(2, num_shared=3), lambda p: programs.exact_shared(exact.iwae, p, 2)),
    ],
    ids=["vrs", "vimco"],
)
def test_expected_gradient_with_a_discrete_shared_latent(loss, bound):
    losses, grads = estimates(
        loss,
        programs.SHARED_PARAMS,
        programs.shared_model,
        programs.shared_guide,
        NUM_KEYS,
        subsample_size=2,
    )
    value, gradient = programs.quick(jax.value_and_grad(bound))(programs.SHARED_PARAMS)
    assert_mean(losses, -value)
    assert_mean(grads, jax.tree.map(jnp.negative, gradient))


@pytest.mark.slow
def test_expected_gradient_with_a_reparameterised_shared_latent():
    # far in the tail of the shared latent a row is accepted rarely, but it must be waited for
    loss = ResampledELBO(threshold=T, num_samples=2, max_rounds=1_000_000)
    losses, grads = estimates(
        loss, programs.MOVED_PARAMS, programs.moved_model, programs.moved_guide, NUM_KEYS, subsample_size=2
    )
    value, gradient = programs.quick(jax.value_and_grad(lambda p: programs.exact_moved(exact.r_elbo, p, T)))(
        programs.MOVED_PARAMS
    )
    assert_mean(losses, -value)
    assert_mean(grads, jax.tree.map(jnp.negative, gradient))


@pytest.mark.parametrize(
    ("estimator", "num_samples"),
    [pytest.param(relbo.estimators.Pathwise(2), 1, marks=pytest.mark.slow), (relbo.estimators.DReG(2), 2)],
    ids=["pathwise", "dreg"],
)
def test_expected_gradient_along_the_path_of_local_and_shared_latents(estimator, num_samples):
    losses, grads = estimates(
        EstimatorELBO(estimator),
        programs.PATH_PARAMS,
        programs.path_model,
        programs.path_guide,
        NUM_KEYS,
        subsample_size=2,
    )
    bound = programs.quick(jax.value_and_grad(lambda p: programs.exact_path(p, num_samples)))
    value, gradient = bound(programs.PATH_PARAMS)
    assert_mean(losses, -value)
    assert_mean(grads, jax.tree.map(jnp.negative, gradient))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AutoNormal, AutoMultivariateNormal, AutoBNAFNormal])
def test_along_the_path_of_an_autoguide_it_is_the_elbo_of_numpyro(kind):
    def model(x):
        g = numpyro.sample("g", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("x", dist.Normal(g[0] * g[1] + x, 1.0), obs=0.5 * x)

    guide = kind(model)
    svi = numpyro.infer.SVI(model, guide, numpyro.optim.Adam(0.01), numpyro.infer.Trace_ELBO())
    params = svi.get_params(svi.init(jax.random.key(0), programs.X))
    ours = estimates(EstimatorELBO(relbo.estimators.Pathwise(1)), params, model, guide, NUM_KEYS)
    theirs = estimates(numpyro.infer.Trace_ELBO(), params, model, guide, NUM_KEYS)
    differences = jax.tree.map(jnp.subtract, ours, theirs)
    assert_mean(differences, jax.tree.map(lambda d: jnp.zeros(d.shape[1:]), differences))


@pytest.mark.slow
def test_without_rejection_it_is_the_elbo_of_numpyro():
    num_samples = 3
    ours = estimates(
        ResampledELBO(threshold=float("inf"), num_samples=num_samples),
        programs.PARAMS,
        programs.model,
        programs.guide,
        NUM_KEYS,
    )
    graph = numpyro.infer.TraceGraph_ELBO(num_particles=num_samples)
    theirs = estimates(graph, programs.PARAMS, programs.model, programs.guide, NUM_KEYS)
    assert_mean(jax.tree.map(jnp.subtract, ours[1], theirs[1]), jax.tree.map(jnp.zeros_like, programs.PARAMS))
    plain = estimates(numpyro.infer.Trace_ELBO(), programs.PARAMS, programs.model, programs.guide, NUM_KEYS)
    assert_mean(ours[0] - plain[0], jnp.zeros(()))


@pytest.mark.slow
def test_without_rejection_it_is_rloo():
    key = jax.random.key(3)

    def gradient(loss):
        value = jax.grad(lambda p: loss.loss(key, p, programs.model, programs.guide, programs.X))
        return programs.quick(value)(programs.PARAMS)

    always = EstimatorELBO(relbo.VRS(2, threshold=relbo.Fixed(0.0), acceptance=relbo.Always()))
    infinite = ResampledELBO(threshold=float("inf"), num_samples=2)
    expected = gradient(RLOO(2))
    for loss in (always, infinite):
        assert_trees_close(gradient(loss), expected, rtol=1e-12)
