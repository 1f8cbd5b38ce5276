"""A NumPyro program as a relbo pair that runs for all rows together.

Rows are numbered m * b + i: draw m of the shared latents, row i of the minibatch. A relbo z is a dictionary of the
local latents with the row as first axis; a relbo x is a `Row`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from relbo.models.base import AbstractBatchPair
from relbo.numpyro.program import Parts, Program
from relbo.streams import stream_keys
from relbo.types import Batch


class Row(NamedTuple):
    """The rows of the minibatch, as estimators see them; a program finds its data by itself."""

    number: Int[Array, " b"]
    """Which row it is."""
    observed: dict[str, Array]
    """What the model observes in each row, by site."""


class ProgramPair(AbstractBatchPair):
    """A NumPyro model and guide, given values of their parameters and of the shared latents.

    The shared latents stand here twice, as the model and as the guide see them, so that the gradient can be told apart.
    """

    params: dict[str, Any]
    shared_model: dict[str, Array]
    """(m, ...) draws of the latents outside the plate."""
    shared_guide: dict[str, Array]
    num_shared: int = eqx.field(static=True)
    program: Program = eqx.field(static=True)
    num_places: int | None = eqx.field(static=True, default=None)
    """If given, there are as many draws of the shared latents, one for each place of a first round of as many draws:
    the same one while anything is rejected, so that other rounds may take any of them."""

    def draw(self, key: PRNGKeyArray, x: Row, positions: Int[Array, " k"]) -> PyTree:
        """One run of the guide for each position and each draw of the shared latents."""
        return self.transform(self.noise(key, x, positions), x)

    def log_densities(self, x: Row, z: PyTree) -> tuple[Float[Array, "b k"], Float[Array, "b k"]]:
        """Log p and log q by one run of model and guide for each draw."""
        local = from_rows(self.program, z, self.num_shared)

        def one(values: PyTree, model: dict[str, Array], guide: dict[str, Array]) -> Parts:
            return self.program.score(self.params, guide, values, model)

        parts = self._for_each_draw(one, local, self.shared_model, self.shared_guide)

        def flat(values: Float[Array, "m k b"]) -> Array:
            rows = jnp.swapaxes(values, 1, 2)
            return rows.reshape(-1, rows.shape[2])

        return flat(parts.model), flat(parts.guide)

    @property
    def num_features(self) -> int:
        """Numbers observed in one row."""
        return sum(value[0].size for value in self.program.observed.values())

    def features(self, x: Row) -> Float[Array, "b d"]:
        """What is observed in each row."""
        rows = x.number.shape[0]
        parts = [value.reshape(rows, -1).astype(jnp.result_type(float)) for value in x.observed.values()]
        return jnp.concatenate([jnp.zeros((rows, 0)), *parts], axis=1)

    @property
    def has_path(self) -> bool:
        """Whether all local latents have a reparameterised sampler."""
        return not self.program.layout.pathless

    def noise(self, key: PRNGKeyArray, x: Row, positions: Int[Array, " k"]) -> Key[Array, "m k"]:
        """The keys of the runs."""
        shared = jnp.arange(self.num_shared, dtype=jnp.int32)
        grid = jnp.meshgrid(shared, positions, indexing="ij")
        return stream_keys(key, *grid)

    def transform(self, noise: Key[Array, "m k"], x: Row) -> PyTree:
        """The draws, differentiable in the parameters and in the shared latents where they have a path."""

        def one(key: PRNGKeyArray, shared: dict[str, Array]) -> PyTree:
            return self.program.draw(self.params, shared, key)[1]

        return to_rows(self.program, self._for_each_draw(one, noise, self.shared_guide))

    def _for_each_draw(self, one: Callable[..., Any], draws: PyTree, *shared: PyTree) -> Any:
        """`one(draw, *shared)` for draws (m, k, ...) of the rows' latents, with the draws of the shared ones."""
        if self.num_places is not None:
            if jax.tree.leaves(draws)[0].shape[1] == self.num_places:
                found = jax.vmap(one)(jax.tree.map(lambda v: v[0], draws), *shared)
                return jax.tree.map(lambda v: v[None], found)
            shared = jax.tree.map(lambda v: v[:1], shared)

        def all_draws(draws: PyTree, *shared: PyTree) -> Any:
            return jax.vmap(lambda draw: one(draw, *shared))(draws)

        return self.for_each_shared(all_draws, draws, *shared)

    def for_each_shared(self, function: Callable[..., Any], *values: PyTree) -> Any:
        """`function` at each draw of the shared latents, which are the first axis of all values."""
        # `vmap` over one draw of the shared latents is not free: inside a loop XLA makes slow sums of the products
        # that have an axis of 1
        if self.num_shared > 1:
            return jax.vmap(function)(*values)
        return jax.tree.map(lambda v: v[None], function(*jax.tree.map(lambda v: v[0], values)))


def to_rows(program: Program, drawn: dict[str, Any]) -> dict[str, Any]:
    """(m, k, program's own axes) -> (m * b, k, the rest), for every local latent."""

    def move(axis: int) -> Any:
        def one(v: Array) -> Array:
            rows = v[:, None] if axis == 0 else jnp.moveaxis(v, axis, 1)
            return rows.reshape(-1, *rows.shape[2:])

        return one

    return {name: jax.tree.map(move(axis), drawn[name]) for name, axis in program.layout.local.items()}


def from_rows(program: Program, z: dict[str, Any], num_shared: int) -> dict[str, Any]:
    """The inverse of `to_rows`."""

    def move(axis: int) -> Any:
        def one(v: Array) -> Array:
            rows = v.reshape(num_shared, -1, *v.shape[1:])
            return rows[:, 0] if axis == 0 else jnp.moveaxis(rows, 1, axis)

        return one

    return {name: jax.tree.map(move(axis), z[name]) for name, axis in program.layout.local.items()}


def build_pair(
    program: Program,
    params: dict[str, Any],
    shared: dict[str, Array],
    num_shared: int,
    num_places: int | None = None,
) -> ProgramPair:
    """The pair of a program at given parameters and shared latents."""
    return ProgramPair(params, shared, shared, num_shared, program, num_places)


def build_batch(program: Program, num_shared: int) -> Batch:
    """All rows of the minibatch, once for each draw of the shared latents."""
    num_rows = num_shared * program.layout.num_rows
    observed = {name: jnp.concatenate([value] * num_shared) for name, value in program.observed.items()}
    index = program.index if num_shared == 1 else jnp.tile(program.index, num_shared)
    return Batch(Row(jnp.arange(num_rows, dtype=jnp.int32), observed), index)
