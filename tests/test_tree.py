import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo._tree import attach_gradient, tree_add, tree_scale


def test_value_and_gradient_are_what_was_attached():
    params = {"a": jnp.arange(3.0), "b": (jnp.array(2.0), jnp.array(1)), "c": jnp.ones((2, 2))}
    grads = {"a": jnp.array([1.0, -2.0, 0.5]), "b": (jnp.array(7.0), None), "c": jnp.full((2, 2), 3.0)}

    def loss(floats):
        moved = {**params, "a": jnp.exp(floats["a"]), "c": floats["c"]}
        return attach_gradient(jnp.sum(floats["a"]), grads, moved)

    floats = {"a": params["a"], "c": params["c"]}
    value, gradient = jax.value_and_grad(loss)(floats)
    assert value == 3.0
    # the chain rule goes on from the parameters; the value's own dependence on them does not count
    np.testing.assert_allclose(gradient["a"], grads["a"] * jnp.exp(params["a"]))
    np.testing.assert_array_equal(gradient["c"], grads["c"])
    forward = jax.jacfwd(loss)(floats)
    jax.tree.map(np.testing.assert_array_equal, forward, gradient)


def test_structures_must_agree():
    with pytest.raises(ValueError, match="got 1 leaves for 2"):
        attach_gradient(jnp.zeros(()), (jnp.zeros(2),), (jnp.zeros(2), jnp.zeros(2)))


def test_trees_add_up_and_scale():
    assert tree_add({"a": jnp.array(1.0), "b": None}, {"a": jnp.array(2.0), "b": None}) == {"a": 3.0, "b": None}
    assert tree_add((None,), (jnp.array(2.0),)) == (2.0,)
    assert tree_scale({"a": jnp.array(1.5)}, 2) == {"a": 3.0}
