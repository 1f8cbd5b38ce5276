"""SVI with a place for what an estimator remembers."""

from typing import Any

import jax
import numpyro.infer
from jaxtyping import Array

from relbo.numpyro.memory import one_sentence, warn_of_starving
from relbo.numpyro.objective import STATE_SITE, EstimatorELBO, as_typed_key


class SVI(numpyro.infer.SVI):
    """NumPyro's `SVI` that also keeps what a relbo estimator remembers, in `SVIState.mutable_state`.

    It takes the same arguments and does the same with any other loss. With `ResampledELBO` it keeps one threshold
    T(x) for each row of the plate; `numpyro.infer.SVI` works too, but has to solve for T anew at every step.
    """

    def init(self, rng_key: Array, *args: Any, init_params: dict | None = None, **kwargs: Any) -> Any:
        """The initial state, with the estimator's state in it."""
        state = super().init(rng_key, *args, init_params=init_params, **kwargs)
        if not isinstance(self.loss, EstimatorELBO):
            return state
        key = jax.random.fold_in(as_typed_key(state.rng_key), 0)
        values = {**self.get_params(state), **(state.mutable_state or {})}
        remembered = self.loss.init_state(key, values, self.model, self.guide, *args, **kwargs, **self.static_kwargs)
        if not jax.tree.leaves(remembered):
            return state
        return state._replace(mutable_state={**(state.mutable_state or {}), STATE_SITE: remembered})

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """NumPyro's `run`; a warning at its end says if many rows ran out of proposals."""
        with one_sentence():
            result = super().run(*args, **kwargs)
        warn_of_starving((result.state.mutable_state or {}).get(STATE_SITE))
        return result

    def evaluate(self, svi_state: Any, *args: Any, **kwargs: Any) -> Array:
        """The loss at the current parameters, under the thresholds that the state holds."""
        if not svi_state.mutable_state or not isinstance(self.loss, EstimatorELBO):
            return super().evaluate(svi_state, *args, **kwargs)
        _, key = jax.random.split(svi_state.rng_key)
        values = {**self.get_params(svi_state), **svi_state.mutable_state}
        result = self.loss.loss_with_mutable_state(
            key, values, self.model, self.guide, *args, **kwargs, **self.static_kwargs
        )
        return result["loss"]
