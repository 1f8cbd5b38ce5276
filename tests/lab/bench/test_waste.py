"""Counts, not times: what must not creep back into the sampler and the step."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest

import relbo
from relbo.lab.bench import waste
from relbo.train.loop import epoch_order, init_state, make_chunk


@pytest.mark.parametrize("name", waste.RATES)
def test_few_proposals_are_wasted(name):
    # 12 batches of 50 rows: at rate 0.01 the ratio has a standard error below 0.002
    assert waste.measure(waste.RATES[name], num_batches=12) <= 1.15


def test_matrix_products_and_callbacks_of_the_compiled_step():
    # a layer of p and q: first round, two round widths, one late block; forward and backward
    pair = relbo.sbn(jax.random.key(0), (20,), jnp.full(30, 0.3))
    estimator, optimizer = relbo.VRS(5, relbo.Fixed(0.0)), optax.adam(1e-3)
    state = init_state(jax.random.key(1), pair, estimator, optimizer, 100)
    chunk = make_chunk(estimator, optimizer, lambda key, rows: rows, 10)
    zero = jnp.zeros((), jnp.int32)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
        lowered = chunk.lower(state, jnp.zeros((100, 30)), epoch_order(state.key, 0, 100), zero, zero)
    text = lowered.lowered.as_text()
    # sampler: q once, p in the first round and in two widths; the gradient's first round: p, q and their weights,
    # of which the compiler shares the forward products with the sampler; a block: the same four
    # sums are products with a vector, and weights are handed on by one with the identity, neither of which count
    operands = re.findall(r"stablehlo\.dot_general.*: (\(tensor<\d+x\d+x.*>, tensor<\d+x\d+x.*>\) -> .*)", text)
    products = [line for line in operands if re.search(r"(?<!\d)20x", line) and re.search(r"(?<!\d)30x", line)]
    assert len(products) == 4 + 4 + 4, products
    assert "callback" not in text, "a program that calls back cannot be cached"
