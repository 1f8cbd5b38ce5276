"""Lane plans: a round serves those who miss draws, in order, and nobody beyond what is allowed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from relbo.lanes import OVERDRAW, columns, missing_places, place_of, running_sum, widths_for

CAP, WIDTHS = 60, (8, 32, 64)


@functools.partial(jax.jit, static_argnums=2)
def plan(missing, drawn, widths):
    lanes, chosen = missing_places(missing, drawn, jnp.full(missing.shape, CAP, jnp.int32), widths)
    return lanes, chosen, lanes.live()


def cases(num_cases=40, num_rows=10):
    """Rows that miss nothing, some or much, and have drawn as many as they may, or fewer."""
    random = np.random.default_rng(0)
    for case in range(num_cases):
        missing = random.integers(0, 2 + case % 7, num_rows)
        drawn = random.integers(0, CAP + 1, num_rows) if case % 2 else random.integers(4, 9, num_rows)
        yield np.where(drawn < CAP, missing, 0), drawn


def wish_of(missing, drawn):
    """What each row asks for, by the definition in the docstring."""
    wish = np.maximum(missing, (OVERDRAW * drawn.astype(np.float32)).astype(int))
    return np.where(missing > 0, np.minimum(wish, CAP - drawn), 0)


@pytest.mark.parametrize("widths", [WIDTHS, (1,)], ids=["three widths", "one lane"])
def test_missing_places(widths):
    for missing, drawn in cases():
        lanes, chosen, live = plan(jnp.asarray(missing, jnp.int32), jnp.asarray(drawn, jnp.int32), widths)
        wish, width = wish_of(missing, drawn), widths[int(chosen)]
        served, start = np.asarray(lanes.served), np.asarray(lanes.start)
        assert int(lanes.num_evaluated) == width
        assert width == max([w for w in widths if w <= wish.sum()], default=widths[0]), "the greatest that is filled"
        assert (served <= wish).all() and served.sum() == min(wish.sum(), width)
        assert (drawn + served <= CAP).all() and not served[missing == 0].any()
        partly = served < wish
        if partly.any():  # rows that have drawn least come first
            assert drawn[served > 0].max(initial=0) <= drawn[partly].min()
        # a row's lanes lie side by side and ask for its next places
        owner = np.full(widths[-1], -1)
        for row in range(len(missing)):
            mine = slice(start[row], start[row] + served[row])
            np.testing.assert_array_equal(lanes.row[mine], row)
            np.testing.assert_array_equal(lanes.position[mine], drawn[row] + np.arange(served[row]))
            assert (owner[mine] == -1).all()
            owner[mine] = row
        np.testing.assert_array_equal(live, owner >= 0)


def test_columns():
    missing, drawn = jnp.asarray([2, 0, 1], jnp.int32), jnp.asarray([7, 3, 7], jnp.int32)
    lanes, positions = columns(missing, drawn, jnp.full(3, 9, jnp.int32), 4)
    np.testing.assert_array_equal(positions, [7, 8, 9, 10])
    np.testing.assert_array_equal(lanes.row, np.repeat([0, 1, 2], 4))
    np.testing.assert_array_equal(lanes.position, np.tile([7, 8, 9, 10], 3))
    np.testing.assert_array_equal(lanes.served, [2, 0, 2])  # nobody beyond 9 proposals, nobody who misses nothing
    np.testing.assert_array_equal(lanes.live(), [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0])
    assert int(lanes.num_evaluated) == 12, "what nobody asked for is evaluated too"


@pytest.mark.parametrize("size", [1, 7, 256, 257, 1000])
def test_running_sums_and_places(size):
    # by comparison with all where they are few, by the usual algorithms where they are many
    v = np.random.default_rng(size).integers(0, 3, size)
    steps = running_sum(jnp.asarray(v, jnp.int32))
    assert steps.dtype == jnp.int32
    np.testing.assert_array_equal(steps, np.cumsum(v))
    value = np.arange(-1, v.sum() + 2).reshape(1, -1)
    for side in ("left", "right"):
        got = place_of(jnp.asarray(value, jnp.int32), steps, side=side)
        np.testing.assert_array_equal(got, np.searchsorted(np.cumsum(v), value, side=side))


def test_widths_grow_with_the_batch_and_are_never_too_narrow():
    assert widths_for(50, 5) == (15, 62)
    assert widths_for(1, 1) == (8, 32)
    for num_rows, num_samples in [(1, 2), (20, 2), (128, 2), (1000, 25)]:
        widths = widths_for(num_rows, num_samples)
        assert list(widths) == sorted(set(widths)) and widths[0] >= 8
