"""Which rows a program has, and that their log densities are those of the hand-written model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_programs as programs
import pytest
from helpers import assert_trees_close

import relbo
from relbo.numpyro import RLOO, VIMCO, EstimatorELBO, ResampledELBO
from relbo.numpyro.pair import build_batch, build_pair
from relbo.numpyro.program import Program


def program_pair(model=programs.model, guide=programs.guide, params=programs.PARAMS, plate=None, **kwargs):
    program = Program(model, guide, (programs.X,), kwargs, jax.random.key(0), params, plate)
    return program, build_pair(program, params, {}, 1)


def rows_of(program):
    return build_batch(program, 1).x


def test_every_row_is_the_hand_written_model():
    # log densities of all states, and the gradient of any weighing of them by parameter name
    hand_written = programs.row_pair(programs.PARAMS)
    z = jnp.tile(programs.STATES, (len(programs.X), 1))
    weights = jax.random.normal(jax.random.key(1), (2, *z.shape))

    def both():
        program, pair = program_pair()
        ours, ours_back = jax.vjp(lambda p: p.log_densities(rows_of(program), {"z": z}), pair)

        def by_hand(p):
            one = jax.vmap(lambda x, zs: jax.vmap(lambda v: (p.model.log_joint(x, v), p.proposal.log_prob(v, x)))(zs))
            return one(programs.X, z)

        theirs, theirs_back = jax.vjp(by_hand, hand_written)
        (gradient,), (wanted,) = ours_back(tuple(weights)), theirs_back(tuple(weights))
        return (ours, gradient.params), (theirs, jax.tree.map(jnp.add, wanted.model.params, wanted.proposal.params))

    assert_trees_close(*programs.quick(both)(), rtol=1e-12)


def test_a_draw_is_that_of_its_position():
    # whatever else is asked for: the sampler and estimators without it share their proposals
    program, pair = program_pair()
    x, key = rows_of(program), jax.random.key(4)
    together = pair.draw(key, x, jnp.arange(5))["z"]
    np.testing.assert_array_equal(pair.draw(key, x, jnp.asarray([3, 1]))["z"], together[:, jnp.asarray([3, 1])])
    assert len({tuple(row) for row in np.asarray(together)}) > 1, "rows have draws of their own"


def test_subsampling_keeps_the_rows_of_the_plate_and_leaves_out_its_scale():
    program, pair = program_pair(subsample_size=2)
    assert program.layout.plate == "data" and program.layout.num_rows == 2 and program.layout.num_data == 4
    batch = build_batch(program, 1)
    np.testing.assert_array_equal(batch.index, program.plates["data"])
    np.testing.assert_array_equal(batch.x.observed["x"], programs.X[batch.index])
    z = jnp.array([1, 2])
    actual = pair.log_densities(batch.x, {"z": z[:, None]})[0][:, 0]
    expected = jax.vmap(programs.RowModel(programs.PARAMS).log_joint)(programs.X[batch.index], z)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_latents_that_reach_beyond_their_plate_make_the_program_one_row():
    def model(x):
        with numpyro.plate("data", 4):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
        numpyro.sample("total", dist.Normal(jnp.sum(z).astype(x.dtype), 1.0), obs=2.0)

    def guide(x):
        with numpyro.plate("data", 4):
            numpyro.sample("z", dist.Bernoulli(numpyro.param("p", 0.4)))

    program, pair = program_pair(model, guide, {"p": jnp.array(0.4)})
    assert program.layout.plate is None and program.layout.num_rows == 1
    z = jnp.array([1, 0, 1, 1])
    log_p = pair.log_densities(rows_of(program), {"z": z[None, None]})[0][0, 0]
    np.testing.assert_allclose(log_p, 4 * np.log(0.5) + dist.Normal(3.0, 1.0).log_prob(2.0), rtol=1e-10)


@pytest.mark.slow
def test_nested_plates_are_summed_into_their_row():
    def model(x):
        with numpyro.plate("documents", 4, dim=-2):
            topic = numpyro.sample("topic", dist.Bernoulli(0.3))
            with numpyro.plate("words", 3, dim=-1):
                word = numpyro.sample("word", dist.Bernoulli(0.2 + 0.5 * topic))
                numpyro.sample("x", dist.Normal(word.astype(x.dtype), 1.0), obs=jnp.zeros((4, 3)))

    def guide(x):
        with numpyro.plate("documents", 4, dim=-2):
            numpyro.sample("topic", dist.Bernoulli(0.5))
            with numpyro.plate("words", 3, dim=-1):
                numpyro.sample("word", dist.Bernoulli(0.5))

    program, pair = program_pair(model, guide, {})
    assert program.layout.plate == "documents" and set(program.layout.local) == {"topic", "word"}
    rows = rows_of(program)
    z = pair.draw(jax.random.key(0), rows, jnp.arange(5))
    assert jax.tree.map(jnp.shape, z) == {"topic": (4, 5, 1), "word": (4, 5, 3)}
    topic, word = z["topic"][..., 0], z["word"]
    expected = dist.Bernoulli(0.3).log_prob(topic)
    expected += jnp.sum(dist.Bernoulli(0.2 + 0.5 * topic[..., None]).log_prob(word), axis=-1)
    expected += jnp.sum(dist.Normal(0.0, 1.0).log_prob(word.astype(float)), axis=-1)
    log_p, log_q = pair.log_densities(rows, z)
    np.testing.assert_allclose(log_p, expected, rtol=1e-10)
    np.testing.assert_allclose(log_q, 4 * np.log(0.5), rtol=1e-10)


def test_scale_handlers_weigh_the_objective_but_not_the_score():
    scaled_model = numpyro.handlers.scale(programs.model, scale=0.3)
    scaled_guide = numpyro.handlers.scale(programs.guide, scale=0.3)
    _, pair = program_pair(scaled_model, scaled_guide)
    program, plain = program_pair()
    rows, z = rows_of(program), {"z": jnp.array([[0], [1], [2], [1]])}
    log_p, log_q = plain.log_densities(rows, z)
    scaled_p, scaled_q = pair.log_densities(rows, z)
    np.testing.assert_allclose(scaled_q, log_q, rtol=1e-12)
    np.testing.assert_allclose(scaled_p - scaled_q, 0.3 * (log_p - log_q), rtol=1e-10)


def test_latents_in_plates_apart_make_the_program_one_row_with_a_note(caplog):
    program, pair = program_pair(two_plates, two_plates, {})
    assert program.layout.plate is None and "do not share one, ['items', 'users']" in program.layout.note
    z = {"u": jnp.array([1, 0]), "v": jnp.array([1, 1, 0])}
    log_p, log_q = pair.log_densities(rows_of(program), jax.tree.map(lambda v: v[None, None], z))
    np.testing.assert_allclose(log_p, 5 * np.log(0.5), rtol=1e-10)
    np.testing.assert_allclose(log_q, 5 * np.log(0.5), rtol=1e-10)
    loss = RLOO(2)
    for _ in range(2):
        jax.eval_shape(lambda key: loss.loss(key, {}, two_plates, two_plates, programs.X), jax.random.key(0))
    assert caplog.text.count("weighed as one row") == 1
    assert program_pair(two_plates, two_plates, {}, plate="users")[0].layout.plate == "users"


def no_latents(x):
    numpyro.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1), obs=x)


def two_plates(x):
    with numpyro.plate("users", 2):
        numpyro.sample("u", dist.Bernoulli(0.5))
    with numpyro.plate("items", 3):
        numpyro.sample("v", dist.Bernoulli(0.5))


REFUSALS = {
    "unknown plate": (VIMCO(2, plate="rows"), programs.model, programs.guide, "one of \\['data'\\], got 'rows'"),
    "missing latent": (VIMCO(2), programs.shared_model, programs.guide, "\\['shift'\\] are only in the model"),
    "extra latent": (VIMCO(2), programs.model, programs.shared_guide, "\\['shift'\\] are only in the guide"),
    "nothing to draw": (VIMCO(2), no_latents, lambda x: None, "must have a random latent"),
    "no baseline": (VIMCO(2), programs.shared_model, programs.shared_guide, "num_shared must be at least 2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    loss, model, guide, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        loss.loss(jax.random.key(0), programs.SHARED_PARAMS, model, guide, programs.X)


def test_bad_settings():
    for call, message in [
        (lambda: RLOO(2, num_shared=0), "num_shared must be an integer >= 1, got 0"),
        (lambda: ResampledELBO(threshold=0.9, rate=0.5), "threshold= or by rate=, not by both"),
        (lambda: VIMCO(1), "num_samples must be an integer >= 2, got 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


def test_an_estimator_that_needs_more_than_a_guide_is_refused_by_name():
    class Needy(relbo.RLOO):
        needs = relbo.Needs.BITS

    with pytest.raises(ValueError, match="Needy needs Bernoulli layers"):
        loss = EstimatorELBO(Needy(2))
        loss.loss(jax.random.key(0), programs.PARAMS, programs.model, programs.guide, programs.X)
