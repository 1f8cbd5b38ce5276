r"""`resample`: draws from the resampled posterior r after any SVI fit, and what they are worth.

The same code and the same fields as `relbo.posterior`, for a NumPyro program.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from relbo._check import checked_key, refuse, require
from relbo.acceptance import AbstractAcceptance
from relbo.numpyro.autoguides import set_up
from relbo.numpyro.fault import FAILURES, sites_at_fault
from relbo.numpyro.laplace import with_spread
from relbo.numpyro.layout import WHOLE, Trace, run
from relbo.numpyro.objective import as_typed_key
from relbo.numpyro.pair import build_batch, build_pair, from_rows
from relbo.numpyro.program import Program
from relbo.numpyro.store import LOGGER, STORE
from relbo.posterior import Posterior, Settings, assemble, budget_of, bytes_of, draw_rows, num_kept, settings_of
from relbo.thresholds import AbstractThreshold

WHOLE_ROW = 0
"""In place of an axis, which is counted from the right: the whole program is one row."""


def resample(
    key: Array,
    model: Any,
    guide: Any,
    params: Mapping[str, Any],
    data: Any = (),
    *,
    rate: Any = None,
    threshold: AbstractThreshold | float | str | None = None,
    num_samples: int = 1_000,
    num_draws: int = 1_000,
    max_rounds: int = 1_000,
    throw: bool = True,
    acceptance: AbstractAcceptance | None = None,
    plate: str | None = None,
    kwargs: dict[str, Any] | None = None,
) -> Posterior:
    """Draws from r, whoever trained the guide.

    Rows of the plate of the local latents are accepted one by one. With latents outside of that plate, draws of all
    latents are accepted or rejected as a whole, since r is then a distribution of all of them together.

    Args:
        key: randomness.
        model: the NumPyro model.
        guide: its guide, already fitted.
        params: what `svi.run(...).params` or `svi.get_params(state)` returned.
        data: positional arguments of model and guide: a tuple, or the one argument.
        rate: acceptance rate to aim at, in (0, 1): the smaller, the closer r is to the posterior.
        threshold: a threshold, a number (T itself) or words such as "quantile:0.9", instead.
        num_samples: S >= 2, draws to return.
        num_draws: plain draws from the guide behind T; they serve the weighed estimates too.
        max_rounds: a row gives up after max_rounds * S proposals.
        throw: whether a row that gives up is an error; if not it is flagged in `exhausted`.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        plate: the row plate, as for `EstimatorELBO`.
        kwargs: keyword arguments of model and guide.

    Returns:
        A `Posterior`, with the values of the program's sites in `samples`.

    Example:
        >>> draws = relbo.numpyro.resample(key, model, guide, {"logit": jnp.array(0.0)}, 1.0, rate=0.5, num_samples=50)
        >>> draws.samples["z"].shape
        (50,)
    """
    checked_key(key, "resample: key")
    require(isinstance(params, Mapping), "resample: params", "a dictionary, such as svi.get_params(state)", params)
    params = dict(params)
    expected = "a tuple of the positional arguments, or the one argument; a list as that argument is ([...],)"
    require(not isinstance(data, list), "resample: data", expected, data)
    settings = settings_of(threshold, rate, acceptance, num_samples, num_draws, max_rounds, throw=throw)
    args, kwargs = data if isinstance(data, tuple) else (data,), kwargs or {}
    for what, program in (("model", model), ("guide", guide)):
        try:  # of what is called, not of what it wraps
            inspect.signature(program, follow_wrapped=False).bind(*args, **kwargs)
        except TypeError as error:
            raise ValueError(f"resample: data and kwargs must be the arguments of the {what}, got {error}.") from None
    set_up(guide, args, kwargs)
    programs, key = (model, guide, plate), as_typed_key(key)
    try:
        figures, samples, axes = STORE.call(_draw, programs, (args, kwargs), (settings, params, key))
    except RuntimeError as error:
        if not str(error).startswith(FAILURES):
            raise
        raise RuntimeError(
            f"{error} With these parameters, {sites_at_fault(programs[:2], args, kwargs, params, key)}"
        ) from None
    places = {name: None if int(axis) == WHOLE_ROW else int(axis) for name, axis in axes.items()}
    return assemble(figures, places, samples=samples)


def _draw(
    programs: tuple, data: tuple[tuple, dict[str, Any]], values: tuple[Settings, dict[str, Any], PRNGKeyArray]
) -> tuple[dict[str, Any], dict[str, Array], dict[str, Array]]:
    """Draws, the values of sites at the draws from r, and where the row stands in those at the proposals."""
    (model, guide, plate), (args, kwargs), (settings, params, key) = programs, data, values
    key_program, key_draw = jax.random.split(key)
    _check_params(run(model, guide, args, kwargs, key_program, params), params)
    guide = with_spread(guide, params)
    program = Program(model, guide, args, kwargs, key_program, params, plate)
    if program.layout.shared:
        program = Program(model, guide, args, kwargs, key_program, params, WHOLE)
    if program.layout.note is not None:
        LOGGER.warning(program.layout.note)
    _refuse_minibatch(program)
    rows = program.layout.num_rows
    budget = budget_of(settings, rows)
    figures = draw_rows(key_draw, build_pair(program, params, {}, 1), build_batch(program, 1).x, settings, budget)

    def sites_at(z: dict[str, Any]) -> dict[str, Array]:
        local = jax.tree.map(lambda v: v[0], from_rows(program, z, 1))
        return jax.vmap(lambda v: program.sites(params, v))(local)

    # sites such as predictions may be far larger than latents: so many proposals as there is memory for
    one = jax.eval_shape(sites_at, jax.tree.map(lambda v: v[:, :1], figures["z"]))
    axes = program.row_axes(one)
    own = {name: jax.ShapeDtypeStruct((1, *one[name].shape), one[name].dtype) for name in axes}
    most = num_kept(bytes_of(own), 1, settings.num_draws + budget)
    kept = jax.tree.map(lambda z, p: jnp.concatenate([z, p[:, :most]], axis=1), figures["z"], figures["proposals"])
    sites, size = sites_at(kept), settings.num_samples
    figures["proposals"] = {
        name: sites[name][None, size:] if axis is None else jnp.moveaxis(sites[name][size:], axis, 0)
        for name, axis in axes.items()
    }
    places = {name: jnp.asarray(WHOLE_ROW if axis is None else axis) for name, axis in axes.items()}
    return figures, {name: value[:size] for name, value in sites.items()}, places


def _check_params(traces: tuple[Trace, Trace], params: dict[str, Any]) -> None:
    # a parameter that neither `params` nor a handler of the program's own gives is what the program begins with
    sites = {**traces[0], **traces[1]}
    begun = {n: s for n, s in sites.items() if s["type"] == "param" and (not s["args"] or s["value"] is s["args"][0])}
    missing = [name for name in begun if name not in params]
    for name in params:
        if missing and name not in sites:  # what is beside the whole fit is no misspelt name
            refuse("resample: params", f"those of model and guide, {sorted(sites)}", name, missing)
    require(not missing, "resample: params", f"all of the fit, but {missing} are missing", sorted(params))


def _refuse_minibatch(program: Program) -> None:
    # a scaled likelihood is that of no posterior; rows that are weighed one by one do not mind
    for name, (num_rows, num_data) in program.sizes.items():
        if num_rows != num_data and name != program.layout.plate:
            raise ValueError(
                f"resample needs all of the data to weigh a draw, got plate {name!r} subsampled to {num_rows} of "
                f"{num_data} rows. Call it without subsampling."
            )
