"""SVI with a place for what an estimator remembers."""

from typing import Any

import jax
import numpyro.infer
from jaxtyping import Array

from relbo.numpyro.fault import FAILURES, sites_at_fault
from relbo.numpyro.memory import one_sentence, warn_of_starving
from relbo.numpyro.objective import STATE_SITE, EstimatorELBO, as_typed_key
from relbo.numpyro.store import LOGGER, STORE


class SVI(numpyro.infer.SVI):
    """NumPyro's `SVI` that also keeps what a relbo estimator remembers, in `SVIState.mutable_state`.

    It takes the same arguments and does the same with any other loss. With `ResampledELBO` it keeps one threshold
    T(x) for each row of the plate; `numpyro.infer.SVI` works too, but has to solve for T anew at every step.

    Example:
        >>> svi = relbo.numpyro.SVI(model, guide, numpyro.optim.Adam(0.1), relbo.numpyro.VIMCO(4))
        >>> result = svi.run(key, 20, 1.0, progress_bar=False)
        >>> result.losses.shape
        (20,)
    """

    def init(self, rng_key: Array, *args: Any, init_params: dict | None = None, **kwargs: Any) -> Any:
        """The initial state, with the estimator's state in it."""
        state = super().init(rng_key, *args, init_params=init_params, **kwargs)
        return self._with_memory(state, args, kwargs)

    def run(
        self,
        rng_key: Array,
        num_steps: int,
        *args: Any,
        progress_bar: bool = True,
        stable_update: bool = False,
        forward_mode_differentiation: bool = False,
        init_state: Any = None,
        init_params: dict | None = None,
        **kwargs: Any,
    ) -> Any:
        """NumPyro's `run`; `init_state` may be that of any run of this model and guide.

        What a state lacks, or holds for another loss, is begun anew: thresholds after a run with `Trace_ELBO`, say. A
        warning at the end says if many rows ran out of proposals.
        """
        if init_state is not None:
            if self.constrain_fn is None:
                super().init(rng_key, *args, init_params=init_params, **kwargs)  # which also sets `constrain_fn`
            init_state = self._with_memory(init_state, args, kwargs)
        try:
            with one_sentence():
                result = super().run(
                    rng_key,
                    num_steps,
                    *args,
                    progress_bar=progress_bar,
                    stable_update=stable_update,
                    forward_mode_differentiation=forward_mode_differentiation,
                    init_state=init_state,
                    init_params=init_params,
                    **kwargs,
                )
        except RuntimeError as error:
            if not str(error).startswith(FAILURES):
                raise
            # the state that failed is gone with the program; what is wrong from the first step on can be told
            state = (
                super().init(rng_key, *args, init_params=init_params, **kwargs) if init_state is None else init_state
            )
            values = {**self.get_params(state), **(state.mutable_state or {})}
            said = sites_at_fault(
                (self.model, self.guide), args, {**kwargs, **self.static_kwargs}, values, as_typed_key(rng_key)
            )
            raise RuntimeError(f"{error} With the parameters that the run began with: {said}") from None
        warn_of_starving((result.state.mutable_state or {}).get(STATE_SITE))
        return result

    def evaluate(self, svi_state: Any, *args: Any, **kwargs: Any) -> Array:
        """The loss at the current parameters, under the thresholds that the state holds; compiled once."""
        if not isinstance(self.loss, EstimatorELBO):
            return super().evaluate(svi_state, *args, **kwargs)
        _, key = jax.random.split(svi_state.rng_key)
        values = {**self.get_params(svi_state), **(svi_state.mutable_state or {})}
        programs = (self.loss, *self.loss.settings, self.model, self.guide)
        return STORE.call(_evaluate, programs, (args, {**kwargs, **self.static_kwargs}), (key, values))

    def _with_memory(self, state: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
        others = {name: value for name, value in (state.mutable_state or {}).items() if name != STATE_SITE}
        if not isinstance(self.loss, EstimatorELBO):
            return state._replace(mutable_state=others or None)
        held = (state.mutable_state or {}).get(STATE_SITE)
        key = jax.random.fold_in(as_typed_key(state.rng_key), 0)
        values = {**self.get_params(state), **others}

        def begin() -> Any:
            return self.loss.init_state(key, values, self.model, self.guide, *args, **kwargs, **self.static_kwargs)

        if held is not None:
            wanted, shapes = (
                jax.tree.map(lambda v: (v.shape, v.dtype), tree) for tree in (jax.eval_shape(begin), held)
            )
            if wanted == shapes:
                return state
            LOGGER.warning(
                "init_state comes from a run with another estimator or other data, so what this one remembers, such as "
                "thresholds, is begun anew."
            )
        remembered = begin()
        if jax.tree.leaves(remembered):
            others[STATE_SITE] = remembered
        return state._replace(mutable_state=others or None)


def _evaluate(programs: tuple, data: tuple[tuple, dict[str, Any]], values: tuple[Array, dict[str, Any]]) -> Array:
    (loss, *_, model, guide), (args, kwargs), (key, params) = programs, data, values
    return loss.loss_with_mutable_state(key, params, model, guide, *args, **kwargs)["loss"]
