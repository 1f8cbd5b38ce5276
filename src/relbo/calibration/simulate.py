r"""`calibrate`: simulation-based calibration of a pair.

If z ~ p(z) and x ~ p(x | z), then z is one more draw from the posterior p(z | x). So among L further draws from it the
rank of any statistic f(x, z) is uniform on 0..L, ties being broken at random. Draws from anything else than the
posterior have other ranks, for some statistic. Statistics that look at x, such as log p(x, z), are needed: draws from
the prior have uniform ranks for every statistic of z alone.

References:
    Talts, Betancourt, Simpson, Vehtari and Gelman (2018), "Validating Bayesian inference algorithms with
    simulation-based calibration", https://arxiv.org/abs/1804.06788
    Modrak et al. (2023), "Simulation-based calibration checking for Bayesian computation: the choice of test quantities
    shapes sensitivity", Bayesian Analysis, https://arxiv.org/abs/2211.02383
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray, PyTree

from relbo import exact
from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance
from relbo.calibration.ranks import (
    among,
    evaluate_statistics,
    named_rates,
    numbers_of,
    ranks_at,
    without_nan,
)
from relbo.calibration.result import Calibration
from relbo.posterior import posterior
from relbo.types import Pair
from relbo.view import view_of

EXACT = "exact posterior"
"""The source that enumerates."""


def calibrate(
    key: PRNGKeyArray,
    pair: Pair,
    *,
    rates: Any = (0.5, 0.1),
    num_simulations: int = 500,
    num_samples: int = 99,
    support: PyTree | None = None,
    statistics: Any = None,
    num_draws: int = 1_000,
    max_rounds: int = 1_000,
    acceptance: AbstractAcceptance | None = None,
    on_stage: Callable[[str], None] = lambda source: None,
) -> Calibration:
    """Checks draws from q and from r against the model's own, for data that the model itself makes.

    It says whether q or r is the posterior *of this model*, not whether the model is right for your data.

    Args:
        key: randomness.
        pair: model and proposal, for one x and one z; the model's `sample` makes the data.
        rates: a sequence of acceptance rates at which to draw from r; none of them for q alone.
        num_simulations: N, how many (x, z) the model makes. Small errors need many.
        num_samples: L, draws of each source for each x.
        support: all states of z, stacked along the first axis, to check draws from the enumerated posterior too.
        statistics: a dictionary, name -> f(x, z), a number; by default every number of z (of a large z, random sums of
            them) and log p(x, z).
        num_draws: plain draws from q behind each threshold.
        max_rounds: a row gives up, which is an error, after max_rounds * L proposals.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        on_stage: told each source before it is drawn from.

    Returns:
        A `Calibration`: ranks, exact p-values, `summary()`, `figure()`.

    Example:
        >>> pair = relbo.linear_gaussian(jax.random.key(0), 2, jnp.zeros(3))
        >>> found = calibrate(jax.random.key(1), pair, rates=[0.1], num_simulations=100, num_samples=19)
        >>> sorted(found.ranks), found.ranks["q"].shape
        (['q', 'r at 0.1'], (100, 3))
    """
    require(isinstance(pair, Pair), "pair", "a relbo.Pair; for NumPyro use relbo.numpyro.calibrate", type(pair))
    require(is_int(num_simulations, at_least=10), "num_simulations", "an integer >= 10", num_simulations)
    require(is_int(num_samples, at_least=2), "num_samples", "an integer >= 2", num_samples)
    by_name = named_rates(rates)
    is_named = statistics is None or (isinstance(statistics, Mapping) and all(map(callable, statistics.values())))
    require(is_named, "statistics", "a dictionary of functions f(x, z) by name", statistics)
    key_data, key_draw, key_ranks = jax.random.split(key, 3)
    x, z = eqx.filter_jit(lambda pair, keys: jax.vmap(pair.model.sample)(keys))(
        pair, jax.random.split(key_data, num_simulations)
    )
    if statistics is None:
        shape = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), z)
        statistics = {**numbers_of(shape), "log p(x, z)": pair.model.log_joint}
    require(len(statistics) > 0, "statistics", "at least one function of x and z", "none")
    for name, statistic in statistics.items():
        one_x, one_z = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (x, z))
        shape = getattr(eqx.filter_eval_shape(statistic, one_x, one_z), "shape", ())
        require(shape == (), f"statistic {name!r}", "one number for one x and one z", f"an array of shape {shape}")

    ranks: dict[str, np.ndarray] = {}
    costs: dict[str, float | None] = {}
    for source in ["q", *by_name, *([] if support is None else [EXACT])]:
        on_stage(source)
        number = len(ranks)
        key_source = jax.random.fold_in(key_draw, number)
        if source == "q":
            draws = eqx.filter_jit(lambda pair, k, x: view_of(pair, x).draw(k, num_samples))(pair, key_source, x)
            costs[source] = 1.0
        elif source == EXACT:
            draws = draw_exactly(key_source, pair, x, support, num_samples)
            costs[source] = None
        else:
            found = posterior(
                key_source,
                pair,
                x,
                rate=by_name[source],
                num_samples=num_samples,
                num_draws=num_draws,
                max_rounds=max_rounds,
                acceptance=acceptance,
            )
            draws, costs[source] = found.z, float(np.mean(found.num_proposals)) / num_samples
        # one generator for each source: adding a source changes nothing for the others
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key_ranks, number))))
        whole, place = among(rng, z, draws)
        values = evaluate_statistics(list(statistics.values()), x, whole)
        without_nan(values, tuple(statistics), source)
        ranks[source] = ranks_at(rng, values, place)
    return Calibration(ranks, tuple(statistics), num_samples, costs)


def draw_exactly(key: PRNGKeyArray, pair: Pair, x: PyTree, support: PyTree, num_samples: int) -> PyTree:
    """(n, L, ...) draws from the enumerated posterior of every x."""

    @eqx.filter_jit
    def draw(keys: Key[Array, " n"], x: PyTree) -> PyTree:
        def one(key: PRNGKeyArray, x: PyTree) -> PyTree:
            log_p = exact.log_posterior(pair.model, x, support)
            chosen = jax.random.categorical(key, log_p, shape=(num_samples,))
            return jax.tree.map(lambda leaf: leaf[chosen], support)

        return jax.vmap(one)(keys, x)

    return draw(jax.random.split(key, jax.tree.leaves(x)[0].shape[0]), x)
