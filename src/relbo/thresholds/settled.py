r"""`OnceSettled`: a threshold that waits until the guide has found its place.

A guide that is far off learns little from draws that were accepted, so rejection is to begin when the guide has
settled. How many steps that takes depends on the model and on the step size. What tells is the ELBO, the mean of log w
under q, beside what rejection may gain. With s^2 the variance of log w under q the ELBO is about s^2 / 2 below
log p(x), and for s up to 2 rejection closes most of that. But where s is large it cannot: at an acceptance rate Z the
R-ELBO is above the ELBO by s phi(z) / Z + log Z, phi(z) being the normal density at its upper Z quantile, so by 0.8 s
at 0.5 and by 1.8 s at 0.1. So what may be gained is taken to be min(s^2 / 2, s). Both figures are averaged over the
rows of a batch and over windows of steps, each as long as all before it together,

    [0, first/2), [first/2, first), [first, 2 first), [2 first, 4 first), ...

Rejection begins at the end of the first of them, not before step `first`, in which the ELBO rose by less than
`gap` min(s^2, 2 s) above that of the window before, or by less than two standard errors of this rise. As windows grow
with the run, so does the patience: a run with a tenth of the step size waits ten times as long. The noise of a step is
half the mean square of the differences between steps that follow each other, which a slow rise does not enter.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from relbo._check import is_int, is_number, require
from relbo.acceptance import AbstractAcceptance
from relbo.thresholds.base import AbstractThreshold, Reading


class SettledState(NamedTuple):
    """What is known about the spread of log w, and the state of the threshold that waits.

    Example:
        >>> bool(relbo.thresholds.OnceSettled(relbo.Rate(0.5)).init(num_data=4).rejects)
        False
    """

    inner: Any
    """State of the threshold that waits."""
    total: Float[Array, " 3"]
    """Sums over the steps of this window: mean of log w, mean of log s^2, half the squared change of the former."""
    before: Float[Array, " 3"]
    """Their means in the window before."""
    last: Float[Array, ""]
    """The mean of log w in the step before."""
    start: Int[Array, ""]
    """First step of this window."""
    begun: Int[Array, ""]
    """Step at which rejection began; -1 before."""
    step: Int[Array, ""]
    """Steps taken."""

    @property
    def rejects(self) -> Bool[Array, ""]:
        """Whether rejection has begun."""
        return self.begun >= 0


class OnceSettled(AbstractThreshold[SettledState]):
    """T = +inf until the ELBO rises by less than rejection may gain, then another threshold.

    Args:
        threshold: what sets T from then on.
        first: steps after which rejection may begin at the earliest, >= 2.
        gap: what rejection may gain, in units of min(s^2, 2 s).

    Example:
        >>> estimator = relbo.VRS(2, threshold=relbo.thresholds.OnceSettled(relbo.Rate(0.5), first=100))
        >>> estimator.threshold.first
        100
    """

    threshold: AbstractThreshold
    first: int = eqx.field(static=True, default=500)
    gap: float = 0.5

    def __check_init__(self) -> None:
        require(isinstance(self.threshold, AbstractThreshold), "OnceSettled: threshold", "a threshold", self.threshold)
        require(is_int(self.first, at_least=2), "OnceSettled: first", "an integer >= 2", self.first)
        require(is_number(self.gap, above=0), "OnceSettled: gap", "a finite number > 0", self.gap)

    @property
    def fresh_draws(self) -> int:
        """Those of the threshold that waits."""
        return self.threshold.fresh_draws

    def init(self, num_data: int) -> SettledState:
        """Nothing is known."""
        zero = jnp.zeros((), jnp.int32)
        return SettledState(
            inner=self.threshold.init(num_data),
            total=jnp.zeros(3),
            before=jnp.array([-jnp.inf, 0.0, 0.0]),
            last=jnp.zeros(()),
            start=zero,
            begun=zero - 1,
            step=zero,
        )

    def read(self, state: SettledState, index: Int[Array, " b"]) -> Reading:
        """T = +inf, or what the other threshold says."""
        reading = self.threshold.read(state.inner, index)
        return reading._replace(t=jnp.where(state.rejects, reading.t, jnp.inf), due=reading.due & state.rejects)

    def update(
        self,
        state: SettledState,
        index: Int[Array, " b"],
        t: Float[Array, " b"],
        log_w: Float[Array, "b n"],
        acceptance: AbstractAcceptance,
    ) -> SettledState:
        """Watches the spread; once it has settled, the other threshold takes its own step."""
        step = state.step + 1
        level, log_variance = _level_and_log_variance(log_w).astype(state.total.dtype)
        noise = jnp.where(state.step > 0, 0.5 * (level - state.last) ** 2, 0)
        total = state.total + jnp.stack([level, log_variance, noise])
        # windows end at first / 2, first, 2 first, 4 first, ...
        is_end = step == jnp.maximum(2 * state.start, self.first // 2)
        length = (step - state.start).astype(total.dtype)
        now = total / length
        # the window before was half as long as all steps before this one; the first had nothing before it
        length_before = jnp.where(state.start > self.first // 2, state.start // 2, state.start).astype(total.dtype)
        error = jnp.sqrt(now[2] / length + state.before[2] / length_before.clip(1))
        gain = self.gap * jnp.minimum(jnp.exp(now[1]), 2 * jnp.exp(0.5 * now[1]))
        has_settled = now[0] - state.before[0] < jnp.maximum(gain, 2 * error)
        follows = self.threshold.update(state.inner, index, t, log_w, acceptance)
        waits = state.inner._replace(step=state.inner.step + 1)
        return SettledState(
            inner=jax.tree.map(lambda new, old: jnp.where(state.rejects, new, old), follows, waits),
            total=jnp.where(is_end, 0, total),
            before=jnp.where(is_end, now, state.before),
            last=level,
            start=jnp.where(is_end, step, state.start),
            begun=jnp.where(~state.rejects & is_end & has_settled & (step >= self.first), step, state.begun),
            step=step,
        )

    def solve(
        self, log_w: Float[Array, "b n"], acceptance: AbstractAcceptance, step: Int[Array, ""] | None = None
    ) -> Float[Array, " b"]:
        """That of the threshold that waits."""
        return self.threshold.solve(log_w, acceptance, step)


def _level_and_log_variance(log_w: Float[Array, "b n"]) -> Float[Array, " 2"]:
    """Means over rows of the mean of log w and of the log of its variance; impossible draws do not count.

    The variance is half the mean square of the differences within pairs of neighbours: what they have in common, such
    as a draw of shared latents, is no spread of a row's own.
    """
    possible = jnp.isfinite(log_w)
    count = jnp.sum(possible, axis=1).astype(log_w.dtype)
    mean = jnp.sum(jnp.where(possible, log_w, 0), axis=1) / count.clip(1)
    size = log_w.shape[1] - log_w.shape[1] % 2
    both = possible[:, 0:size:2] & possible[:, 1:size:2]
    squares = jnp.where(both, log_w[:, 0:size:2] - log_w[:, 1:size:2], 0) ** 2
    pairs = jnp.sum(both, axis=1).astype(log_w.dtype)
    variance = 0.5 * jnp.sum(squares, axis=1) / pairs.clip(1)
    log_variance = jnp.log(jnp.maximum(variance, jnp.finfo(log_w.dtype).tiny))
    tells = pairs > 0
    found = jnp.where(tells, jnp.stack([mean, log_variance]), 0)
    return jnp.sum(found, axis=1) / jnp.sum(tells).clip(1).astype(log_w.dtype)
