"""Rows that meet in one run of a function."""

import jax
import jax.numpy as jnp
from helpers import assert_trees_close

from relbo.rows import ROWS, for_all_rows

W = jnp.array([0.4, -1.1])
Z = jnp.arange(10.0).reshape(5, 2) / 7


def together(w, z):
    return jnp.sum(jnp.tanh(z * w[None]) * z[:, ::-1], axis=1)


def by_row(w, z):
    return jax.vmap(
        lambda own: jax.value_and_grad(lambda v: for_all_rows(lambda a: together(w, a), v))(own), axis_name=ROWS
    )(z)


def at_once(w, z):
    return together(w, z), jax.grad(lambda a: jnp.sum(together(w, a)))(z)


def test_each_row_has_its_own_value_and_derivative():
    assert_trees_close(by_row(W, Z), at_once(W, Z), rtol=1e-12)


def test_derivatives_of_derivatives():
    def square(function):
        return jax.grad(lambda w: jnp.sum(jnp.square(function(w, Z)[1])))

    assert_trees_close(square(by_row)(W), square(at_once)(W), rtol=1e-12)


def test_the_function_runs_once_for_all_rows():
    sizes = [v.aval.size for eqn in jax.make_jaxpr(by_row)(W, Z).eqns for v in eqn.outvars]
    assert max(sizes) == Z.size, "each row ran the function, or its transpose, for all rows"
