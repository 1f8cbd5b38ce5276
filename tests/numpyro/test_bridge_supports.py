"""Where p has an edge, where q moves with phi, and where a subsampled plate breaks the bound, against quadrature."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm

import relbo
from relbo.numpyro import EstimatorELBO, ResampledELBO

ROWS, X = 50, 0.8
PARAMS = {"m": jnp.asarray(0.4), "s": jnp.asarray(-0.2)}
NODE, WEIGHT = (jnp.asarray(v) for v in np.polynomial.legendre.leggauss(200))


def uniform_model():
    with numpyro.plate("rows", ROWS):
        z = numpyro.sample("z", dist.Uniform(-1.0, 1.0))
        numpyro.sample("x", dist.Normal(0.7 * z, 1.0), obs=jnp.full(ROWS, X))


def normal_model():
    with numpyro.plate("rows", ROWS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(0.7 * z, 1.0), obs=jnp.full(ROWS, X))


def normal_guide():
    m, s = (numpyro.param(name, value) for name, value in PARAMS.items())
    with numpyro.plate("rows", ROWS):
        numpyro.sample("z", dist.Normal(m, jnp.exp(s)))


def uniform_guide():
    m, s = (numpyro.param(name, value) for name, value in PARAMS.items())
    with numpyro.plate("rows", ROWS):
        numpyro.sample("z", dist.Uniform(m - jnp.exp(s), m + jnp.exp(s)))


def gradients(loss, model, guide, num_estimates):
    """Mean ascent gradient in (m, s) for a row, and its standard error."""
    state = loss.init_state(jax.random.key(0), PARAMS, model, guide)

    def one(key):
        def value(params):
            values = {**params, "relbo$state": state}
            return loss.loss_with_mutable_state(key, values, model, guide)["loss"]

        found = jax.grad(value)(PARAMS)
        return -jnp.stack([found["m"], found["s"]]) / ROWS

    found = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=50))(
        jax.random.split(jax.random.key(1), num_estimates)
    )
    return jnp.mean(found, axis=0), jnp.std(found, axis=0) / num_estimates**0.5


def r_elbo(m, s, t):
    log_p = jnp.log(0.5) + norm.logpdf(X, 0.7 * NODE, 1.0)
    log_q = norm.logpdf(NODE, m, jnp.exp(s))
    log_a = relbo.Soft().log_prob(log_p - log_q + t)
    kept = WEIGHT * jnp.exp(log_q + log_a)
    return jnp.sum(kept * (log_p - log_q - log_a)) / jnp.sum(kept) + jnp.log(jnp.sum(kept))


def test_a_guide_beyond_the_model_takes_scores_from_the_first_step(caplog):
    # two entries within 5.5 standard errors: rate 8e-8; along the path they were 60 and 190 away
    loss = ResampledELBO(2, threshold=1.0, num_proposals=4, warmup=0)
    mean, error = gradients(loss, uniform_model, normal_guide, 600)
    wanted = jnp.stack(jax.grad(r_elbo, (0, 1))(*PARAMS.values(), 1.0))
    assert np.all(np.abs(mean - wanted) < 5.5 * error), (mean, wanted, error)
    assert sum("reach beyond" in record.message for record in caplog.records) == 1
    for estimator in (relbo.DReG(2), relbo.VRSPath(2, 1.0)):
        with pytest.raises(ValueError, match=r"needs a guide with the model's supports: the guide's \['z'\]"):
            EstimatorELBO(estimator).init_state(jax.random.key(0), PARAMS, uniform_model, normal_guide)


def test_a_transformed_guide_keeps_the_path():
    guide = numpyro.infer.autoguide.AutoNormal(uniform_model)
    svi = relbo.numpyro.SVI(uniform_model, guide, numpyro.optim.Adam(0.1), ResampledELBO(2, threshold=1.0, warmup=0))
    assert not bool(svi.init(jax.random.key(0)).mutable_state["relbo$state"].edge)


def elbo_by_quadrature(m, s):
    z = m + jnp.exp(s) * NODE
    return 0.5 * jnp.sum(WEIGHT * (norm.logpdf(z) + norm.logpdf(X, 0.7 * z))) + jnp.log(2.0) + s


def test_of_a_guide_that_moves_only_the_full_derivative_is_taken():
    mean, error = gradients(EstimatorELBO(relbo.Pathwise(1)), normal_model, uniform_guide, 400)
    wanted = jnp.stack(jax.grad(elbo_by_quadrature, (0, 1))(*PARAMS.values()))
    assert np.all(np.abs(mean - wanted) < 5.5 * error), (mean, wanted, error)  # rate 8e-8
    wrong = (relbo.RLOO(2), relbo.VRS(2), relbo.VIMCO(2), relbo.DReG(2), relbo.Pathwise(1, drop_score=True))
    for loss in (*map(EstimatorELBO, wrong), ResampledELBO(2, rate=0.5)):
        with pytest.raises(ValueError, match=r"whose supports stand still, got \['z'\]"):
            loss.init_state(jax.random.key(0), PARAMS, normal_model, uniform_guide)


DATA = jnp.asarray([-2.0, 2.5])


def global_model():
    z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    with numpyro.plate("data", 2, subsample_size=1) as index:
        numpyro.sample("x", dist.Normal(z, 1.0), obs=DATA[index])


def global_guide():
    numpyro.sample("z", dist.Normal(numpyro.param("m", 0.1), jnp.exp(numpyro.param("s", -0.2))))


def test_a_plate_subsampled_inside_a_row_exceeds_log_p_and_says_so(caplog):
    z, t = jnp.linspace(-9, 9, 2001), 3.0
    log_q = norm.logpdf(z, 0.1, jnp.exp(-0.2))

    def of_one(x):
        log_w = norm.logpdf(z) + 2 * norm.logpdf(x, z) - log_q
        log_a = relbo.Soft().log_prob(log_w + t)
        kept = jnp.exp(log_q + log_a)
        return jnp.sum(kept * (log_w - log_a)) / jnp.sum(kept) + jnp.log(jnp.sum(kept) * (z[1] - z[0]))

    exact = jnp.mean(jax.vmap(of_one)(DATA))
    log_p = jax.scipy.stats.multivariate_normal.logpdf(DATA, jnp.zeros(2), jnp.eye(2) + 1)
    assert exact > log_p + 0.5, "no lower bound"
    loss = EstimatorELBO(relbo.VRS(2, t, num_proposals=64))
    params = {"m": jnp.asarray(0.1), "s": jnp.asarray(-0.2)}
    keys = jax.random.split(jax.random.key(0), 2_000)
    found = jax.jit(jax.vmap(lambda key: loss.loss(key, params, global_model, global_guide)))(keys)
    assert abs(-jnp.mean(found) - exact) < 5.5 * jnp.std(found) / 2_000**0.5  # rate 4e-8
    EstimatorELBO(relbo.RLOO(2)).loss(keys[0], params, global_model, global_guide)  # linear, hence a bound
    assert sum("may exceed it" in record.message for record in caplog.records) == 1


def inner_model():
    with numpyro.plate("rows", 3):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        with numpyro.plate("pixels", 4, subsample_size=2, dim=-2):
            numpyro.sample("x", dist.Normal(z, 1.0), obs=jnp.ones((2, 3)))


def inner_guide():
    with numpyro.plate("rows", 3):
        numpyro.sample("z", dist.Normal(numpyro.param("m", 0.1), 1.0))


@pytest.mark.parametrize("estimator, words", [(relbo.VIMCO(2), 1), (relbo.RLOO(2), 0)], ids=["VIMCO", "RLOO"])
def test_a_plate_subsampled_inside_of_the_rows_says_so_too(caplog, estimator, words):
    EstimatorELBO(estimator).loss(jax.random.key(0), {"m": jnp.asarray(0.1)}, inner_model, inner_guide)
    assert sum("['pixels'] are subsampled inside" in record.message for record in caplog.records) == words
