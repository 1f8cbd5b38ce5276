r"""Pathwise: the reparameterised gradient of the ELBO, for continuous z.

With z_k = transform(noise_k, x; phi),

    grad mean_k [log p(x, z_k) - log q(z_k | x)],

through z_k and, in phi, also through log q itself. The latter part has mean zero; without it (`drop_score`) the
gradient is still unbiased, and free of noise where q is the posterior. With it the gradient is right even for a q whose
support moves with phi: the integrand is a smooth function of phi at every noise.

References:
    Kingma and Welling (2014), "Auto-encoding variational Bayes", https://arxiv.org/abs/1312.6114.
    Roeder, Wu and Duvenaud (2017), "Sticking the landing", https://arxiv.org/abs/1703.09194.
"""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from relbo import bounds
from relbo.estimators.base import check_num_samples, plain_info, remember_nothing
from relbo.estimators.path import AbstractPathEstimator
from relbo.streams import Streams
from relbo.types import Batch, EmptyState, Info
from relbo.view import AbstractView, Needs


class Pathwise(AbstractPathEstimator[EmptyState]):
    """The reparameterised gradient of the ELBO.

    Args:
        num_samples: K >= 1, draws per datapoint.
        drop_score: leave out the derivative of log q in phi at fixed z ("sticking the landing").

    Example:
        >>> estimator = relbo.Pathwise(num_samples=2)
        >>> gradient, _, info = estimator.estimate(key, gaussian, estimator.init(key, gaussian, 4), batch)
        >>> info.bound.shape
        (4,)
    """

    num_samples: int = eqx.field(static=True, default=1)
    drop_score: bool = eqx.field(static=True, default=False)

    unbiased: ClassVar[bool] = True
    needs: ClassVar[Needs] = Needs.PATH
    paper: ClassVar[str] = "Kingma and Welling 2014"
    bound: ClassVar[bounds.AbstractBound] = bounds.ELBO()

    def __check_init__(self) -> None:
        check_num_samples(self, self.num_samples, 1)

    init = remember_nothing

    @property
    def follows_support(self) -> bool:
        """Where nothing of the derivative is left out."""
        return not self.drop_score

    def draw(self, streams: Streams, view: AbstractView, state: EmptyState, batch: Batch) -> tuple[PyTree, EmptyState]:
        """K noises for each datapoint."""
        return view.noise(streams.propose, self.num_samples), state

    def surrogate(self, view: AbstractView, draws: PyTree) -> tuple[Float[Array, " b"], Info]:
        """The log weight along the path."""
        z = view.transform(draws)
        log_p, log_q = view.log_densities(z)
        if self.drop_score:
            log_q = view.with_constant_proposal().log_densities(z).log_q
        log_w = log_p - log_q
        return jnp.mean(log_w, axis=-1), plain_info(bounds.elbo(jax.lax.stop_gradient(log_w)), self.num_samples)
