"""Calibration of pairs whose posterior is known: right draws pass, wrong ones do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import table_pair

import relbo
from relbo import exact
from relbo.calibration import Calibration, calibrate
from relbo.calibration.ranks import MOST_NUMBERS, among, numbers_of, ranks_at
from relbo.calibration.simulate import EXACT


@pytest.fixture(scope="module")
def found():
    """Two observations, four states; q is nothing like the posterior."""
    key, rates = jax.random.key(0), [0.5, 0.02]
    return calibrate(
        key, table_pair(), rates=rates, support=jnp.arange(4), num_simulations=400, num_samples=19, num_draws=200
    )


def test_right_draws_pass_and_wrong_ones_fail(found):
    # at the level 1e-5 of a false failure, the seed being fixed
    assert found.passes(EXACT, 1e-5) and found.passes("r at 0.02", 1e-5)
    assert not found.passes("q", 1e-5)
    assert found.p_value("q") < found.p_value("r at 0.5")


def test_what_it_says(found):
    assert found.statistics == ("z", "log p(x, z)") and found.num_samples == 19
    assert found.proposals_per_draw["q"] == 1 and found.proposals_per_draw[EXACT] is None
    assert found.proposals_per_draw["r at 0.02"] == pytest.approx(50, rel=0.1)
    first, *lines, last = found.summary().splitlines()
    assert "p-value" in first and "400 simulations, 19 draws each, 2 statistics" in last
    assert [line.endswith("wrong") for line in lines] == [not found.passes(source) for source in found.ranks]
    assert lines[0].startswith("q ") and lines[-1].startswith("exact posterior ")


def test_one_p_value_for_all(found):
    values = found.p_values("r at 0.5")
    assert found.p_value("r at 0.5") == min(1, 2 * min(values.values()))
    with pytest.raises(ValueError, match="source must be one of q, r at 0.5, r at 0.02, exact posterior, got 'nuts'"):
        found.p_value("nuts")


def test_the_picture(found, tmp_path):
    figure = found.figure()
    assert len(figure.axes) == 2 * len(found.ranks)
    figure.savefig(tmp_path / "ranks.png")
    assert figure._repr_png_() == (tmp_path / "ranks.png").read_bytes()  # what a notebook shows


@pytest.mark.slow
def test_a_network_of_32_states():
    """The inference network is untrained, and r at a low rate as good as exact draws."""
    pair = relbo.sbn(jax.random.key(3), [5], jnp.full(6, 0.5))
    found = calibrate(
        jax.random.key(1), pair, rates=[0.02], support=(exact.binary_states(5),), num_simulations=300, num_samples=29
    )
    assert found.statistics == (*(f"z[0][{i}]" for i in range(5)), "log p(x, z)")
    assert found.passes(EXACT, 1e-5) and found.passes("r at 0.02", 1e-5) and not found.passes("q", 1e-5)


def test_ties_are_broken_at_random():
    # the truth ties with 2 of 3 others and the third is below: ranks 1, 2, 3 alike
    rng = np.random.default_rng(0)
    values = np.tile(np.array([5.0, 1.0, 5.0, 5.0])[None, :, None], (9_000, 1, 1))
    counts = np.bincount(ranks_at(rng, values, np.zeros(9_000, int))[:, 0], minlength=5)
    assert counts[0] == counts[4] == 0
    np.testing.assert_allclose(counts[1:4], 3_000, atol=5 * np.sqrt(9_000 * 2 / 9))


def test_the_truth_may_stand_anywhere():
    rng = np.random.default_rng(0)
    truth, draws = np.arange(8_000), np.stack([-np.arange(8_000)] * 3, axis=1)
    whole, place = among(rng, truth, draws)
    assert whole.shape == (8_000, 4) and np.all(whole[np.arange(8_000), place] == truth)
    assert np.all(np.sum(whole == -truth[:, None], axis=1)[1:] == 3)
    np.testing.assert_allclose(np.bincount(place), 2_000, atol=5 * np.sqrt(8_000 * 3 / 16))


def test_large_z_is_seen_through_random_sums():
    z = {"a": jnp.arange(40.0), "b": jnp.ones((3, 10))}
    statistics = numbers_of(z)
    assert len(statistics) == MOST_NUMBERS
    values = [float(f(None, z)) for f in statistics.values()]
    assert len(set(values)) > MOST_NUMBERS / 2
    few = numbers_of({"a": jnp.arange(3.0), "b": jnp.ones((1, 2))})
    assert list(few) == ["z['a'][0]", "z['a'][1]", "z['a'][2]", "z['b'][0][0]", "z['b'][0][1]"]
    assert float(few["z['a'][2]"](None, {"a": jnp.arange(3.0), "b": jnp.ones((1, 2))})) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_simulations": 5}, "num_simulations must be an integer >= 10, got 5"),
        ({"num_samples": 1}, "num_samples must be an integer >= 2, got 1"),
        ({"statistics": {}}, "statistics must be at least one function of x and z, got 'none'"),
        ({"rates": [2.0]}, r"each of rates must be a number in \(0, 1\), got 2.0"),
        ({"rates": 0.5}, r"rates must be a sequence of acceptance rates, such as \[0.5, 0.1\], got 0.5"),
        ({"rates": [0.5, 0.5, 0.1]}, r"rates must be distinct in their first six digits, got \[0.5, 0.5, 0.1\]"),
        ({"rates": [0.1, 0.1000000001]}, "rates must be distinct in their first six digits"),
        ({"statistics": {"s": 1}}, "statistics must be a dictionary of functions f.x, z. by name, got {'s': 1}"),
        ({"statistics": [max]}, "statistics must be a dictionary of functions"),
        (
            {"statistics": {"s": lambda x, z: jnp.stack([z, z])}},
            r"statistic 's' must be one number for one x and one z, got 'an array of shape \(2,\)'",
        ),
        (
            {"statistics": {"s": lambda x, z: jnp.log(-1 - z)}},
            "statistic 's' must be a number at all draws from the model and from q, got nan",
        ),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        calibrate(jax.random.key(0), table_pair(), **{"num_simulations": 10, "num_samples": 3, **settings})


def test_a_single_statistic_decides_alone():
    ranks = np.tile(np.arange(4), 25)[:, None]
    found = Calibration({"q": ranks}, ("f",), 3, {"q": 1.0})
    assert found.p_value("q") == found.p_values("q")["f"] == pytest.approx(1)
