"""Small targets that can be enumerated: for tests, diagnostics and illustrative figures."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int, PRNGKeyArray

from relbo._check import require
from relbo.models.base import AbstractModel, AbstractProposal


class TableModel(AbstractModel):
    """A finite joint p(x, z) = softmax over all (x, z) of a table plus `log_mass`; x and z are state numbers.

    With `normalise=False` the table itself is log p(x, z), and -inf marks what is impossible.

    Example:
        >>> model = relbo.models.toy.TableModel(jnp.zeros((2, 4)))
        >>> bool(jnp.allclose(model.log_joint(jnp.array(0), jnp.array(3)), -jnp.log(8.0)))
        True
    """

    table: Float[Array, "num_x num_z"]
    normalise: bool = eqx.field(static=True, default=True)

    def log_table(self) -> Float[Array, "num_x num_z"]:
        """Log p(x, z) of every pair of states."""
        if not self.normalise:
            return self.table
        return self.table - jax.scipy.special.logsumexp(self.table)

    def log_joint(self, x: Int[Array, ""], z: Int[Array, ""]) -> Float[Array, ""]:
        """Looks up log p(x, z)."""
        return self.log_table()[x, z]

    def sample(self, key: PRNGKeyArray) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """Draws (x, z) from the normalised table."""
        state = jax.random.categorical(key, self.table.reshape(-1))
        x, z = jnp.divmod(state, self.table.shape[1])
        return x, z


class TableProposal(AbstractProposal):
    """A finite proposal q(z | x) = softmax(table[x])_z.

    Example:
        >>> proposal = relbo.models.toy.TableProposal(jnp.zeros((2, 4)))
        >>> bool(jnp.allclose(proposal.log_prob(jnp.array(3), jnp.array(0)), -jnp.log(4.0)))
        True
    """

    table: Float[Array, "num_x num_z"]

    def sample(self, key: PRNGKeyArray, x: Int[Array, ""]) -> Int[Array, ""]:
        """Draws a state number."""
        return jax.random.categorical(key, self.table[x])

    def log_prob(self, z: Int[Array, ""], x: Int[Array, ""]) -> Float[Array, ""]:
        """Looks up log q(z | x)."""
        return jax.nn.log_softmax(self.table[x])[z]


def _log_poisson(z: Array, log_rate: Array) -> Array:
    z = z.astype(log_rate.dtype)
    return z * log_rate - jnp.exp(log_rate) - gammaln(z + 1)


class PoissonTarget(AbstractModel):
    """A Poisson whose mass below `cut` is replaced by e^log_epsilon per state (section 5.1 of the paper).

    It is unnormalised by what was removed, and has no data: x is ignored.

    Example:
        >>> target = relbo.models.toy.PoissonTarget(jnp.log(10.0))
        >>> float(target.log_joint(jnp.zeros(()), jnp.array(2)))  # below the cut
        -100.0
    """

    log_rate: Float[Array, ""]
    cut: int = eqx.field(static=True, default=5)
    log_epsilon: float = eqx.field(static=True, default=-100.0)

    def log_joint(self, x: Array, z: Int[Array, ""]) -> Float[Array, ""]:
        """Log of the Poisson probability, or log_epsilon below the cut."""
        log_p = _log_poisson(z, self.log_rate)
        return jnp.where(z < self.cut, jnp.asarray(self.log_epsilon, log_p.dtype), log_p)

    def sample(self, key: PRNGKeyArray) -> tuple[Array, Int[Array, ""]]:
        """Draws z by redrawing what falls below the cut (whose mass is negligible)."""
        require(self.log_epsilon < -30, "PoissonTarget.sample: log_epsilon", "below -30", self.log_epsilon)

        def redraw(carry: tuple[PRNGKeyArray, Array]) -> tuple[PRNGKeyArray, Array]:
            key, key_draw = jax.random.split(carry[0])
            return key, jax.random.poisson(key_draw, jnp.exp(self.log_rate))

        start = (key, jnp.asarray(-1, jnp.result_type(int)))
        _, z = jax.lax.while_loop(lambda c: c[1] < self.cut, redraw, start)
        return jnp.zeros(()), z


class PoissonProposal(AbstractProposal):
    """Poisson(e^phi); x is ignored.

    Example:
        >>> relbo.models.toy.PoissonProposal(jnp.log(3.0)).sample(key, jnp.zeros(())).shape
        ()
    """

    phi: Float[Array, ""]

    def sample(self, key: PRNGKeyArray, x: Array) -> Int[Array, ""]:
        """Draws a count."""
        return jax.random.poisson(key, jnp.exp(self.phi))

    def log_prob(self, z: Int[Array, ""], x: Array) -> Float[Array, ""]:
        """Log of the Poisson probability."""
        return _log_poisson(z, self.phi)
