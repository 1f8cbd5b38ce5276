"""Adam against Optax's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from relbo.train import optimizers
from relbo.train.adam import adam


@pytest.mark.parametrize("rate", [3e-2, optax.linear_schedule(1e-1, 1e-3, 4)], ids=["number", "schedule"])
def test_steps_and_state_are_those_of_optax(rate):
    start = {"weights": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.zeros(3, jnp.float32)}

    def run(optimizer):
        params, state = start, optimizer.init(start)
        for i in range(6):
            grads = jax.tree.map(lambda p, i=i: jnp.sin(3 * p + i) * 10.0**-i, params)
            updates, state = optimizer.update(grads, state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    with jax.numpy_dtype_promotion("standard"):  # Optax raises floats to integer powers
        got, want = (jax.jit(lambda make=make: run(make(rate, b1=0.8, b2=0.9)))() for make in (adam, optax.adam))
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        rtol, atol = (1e-12, 1e-15) if a.dtype == jnp.float64 else (1e-5, 1e-8)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def test_adam_by_its_name_is_this_one_unless_more_is_asked(monkeypatch):
    made = []
    monkeypatch.setattr(optimizers, "adam", lambda **settings: made.append({*settings}) or optax.sgd(1.0))
    optimizers.named_optimizer("adam", 0.1, b1=0.8)
    optimizers.named_optimizer("adam", 0.1, nesterov=True)
    assert made and all(names == {"learning_rate", "b1"} for names in made)
