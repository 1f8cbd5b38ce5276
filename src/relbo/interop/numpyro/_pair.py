"""The two halves of a relbo pair, made of one NumPyro program.

Rows are numbered m * b + i: draw m of the shared latents, row i of the minibatch. A relbo z is a dictionary of the
local latents with the row as first axis; a relbo x is the number of the row.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from relbo._types import Batch, Pair
from relbo.interop.numpyro._program import Parts, Program
from relbo.models.base import AbstractBatchModel, AbstractBatchProposal


class ProgramModel(AbstractBatchModel):
    """The NumPyro model, given values of its parameters and of the shared latents."""

    params: dict[str, Any]
    shared: dict[str, Array]
    """(m, ...) draws of the latents outside the plate."""
    num_shared: int = eqx.field(static=True)
    program: Program = eqx.field(static=True)

    def log_joint(self, x: Int[Array, ""], z: PyTree) -> Float[Array, ""]:
        """Log p of one row; costs a run for the whole batch."""
        return _score_one(self, x, z).model

    def log_joint_batch(self, x: Int[Array, " b"], z: PyTree) -> Float[Array, "b k"]:
        """Log p of K draws for all rows."""
        return _score_all(self, z).model

    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        """Not defined: a NumPyro program draws its data by `numpyro.infer.Predictive`."""
        raise NotImplementedError("a NumPyro model draws its data by numpyro.infer.Predictive, not through relbo.")


class ProgramProposal(AbstractBatchProposal):
    """The NumPyro guide, given values of its parameters and of the shared latents."""

    params: dict[str, Any]
    shared: dict[str, Array]
    num_shared: int = eqx.field(static=True)
    program: Program = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray, x: Int[Array, ""]) -> PyTree:
        """Draws one row; costs a run for the whole batch."""
        return jax.tree.map(lambda v: v[x, 0], self.sample_batch(key, x[None], 1))

    def log_prob(self, z: PyTree, x: Int[Array, ""]) -> Float[Array, ""]:
        """Log q of one row; costs a run for the whole batch."""
        return _score_one(self, x, z).guide

    def sample_batch(self, key: PRNGKeyArray, x: Int[Array, " b"], num_samples: int) -> PyTree:
        """K draws for all rows."""
        params = jax.lax.stop_gradient(self.params)

        def one(key: PRNGKeyArray, shared: dict[str, Array]) -> PyTree:
            return self.program.draw(params, shared, key)[1]

        keys = jax.random.split(key, (self.num_shared, num_samples))
        drawn = jax.vmap(lambda ks, g: jax.vmap(lambda k: one(k, g))(ks))(keys, self.shared)
        return to_rows(self.program, drawn)

    def log_prob_batch(self, z: PyTree, x: Int[Array, " b"]) -> Float[Array, "b k"]:
        """Log q of K draws for all rows."""
        return _score_all(self, z).guide


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


def _score_all(half: ProgramModel | ProgramProposal, z: PyTree) -> Parts:
    program = half.program
    local = from_rows(program, z, half.num_shared)
    score = jax.vmap(lambda g, vs: jax.vmap(lambda v: program.score(half.params, g, v))(vs))
    parts = score(half.shared, local)  # model and guide are (m, k, b)

    def flat(values: Array) -> Array:
        rows = jnp.swapaxes(values, 1, 2)
        return rows.reshape(-1, rows.shape[2])

    return parts._replace(model=flat(parts.model), guide=flat(parts.guide))


def _score_one(half: ProgramModel | ProgramProposal, x: Int[Array, ""], z: PyTree) -> Parts:
    num_rows = half.num_shared * half.program.layout.num_rows
    everywhere = jax.tree.map(lambda v: jnp.broadcast_to(v, (num_rows, 1, *jnp.shape(v))), z)
    parts = _score_all(half, everywhere)
    return parts._replace(model=parts.model[x, 0], guide=parts.guide[x, 0])


def build_pair(program: Program, params: dict[str, Any], shared: dict[str, Array], num_shared: int) -> Pair:
    """The pair of a program at given parameters and shared latents."""
    return Pair(ProgramModel(params, shared, num_shared, program), ProgramProposal(params, shared, num_shared, program))


def build_batch(program: Program, num_shared: int) -> Batch:
    """All rows of the minibatch, once for each draw of the shared latents."""
    num_rows = num_shared * program.layout.num_rows
    return Batch(jnp.arange(num_rows), jnp.tile(program.index, num_shared))
