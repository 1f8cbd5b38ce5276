r"""`EstimatorELBO`: any relbo estimator as the loss of NumPyro's SVI.

For a program with row plate of size N, shared latents g and local latents z_i, the bound is

    E_q(g) [ log p(g) - log q(g) + (N / b) sum_i L_i(g) ],

L_i(g) being the estimator's bound on log p(x_i | g): ELBO, IWAE-K or R-ELBO of one row. As each L_i(g) is at most
log p(x_i | g), this is at most the ELBO of g alone, hence a lower bound on log p(x), whether the row plate is
subsampled or not: its factor N / b multiplies bounds. The factor of any *other* subsampled plate around sites of a row,
an inner one or, where the whole program is one row, any, stands inside the log density of that row, under the logarithm
of the bound. The mean of L_i over subsamples may then exceed log p(x_i | g): for all but the ELBO, which is linear,
minus the loss is no lower bound, and a warning says so once. Nor is it one where a handler scales log p, nor, under
`numpyro.enable_validation(False)`, where the guide reaches beyond the model's support: densities are not 0 there then.

The estimator's weights and, for VRS, its accept/reject step are those of one row given g; shared latents are drawn from
the guide and are never rejected. Where there is no row plate the whole program is one row.

Gradient. The shared latents are to the estimator what parameters are: it returns dL/dg along with the gradient in
the parameters. Shared latents with a reparameterised sampler pass dL/dg on to their parameters; the others get the
score function of the whole bound with a leave-one-out baseline over `num_shared` draws.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.elbo import ELBO

from relbo._check import is_int, require
from relbo._tree import attach_gradient, tree_add, tree_scale
from relbo.bounds import ELBO as ELBOBound
from relbo.estimators import AbstractEstimator
from relbo.numpyro.autoguides import set_up
from relbo.numpyro.layers import of_program, suited
from relbo.numpyro.memory import Notes, forgetting, without_memory
from relbo.numpyro.pair import build_batch, build_pair
from relbo.numpyro.program import Program
from relbo.numpyro.shared import Shared, draws_by_place, may_differ
from relbo.numpyro.store import STORE
from relbo.numpyro.strangers import recall
from relbo.streams import split
from relbo.types import Info
from relbo.view import Needs

STATE_SITE = "relbo$state"
"""Name under which the estimator's state rides in `SVIState.mutable_state`."""


class EstimatorELBO(ELBO):
    """A loss for `SVI` whose value is minus the estimator's bound and whose gradient is the estimator's.

    Args:
        estimator: any relbo estimator that needs no more than draws and log densities of the guide, or, where the
            latents of a row have reparameterised samplers, also the path of the draws (`Pathwise`, `DReG`), or, where
            they are Bernoulli sites, also layers of units (`DisARM`, `REBAR`).
        num_shared: draws of the latents outside the row plate; at least 2 if one of them, like any discrete one,
            has no reparameterised sampler.
        plate: name of the plate whose rows are weighed one by one; by default the outermost that all plated latents
            of the guide share.
        without_path: takes the place of an estimator that goes along the path of the draws, for programs without one
            and where the guide reaches beyond the model's support.
        for_rows: from the estimator and the number of rows that it sees at once to the estimator that is used.

    Example:
        >>> relbo.numpyro.EstimatorELBO(relbo.NVIL(2)).estimator.num_samples
        2
    """

    can_infer_discrete = True

    def __init__(
        self,
        estimator: AbstractEstimator,
        *,
        num_shared: int = 1,
        plate: str | None = None,
        without_path: AbstractEstimator | None = None,
        for_rows: Callable[[Any, int], Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(estimator, AbstractEstimator):
            raise ValueError(f"estimator must be a relbo estimator such as relbo.VIMCO(5), got {estimator!r}.")
        require(is_int(num_shared, at_least=1), "num_shared", "an integer >= 1", num_shared)
        self.estimator, self.num_shared, self.plate = estimator, num_shared, plate
        self.without_path, self.for_rows = without_path, for_rows
        self._notes = Notes()

    def init_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """What the estimator remembers before the first step; `relbo.numpyro.SVI` keeps it."""
        key_program, key_shared, key_init = split(as_typed_key(rng_key), 3)
        program = Program(model, guide, args, kwargs, key_program, param_map, self.plate)
        self._notes.say(program.layout.note)
        shared = self._draw_shared(key_shared, program, param_map)
        pair = build_pair(program, param_map, shared.values, shared.num_draws)
        estimator = self._estimator_for(program)
        return estimator.init(key_init, suited(pair, estimator), program.layout.num_data)

    def loss_with_mutable_state(
        self, rng_key: Array, param_map: dict[str, Any], model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Minus the bound, with the estimator's gradient attached, and the next mutable state."""
        if STATE_SITE not in param_map:
            self._notes.say(forgetting(self.estimator))
        step = self._step(rng_key, param_map, model, guide, args, kwargs)
        params = {name: param_map[name] for name in step.grads}
        loss = attach_gradient(-step.bound, tree_scale(step.grads, -1.0), params)
        mutable = dict(step.mutable)
        if STATE_SITE in param_map:
            mutable[STATE_SITE] = step.state
        return {"loss": loss, "mutable_state": mutable or None}

    def info(
        self, rng_key: Array, param_map: dict[str, Any], model: Any, guide: Any, *args: Any, **kwargs: Any
    ) -> Info:
        """What the estimator tells about one step: bound, validity and cost of each row, and its own diagnostics."""
        set_up(guide, args, kwargs)
        programs = (self, *self.settings, model, guide)
        return STORE.call(_info, programs, (args, kwargs), (rng_key, param_map))

    @property
    def settings(self) -> tuple[Any, ...]:
        """All that makes one loss differ from another."""
        return self.estimator, self.num_shared, self.plate

    def _step(
        self, rng_key: Array, param_map: dict[str, Any], model: Any, guide: Any, args: tuple, kwargs: dict
    ) -> "_Step":
        key_program, key_shared, key_init, key_step = split(as_typed_key(rng_key), 4)
        # the gradient is attached at the end: nothing on the way there is to be differentiated
        params = jax.lax.stop_gradient({name: value for name, value in param_map.items() if name != STATE_SITE})
        program = Program(model, guide, args, kwargs, key_program, params, self.plate)
        self._notes.say(program.layout.note)
        estimator = self._estimator_for(program)
        by_place = STATE_SITE in param_map and self.num_shared == 1 and may_differ(estimator, program)
        shared = self._draw_shared(key_shared, program, params, -(-estimator.num_proposals // 2) if by_place else None)
        num_shared = 1 if by_place else shared.num_draws
        whole, batch = build_pair(program, params, shared.values, num_shared), build_batch(program, num_shared)
        pair = suited(whole, estimator)
        if pair is not whole:
            batch = batch._replace(x=whole.features(batch.x))
        if STATE_SITE in param_map:
            estimator, state, keep, note = recall(estimator, param_map[STATE_SITE], program.layout.num_data)
            self._notes.say(note)
        else:
            estimator, state = without_memory(estimator, key_init, pair, program.layout.num_data)
            keep = None
        places = draws_by_place(shared, estimator, state, batch) if by_place else None
        if places is not None:
            pair = whole = build_pair(program, params, places.values, num_shared, estimator.num_proposals)
        found, state, info = estimator.estimate(key_step, pair, state, batch)
        gradient = found if pair is whole else of_program(found)
        state = state if keep is None else keep(state)
        num_data = program.layout.num_data
        by_draw = mean_bound(info, num_shared)
        grads = tree_scale(gradient.params, num_data)
        if program.layout.plate is not None:
            # an estimator that is no gradient of its bound has none to give for g beyond the model's
            of_model, of_guide = gradient.shared_model, gradient.shared_guide
            towards = tree_add(of_model, of_guide) if estimator.unbiased else of_model
            towards, share = (towards, None) if places is None else (places.pull(towards), places.share)
            value, extra = shared.pull_back(params, num_data * by_draw, tree_scale(towards, num_data), share)
            grads = tree_add(grads, extra)
        else:
            value = jnp.zeros(())
        return _Step(value + num_data * jnp.mean(by_draw), grads, state, program.mutable, info)

    def _estimator_for(self, program: Program) -> Any:
        estimator = self.estimator
        if estimator.needs is Needs.PATH and program.layout.pathless:
            if self.without_path is None:
                raise ValueError(
                    f"{type(estimator).__name__} needs latents with a reparameterised sampler, which "
                    f"{list(program.layout.pathless)} do not have. Choose an estimator that needs any proposal "
                    "(`relbo list` shows what each needs)."
                )
            estimator = self.without_path
        edged = list(program.layout.edged)
        if estimator.needs is Needs.PATH and edged:
            why = (
                f"the guide's {edged} reach beyond their supports in the model, and where p has an edge a gradient "
                "along the path of the draws is biased"
            )
            if self.without_path is None:
                raise ValueError(
                    f"{type(estimator).__name__} needs a guide with the model's supports: {why}. Take AutoNormal, or "
                    "transform the guide, or choose VRS or VIMCO."
                )
            self._notes.say(f"{why}: {type(self.without_path).__name__} takes its place, by score functions.")
            estimator = self.without_path
        if program.layout.moving and not estimator.follows_support:
            raise ValueError(
                f"{type(estimator).__name__} needs a guide whose supports stand still, got "
                f"{list(program.layout.moving)}, whose ends depend on parameters: the gradient would be wrong. Take "
                "Trace_ELBO() or EstimatorELBO(relbo.Pathwise()), or a guide with a fixed support, such as AutoNormal."
            )
        if program.layout.rescaled and not isinstance(estimator.bound, ELBOBound):
            self._notes.say(
                f"the plates {list(program.layout.rescaled)} are subsampled inside of what {type(estimator).__name__} "
                f"weighs as one row, so minus the loss is no lower bound on log p(x) and may exceed it. Run over these "
                "plates whole, weigh their rows one by one (plate=...), or take an estimator of the ELBO, such as RLOO."
            )
        rows = (self.num_shared if program.layout.shared else 1) * program.layout.num_rows
        return estimator if self.for_rows is None else self.for_rows(estimator, rows)

    def _draw_shared(
        self, key: PRNGKeyArray, program: Program, params: dict[str, Any], num_draws: int | None = None
    ) -> Shared:
        layout = program.layout
        if layout.scored and self.num_shared < 2:
            raise ValueError(
                f"num_shared must be at least 2 for the shared latents {list(layout.scored)}, which have no "
                "reparameterised sampler and need a leave-one-out baseline, got 1."
            )
        wanted = self.num_shared if num_draws is None else num_draws
        return Shared.draw(key, program, params, wanted if layout.shared else 1)


class _Step(NamedTuple):
    bound: Float[Array, ""]
    grads: dict[str, Any]
    """Ascent gradient of the bound, by parameter name; None for what is not a floating-point array."""
    state: Any
    mutable: dict[str, Any]
    info: Info


def _info(programs: tuple, data: tuple[tuple, dict[str, Any]], values: tuple[Array, dict[str, Any]]) -> Info:
    (loss, *_, model, guide), (args, kwargs), (key, params) = programs, data, values
    return loss._step(key, params, model, guide, args, kwargs).info


def mean_bound(info: Info, num_shared: int) -> Float[Array, " m"]:
    """Mean bound over the valid rows of each draw of the shared latents; over all rows where a draw has none.

    -inf, as the ELBO is, where a row was left out because of impossible draws; NaN, for not known, where no row at all
    is valid.
    """
    known = info.valid | jnp.isneginf(info.bound)
    bound = jnp.where(known, info.bound, 0).reshape(num_shared, -1)
    count = jnp.sum(known.reshape(num_shared, -1), axis=1).astype(bound.dtype)
    overall = jnp.sum(bound) / jnp.sum(count)
    return jnp.where(count > 0, jnp.sum(bound, axis=1) / jnp.maximum(count, 1), overall)


def as_typed_key(key: Array) -> PRNGKeyArray:
    """NumPyro takes both kinds of keys; relbo's own code wants typed ones."""
    return key if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else jax.random.wrap_key_data(key)
