"""The gradient from the accept test's own evaluation against the one from a second evaluation of what is used."""

import equinox as eqx
import jax
import numpy as np
import pytest
from helpers import Together, assert_trees_close, draw_and_estimate, small_batch, small_sbn

import relbo
from relbo.view import view_of

CASES = {
    "late": (relbo.VRS(3, relbo.Fixed(0.0)), 12),  # most draws are late: several blocks
    "budget": (relbo.VRS(2, relbo.Fixed(2.0), num_proposals=5), 6),
    "wake": (relbo.VRSWake(2, relbo.Fixed(0.0)), 3),
    "raw": (relbo.VRSRaw(2, relbo.Fixed(0.0), num_proposals=3), 3),
    "exhausted": (relbo.VRS(2, relbo.Fixed(5.0), max_rounds=3), 12),
}
FAST = {("budget", "rows")}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=[] if (name, kind) in FAST else pytest.mark.slow)
        for name in CASES
        for kind in ("rows", "together")
    ],
)
def test_same_gradient_as_a_second_evaluation(name, kind):
    estimator, rows = CASES[name]
    pair, batch = small_sbn()[0], small_batch(rows)
    pair = pair if kind == "rows" else Together(pair)
    state = estimator.init(jax.random.key(0), pair, rows)

    @eqx.filter_jit
    def run(key, pair):
        draws, weights, grads, info = draw_and_estimate(estimator, key, pair, state, batch)
        return grads, view_of(pair, batch.x).scored(draws.z)[1](weights), info

    grads, again, info = run(jax.random.key(5), pair)
    assert int(info.num_proposals.max()) > estimator.num_proposals, "some draws are late"
    if name == "exhausted":
        assert 0 < int(np.sum(info.extra.exhausted)) < rows, "some rows ran out, some did not"
    assert_trees_close(grads, again, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_program_for_all_rows_is_the_pair_row_by_row(name):
    # on the same streams only the schedule of the late rounds differs, and no draw depends on it
    estimator, rows = CASES[name]
    pair, batch = small_sbn()[0], small_batch(rows)
    results = []
    for each in (pair, Together(pair)):
        state = estimator.init(jax.random.key(0), each, rows)
        grads, _, info = eqx.filter_jit(estimator.estimate)(jax.random.key(5), each, state, batch)
        results.append((jax.tree.leaves(grads), info))
    (ours, info), (theirs, other) = results
    assert_trees_close(ours, theirs, rtol=1e-10)
    np.testing.assert_allclose(info.bound, other.bound, rtol=1e-12)
    np.testing.assert_array_equal(info.num_proposals, other.num_proposals)
    np.testing.assert_array_equal(info.extra.num_used, other.extra.num_used)
