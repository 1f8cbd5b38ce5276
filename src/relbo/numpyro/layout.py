"""What two traces tell about a model and its guide: which latents there are, and which belong to a row of data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from numpyro import distributions as dist
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.ops.provenance import eval_provenance

Trace = dict[str, dict[str, Any]]
"""Sites by name, as `numpyro.handlers.trace` records them."""


WHOLE = "relbo$whole"
"""In place of the name of a plate: take the whole program as one row."""


class Layout(NamedTuple):
    """How the latents of a program are divided into rows.

    The unit that an estimator weighs is one row of the plate that holds the local latents. A program without such a
    plate is one row as a whole.
    """

    plate: str | None
    """The plate whose rows are weighed one by one; None if the whole program is one row."""
    num_rows: int
    """Rows of the plate in this minibatch, b."""
    num_data: int
    """Rows of the plate in the dataset, N."""
    local: dict[str, int]
    """Latents of a row: name -> axis of the plate in the latent's value, counted from the right."""
    shared: tuple[str, ...]
    """Latents outside the plate, drawn once for all rows."""
    scored: tuple[str, ...]
    """Those of `shared` without a reparameterised sampler."""
    pathless: tuple[str, ...]
    """Those of `local` without a reparameterised sampler."""


def is_deterministic(site: dict[str, Any]) -> bool:
    """Whether the site's value is a function of parameters and other sites (`Delta`, also under transforms)."""
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.Delta)


def latents_of(program_trace: Trace) -> Trace:
    """The unobserved sample sites."""
    return {name: site for name, site in program_trace.items() if site["type"] == "sample" and not site["is_observed"]}


def frame_of(site: dict[str, Any], plate: str | None) -> Any:
    """The site's frame of the plate, or None if it stands outside."""
    return next((frame for frame in site["cond_indep_stack"] if frame.name == plate), None)


def without_path(latents: Trace) -> tuple[str, ...]:
    """Names of the latents whose sampler is not reparameterised."""
    return tuple(name for name, site in latents.items() if not site["fn"].has_rsample)


def run_guide(guide: Any, args: tuple, kwargs: dict, key: jax.Array, values: dict[str, Any]) -> Trace:
    """Trace of the guide. Keys are handed out before values are fixed, so fixing one leaves other draws as they are."""
    return trace(substitute(seed(guide, key), data=values)).get_trace(*args, **kwargs)


def run(
    model: Any,
    guide: Any,
    args: tuple,
    kwargs: dict,
    key: jax.Array,
    values: dict[str, Any],
    shared: dict[str, Any] | None = None,
) -> tuple[Trace, Trace]:
    """Traces of the guide and of the model replayed on it.

    `values` fixes parameters, plates and latents by name; for the model those in `shared` take their place.
    """
    key_guide, key_model = jax.random.split(key)
    guide_trace = run_guide(guide, args, kwargs, key_guide, values)
    seen = {**guide_trace, **{name: {**guide_trace[name], "value": value} for name, value in (shared or {}).items()}}
    replayed = replay(substitute(seed(model, key_model), data={**values, **(shared or {})}), seen)
    return guide_trace, trace(replayed).get_trace(*args, **kwargs)


def plates_of(*traces: Trace) -> dict[str, jax.Array]:
    """Indices of every plate."""
    return {name: site["value"] for tr in traces for name, site in tr.items() if site["type"] == "plate"}


def check_match(guide_trace: Trace, model_trace: Trace) -> None:
    """Refuses a guide that does not propose exactly the latents of the model."""
    guide, model = latents_of(guide_trace), latents_of(model_trace)
    missing = sorted(set(model) - set(guide))
    if missing:
        raise ValueError(
            f"the guide must sample every latent of the model, but {missing} are only in the model. Add them to the "
            "guide, or sum them out of the model."
        )
    unknown = sorted(n for n in guide if n not in model and not guide[n]["infer"].get("is_auxiliary"))
    if unknown:
        raise ValueError(
            f"every latent of the guide must be in the model, but {unknown} are only in the guide. Sample them in the "
            "model, or mark them infer={'is_auxiliary': True}."
        )


def choose_plate(latents: Trace, wanted: str | None) -> str | None:
    """The plate that all plated latents share, the outermost if there are several; `wanted` overrides the choice."""
    stacks = [[frame.name for frame in site["cond_indep_stack"]] for site in latents.values()]
    stacks = [stack for stack in stacks if stack]
    if wanted is not None:
        if not any(wanted in stack for stack in stacks):
            known = sorted({name for stack in stacks for name in stack})
            raise ValueError(f"plate must name a plate around latents of the guide, one of {known}, got {wanted!r}.")
        return wanted
    if not stacks:
        return None
    # frames are recorded from the innermost plate outwards
    common = [name for name in reversed(stacks[0]) if all(name in stack for stack in stacks)]
    if not common:
        raise ValueError(
            f"the latents stand in plates that do not share one, {sorted({n for s in stacks for n in s})}, so it is "
            "not clear whose rows are to be weighed one by one. Pass plate=... to choose; latents outside of it are "
            "then shared by all rows."
        )
    return common[0]


def find_layout(
    guide_trace: Trace, model_trace: Trace, wanted: str | None, leaks: Callable[[str, tuple[str, ...]], bool]
) -> Layout:
    """Divides the latents into rows.

    Args:
        guide_trace: a run of the guide.
        model_trace: the model, replayed on it.
        wanted: plate chosen by the user, or `WHOLE`.
        leaks: `plate, names -> bool`, whether a site outside the plate depends on the named local latents.
    """
    check_match(guide_trace, model_trace)
    latents = {name: site for name, site in latents_of(guide_trace).items() if not is_deterministic(site)}
    if not latents:
        raise ValueError("the guide must have a random latent to draw; for one of Delta sites only, use Trace_ELBO().")
    plate = None if wanted == WHOLE else choose_plate(latents, wanted)
    local = {name: site for name, site in latents.items() if frame_of(site, plate) is not None}
    if plate is None or leaks(plate, tuple(local)):
        return Layout(None, 1, 1, dict.fromkeys(latents, 0), (), (), without_path(latents))
    axes = {name: frame_of(site, plate).dim - site["fn"].event_dim for name, site in local.items()}
    shared = {name: site for name, site in latents.items() if name not in local}
    index = plates_of(guide_trace)[plate]
    return Layout(
        plate=plate,
        num_rows=index.shape[0],
        num_data=guide_trace[plate]["args"][0],
        local=axes,
        shared=tuple(shared),
        scored=without_path(shared),
        pathless=without_path(local),
    )


def depends_on(function: Any, values: dict[str, Any]) -> frozenset[str]:
    """Names of those `values` on which any output of `function(values)` depends."""
    # provenance tracks keyword arguments, and site names need not be identifiers
    names = {f"value_{i}": name for i, name in enumerate(values)}
    sources = eval_provenance(
        lambda **kw: function({names[k]: v for k, v in kw.items()}), **{k: values[n] for k, n in names.items()}
    )
    is_set = jax.tree.leaves(sources, is_leaf=lambda leaf: isinstance(leaf, frozenset))
    return frozenset(names[k] for leaf in is_set for k in leaf)
