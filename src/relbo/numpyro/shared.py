r"""Latents outside the row plate, g: their draws, their part of the bound and the gradient that reaches them.

One draw of g serves all N proposals of all rows, since a row's acceptances are those given g. As long as nothing is
rejected there is no need for that: then every two neighbouring proposals have a g of their own, and the gradient in
what g depends on has the noise of N / 2 draws instead of one, for the same number of runs of the program. (Two and not
one, so that `relbo.thresholds.OnceSettled` sees how far log w spreads given g.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from relbo._check import collected
from relbo._tree import tree_add
from relbo.estimators import AbstractEstimator, AbstractVRS
from relbo.estimators.score import leave_one_out
from relbo.needs import Needs
from relbo.numpyro.program import Program
from relbo.streams import split
from relbo.types import Batch


class Shared(NamedTuple):
    """Draws of the latents outside the row plate."""

    program: Program
    values: dict[str, Array]
    """(m, ...) draws by name."""
    local: dict[str, Any]
    """Latents of the rows that were drawn along with them: what stands outside the plate does not depend on them."""
    num_draws: int
    pull: Callable[[dict[str, Any]], Any]
    """From a gradient in the draws that have a path to one in the parameters."""

    @classmethod
    def draw(cls, key: PRNGKeyArray, program: Program, params: dict[str, Any], num_draws: int) -> "Shared":
        """Runs the guide once for each draw; again with the values of those that have no path, where there are any."""
        if program.layout.plate is None:  # nothing stands outside
            return cls(program, {}, {}, 1, lambda grads: grads)
        keys, scored = split(key, num_draws), program.layout.scored

        def run(params: dict[str, Any], fixed: dict[str, Array]) -> tuple[dict[str, Array], dict[str, Any]]:
            return jax.vmap(lambda k, values: program.draw(params, values, k))(keys, fixed)

        first = run(params, {})[0] if scored else {}
        fixed = {name: first[name] for name in scored}

        def moved(params: dict[str, Any]) -> tuple[dict[str, Array], dict[str, Any]]:
            values, local = run(params, fixed)
            return {name: value for name, value in values.items() if name not in scored}, local

        found, pull, local = eqx.filter_vjp(moved, params, has_aux=True)
        return cls(program, {**found, **fixed}, jax.lax.stop_gradient(local), num_draws, lambda grads: pull(grads)[0])

    def pull_back(
        self,
        params: dict[str, Any],
        rows: Float[Array, " rows"],
        towards: dict[str, Any],
        share: Float[Array, " m"] | None = None,
    ) -> tuple[Float[Array, ""], dict[str, Any]]:
        """The mean of log p(g) - log q(g), and the gradient that reaches the parameters through g.

        Args:
            params: parameters.
            rows: bound of all rows given each draw of g, already scaled to the dataset; of use where some latents have
                no path.
            towards: gradient of the bound in the draws of g.
            share: of each draw of g in the mean; equal ones by default.
        """

        def score(params: dict[str, Any], values: dict[str, Array]) -> tuple[Array, Array]:
            parts = jax.vmap(lambda shared, local: self.program.score(params, shared, local))(values, self.local)
            return parts.shared, parts.scored

        (outside, scored), pull = eqx.filter_vjp(score, params, self.values)
        share = jnp.full_like(outside, 1 / outside.shape[0]) if share is None else share.astype(outside.dtype)
        credit = jnp.zeros_like(scored)
        if self.program.layout.scored:
            # a bound that is not known teaches nothing
            credit = jnp.where(jnp.isnan(rows), 0, leave_one_out((outside + rows)[None])[0])
        grads, in_values = pull((share, credit))
        in_moved = {
            name: towards[name] + in_values[name] for name in self.values if name not in self.program.layout.scored
        }
        return jnp.sum(share * outside), tree_add(grads, self.pull(in_moved))


class ByPlace(NamedTuple):
    """One draw of g for each place of the first round."""

    values: dict[str, Array]
    """(N, ...) draws by name."""
    share: Float[Array, " m"]
    """Of each of the m draws in the mean over g."""
    pull: Callable[[dict[str, Any]], dict[str, Any]]
    """From a gradient in what stands at the places to one in the draws."""


def may_differ(estimator: AbstractEstimator, program: Program) -> bool:
    """Whether places of the first round may have draws of g of their own while nothing is rejected.

    Scores of the latents of a row would lose from it: their baseline is the mean over the other places.
    """
    has_path = isinstance(estimator, AbstractVRS) and estimator.needs is Needs.PATH
    return has_path and bool(program.layout.shared) and not program.layout.scored


def draws_by_place(shared: Shared, estimator: AbstractVRS, state: Any, batch: Batch) -> ByPlace:
    """A g for every two places, or the first one for all of them where some row may reject."""
    with collected():  # the estimator reads it again, and refuses what is to be refused
        reading = estimator.threshold.read(state.thresholds, batch.index)
    rejects: Bool[Array, ""] = ~jnp.all(jnp.isposinf(reading.t) & ~reading.due)
    if state.edge is not None:  # impossible proposals are rejected at any T
        rejects = rejects | state.edge

    def at_places(values: dict[str, Array]) -> dict[str, Array]:
        # not by a gather: backwards that would be a scatter, a loop over its rows on a CPU
        chosen = jax.tree.map(lambda v: jnp.where(rejects, v[:1], v), values)
        return jax.tree.map(lambda v: jnp.repeat(v, 2, axis=0)[: estimator.num_proposals], chosen)

    values, pull = jax.vjp(at_places, shared.values)
    is_first = jnp.arange(shared.num_draws) == 0
    share = jnp.where(rejects, is_first.astype(float), 1 / shared.num_draws)
    return ByPlace(values, share, lambda towards: pull(towards)[0])
