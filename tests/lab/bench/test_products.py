"""The products of a step, counted by hand, and what is read out of a compiled program."""

import jax
import jax.numpy as jnp
import pytest

import relbo
from relbo.lab.bench import profile
from relbo.lab.bench.products import Product, forward, products
from relbo.lab.bench.steps import Setting, train_step, vrs

SETTING = Setting(layers=(20, 10), batch_size=5, num_samples=2, num_proposals=6)


def test_products_of_a_step_without_late_draws():
    # two layers of p and one of q for each of 30 proposals, q's first layer once for each of 5 images; as many for
    # the weights
    assert sorted(products(SETTING, num_evaluated=30.0, acceptance=0.9)) == sorted(
        [Product(30, 20, 784), Product(30, 10, 20), Product(30, 20, 10), Product(5, 784, 20)]
        + [Product(784, 30, 20), Product(20, 30, 10), Product(10, 30, 20), Product(20, 5, 784)]
    )


def test_late_proposals_are_evaluated_once_and_the_accepted_ones_again():
    more = set(products(SETTING, num_evaluated=40.0, acceptance=0.5)) - set(products(SETTING, 30.0, 0.5))
    # 10 proposals forwards, 5 accepted ones forwards and backwards
    assert {Product(10, 20, 784), Product(10, 10, 20), Product(10, 20, 10)} <= more
    assert {Product(5, 20, 784), Product(784, 5, 20), Product(5, 10, 20), Product(20, 5, 10)} <= more


def test_forward_products_of_an_evaluation():
    assert forward(SETTING, 100) == [
        Product(500, 20, 784),
        Product(5, 784, 20),
        Product(500, 10, 20),
        Product(500, 20, 10),
    ]


TEXT = """HloModule m
%body (p: (s32[], f32[3,4])) -> (s32[], f32[3,4]) {
  %p = (s32[], f32[3,4]) parameter(0)
  %a = f32[3,4]{1,0} fusion(%p), kind=kLoop, metadata={op_name="jit(chunk)/while/body/optimizer/mul"}
  %b = f32[3,4]{1,0} dot(%a, %a), metadata={op_name="jit(chunk)/while/body/jit(step)/jvp(score)/dot_general"}
  ROOT %t = (s32[], f32[3,4]) tuple(%b)
}

ENTRY %main (p: f32[3,4]) -> f32[3,4] {
  %w = (s32[], f32[3,4]) while(%p), condition=%c, body=%body
}
"""


def test_instructions_are_told_apart_by_where_they_were_written():
    found = profile.instructions(TEXT)
    assert set(found) == {"a", "b"}
    assert found["a"] == (profile.SCOPES["optimizer"], False, "f32[3,4]")
    assert found["b"] == (profile.SCOPES["score"], True, "f32[3,4]")
    assert profile.num_instructions(TEXT) == 4


@pytest.mark.slow
def test_instructions_of_the_trainers_loop():
    # 300 to 316 on two cores when it was written: time in XLA's loops follows their number
    pair = relbo.sbn(jax.random.key(0), (200,), jnp.full(784, 0.3))
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        with jax.numpy_dtype_promotion("standard"):
            step = train_step(pair, vrs(Setting()), jnp.zeros((100, 784)), 50)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    assert 200 < profile.num_instructions(step.text) <= 360
