import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, coefficients_of, expected_gradient, table_pair

import relbo
from relbo import exact


@pytest.mark.parametrize("num_samples", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 5))])
def test_expected_gradient_is_exact(num_samples):
    pair, x, support = table_pair(1), jnp.asarray(1), jnp.arange(4)
    log_q = exact.log_proposal(pair.proposal, x, support)
    got = expected_gradient(relbo.VIMCO(num_samples), pair, x, support, log_q, num_samples)
    assert_trees_close(got, exact.gradient(exact.iwae, pair, x, support, num_samples))


def test_coefficients_by_hand():
    # equations 8 to 10 of Mnih and Rezende: w_k replaced by the geometric mean of the others
    w = np.array([1.0, 4.0, 9.0])
    f = jnp.log(jnp.asarray(w))[None]
    model, proposal, bound = coefficients_of(relbo.VIMCO(3), f)
    want = np.log(w.mean())
    without = [np.log((np.sqrt(w.prod() / v) + w.sum() - v) / 3) for v in w]
    np.testing.assert_allclose(bound, [want], rtol=1e-14)
    np.testing.assert_allclose(model[0], w / w.sum(), rtol=1e-14)
    np.testing.assert_allclose(proposal[0], want - np.array(without) - w / w.sum(), rtol=1e-12)


def test_equal_weights_give_no_proposal_credit():
    f = jnp.full((2, 4), -300.0)
    _, proposal, _ = coefficients_of(relbo.VIMCO(4), f)
    np.testing.assert_allclose(proposal, np.full((2, 4), -0.25), rtol=1e-12)
