"""The two halves of a relbo pair, made of one NumPyro program.

Rows are numbered m * b + i: draw m of the shared latents, row i of the minibatch. A relbo z is a dictionary of the
local latents with the row as first axis; a relbo x is a `Row`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray, PyTree

from relbo.models.base import AbstractBatchModel, AbstractBatchProposal, AbstractBatchReparameterizedProposal
from relbo.numpyro.program import Parts, Program
from relbo.types import Batch, Pair


class Row(NamedTuple):
    """One row of the minibatch, as estimators see it; a program finds its data by itself."""

    place: Float[Array, "*b"]
    """(number + 1/2) / number of rows: a fraction, since baselines take all of x for features."""
    observed: dict[str, Array]
    """What the model observes in this row, by site."""


class ProgramModel(AbstractBatchModel):
    """The NumPyro model, given values of its parameters and of the shared latents."""

    params: dict[str, Any]
    shared: dict[str, Array]
    """(m, ...) draws of the latents outside the plate."""
    num_shared: int = eqx.field(static=True)
    program: Program = eqx.field(static=True)

    def log_joint(self, x: Row, z: PyTree) -> Float[Array, ""]:
        """Log p of one row; costs a run for the whole batch."""
        return _score_one(self, x, z).model

    def log_joint_batch(self, x: Row, z: PyTree) -> Float[Array, "b k"]:
        """Log p of K draws for all rows."""
        return _score_all(self, z).model

    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        """Refused: a guide takes its data as arguments, which dreamt data cannot replace."""
        raise ValueError(
            "the estimator needs draws of (x, z) from the model to train the guide on, which a NumPyro program cannot "
            "give. Choose one that does not dream, such as RWS."
        )

    def observation_size(self) -> int:
        """Numbers in one `Row`."""
        return 1 + sum(value[0].size for value in self.program.observed.values())


class AbstractProgramProposal(AbstractBatchProposal):
    """The NumPyro guide, given values of its parameters and of the shared latents."""

    params: dict[str, Any]
    shared: dict[str, Array]
    num_shared: int = eqx.field(static=True)
    program: Program = eqx.field(static=True)

    def sample(self, key: PRNGKeyArray, x: Row) -> PyTree:
        """Draws one row; costs a run for the whole batch."""
        number = _number(self, x)
        return jax.tree.map(lambda v: v[number, 0], self.sample_batch(key, x, 1))

    def log_prob(self, z: PyTree, x: Row) -> Float[Array, ""]:
        """Log q of one row; costs a run for the whole batch."""
        return _score_one(self, x, z).guide

    def sample_batch(self, key: PRNGKeyArray, x: Row, num_samples: int) -> PyTree:
        """K draws for all rows."""
        keys = jax.random.split(key, (self.num_shared, num_samples))
        return jax.lax.stop_gradient(_draw_all(self, keys))

    def log_prob_batch(self, z: PyTree, x: Row) -> Float[Array, "b k"]:
        """Log q of K draws for all rows."""
        return _score_all(self, z).guide


class ProgramProposal(AbstractProgramProposal):
    """A guide that can be drawn from and scored, and no more."""


class PathProposal(AbstractProgramProposal, AbstractBatchReparameterizedProposal):
    """A guide all of whose local latents have a reparameterised sampler; the noise is the key of a run."""

    def noise(self, key: PRNGKeyArray) -> PRNGKeyArray:
        """The key itself."""
        return key

    def transform(self, noise: PRNGKeyArray, x: Row) -> PyTree:
        """Draws one row; costs a run for the whole batch."""
        number = _number(self, x)
        keys = jnp.broadcast_to(noise, (self.num_shared, 1))
        return jax.tree.map(lambda v: v[number, 0], _draw_all(self, keys))

    def noise_batch(self, key: PRNGKeyArray, x: Row, num_samples: int) -> Key[Array, "m k"]:
        """Keys of K runs for each draw of the shared latents."""
        return jax.random.split(key, (self.num_shared, num_samples))

    def transform_batch(self, noise: Key[Array, "m k"], x: Row) -> PyTree:
        """K draws for all rows, differentiable in the parameters and in the shared latents."""
        return _draw_all(self, noise)


def _draw_all(proposal: AbstractProgramProposal, keys: Key[Array, "m k"]) -> dict[str, Any]:
    def one(key: PRNGKeyArray, shared: dict[str, Array]) -> PyTree:
        return proposal.program.draw(proposal.params, shared, key)[1]

    drawn = jax.vmap(lambda ks, g: jax.vmap(lambda k: one(k, g))(ks))(keys, proposal.shared)
    return to_rows(proposal.program, drawn)


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


def _score_all(half: ProgramModel | AbstractProgramProposal, z: PyTree) -> Parts:
    program = half.program
    local = from_rows(program, z, half.num_shared)
    score = jax.vmap(lambda g, vs: jax.vmap(lambda v: program.score(half.params, g, v))(vs))
    parts = score(half.shared, local)  # model and guide are (m, k, b)

    def flat(values: Array) -> Array:
        rows = jnp.swapaxes(values, 1, 2)
        return rows.reshape(-1, rows.shape[2])

    return parts._replace(model=flat(parts.model), guide=flat(parts.guide))


def _number(half: ProgramModel | AbstractProgramProposal, x: Row) -> Int[Array, ""]:
    return jnp.floor(x.place * (half.num_shared * half.program.layout.num_rows)).astype(jnp.int32)


def _score_one(half: ProgramModel | AbstractProgramProposal, x: Row, z: PyTree) -> Parts:
    num_rows = half.num_shared * half.program.layout.num_rows
    everywhere = jax.tree.map(lambda v: jnp.broadcast_to(v, (num_rows, 1, *jnp.shape(v))), z)
    parts = _score_all(half, everywhere)
    number = _number(half, x)
    return parts._replace(model=parts.model[number, 0], guide=parts.guide[number, 0])


def build_pair(program: Program, params: dict[str, Any], shared: dict[str, Array], num_shared: int) -> Pair:
    """The pair of a program at given parameters and shared latents."""
    proposal = ProgramProposal if program.layout.pathless else PathProposal
    return Pair(ProgramModel(params, shared, num_shared, program), proposal(params, shared, num_shared, program))


def build_batch(program: Program, num_shared: int) -> Batch:
    """All rows of the minibatch, once for each draw of the shared latents."""
    num_rows = num_shared * program.layout.num_rows
    place = (jnp.arange(num_rows) + 0.5) / num_rows
    observed = {name: jnp.concatenate([value] * num_shared) for name, value in program.observed.items()}
    return Batch(Row(place, observed), jnp.tile(program.index, num_shared))
