import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_trees_close, coefficients_of, expected_gradient, table_pair

import relbo
from relbo import exact


@pytest.mark.parametrize("num_samples", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (2, 5))])
def test_expected_gradient_is_exact(num_samples):
    pair, x, support = table_pair(1), jnp.asarray(0), jnp.arange(4)
    log_q = exact.log_proposal(pair.proposal, x, support)
    got = expected_gradient(relbo.RLOO(num_samples), pair, x, support, log_q, num_samples)
    assert_trees_close(got, exact.gradient(exact.elbo, pair, x, support))


def test_coefficients_by_hand():
    # (f_k - mean of the others) / K, by its definition
    f = jnp.asarray([[1.0, 4.0, 10.0]])
    model, proposal, bound = coefficients_of(relbo.RLOO(3), f)
    others = np.array([7.0, 5.5, 2.5])
    np.testing.assert_allclose(proposal[0], (np.asarray(f[0]) - others) / 3, rtol=1e-14)
    np.testing.assert_allclose(model, np.full((1, 3), 1 / 3), rtol=1e-14)
    np.testing.assert_allclose(bound, [5.0], rtol=1e-14)
