"""What two traces tell about a model and its guide: which latents there are, and which belong to a row of data."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from numpyro import distributions as dist
from numpyro.handlers import replay, substitute, trace
from numpyro.ops.provenance import eval_provenance

from relbo.numpyro.enumeration import is_summed
from relbo.numpyro.seeding import Seeded
from relbo.streams import split

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
    summed: frozenset[str] = frozenset()
    """Latents of the model that are summed out (`relbo.numpyro.enumeration`)."""
    note: str | None = None
    """What a user should know about this choice."""
    edged: tuple[str, ...] = ()
    """Those of `local` whose guide is known to reach beyond their support in the model, where p has an edge."""
    moving: tuple[str, ...] = ()
    """Those of `local` and `scored` whose support in the guide depends on parameters or on shared latents."""
    rescaled: tuple[str, ...] = ()
    """Subsampled plates, beside that of the rows, whose factor stands inside the log density of a row."""


def is_deterministic(site: dict[str, Any]) -> bool:
    """Whether the site's value is a function of parameters and other sites (`Delta`, also under transforms)."""
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return isinstance(fn, dist.Delta)


def samples_of(program_trace: Trace) -> Trace:
    """The sample sites."""
    return {name: site for name, site in program_trace.items() if site["type"] == "sample"}


def latents_of(program_trace: Trace) -> Trace:
    """The unobserved sample sites."""
    return {name: site for name, site in samples_of(program_trace).items() if not site["is_observed"]}


def frame_of(site: dict[str, Any], plate: str | None) -> Any:
    """The site's frame of the plate, or None if it stands outside."""
    return next((frame for frame in site["cond_indep_stack"] if frame.name == plate), None)


def without_path(latents: Trace) -> tuple[str, ...]:
    """Names of the latents whose sampler is not reparameterised."""
    return tuple(name for name, site in latents.items() if not site["fn"].has_rsample)


def run_guide(guide: Any, args: tuple, kwargs: dict, key: jax.Array, values: dict[str, Any]) -> Trace:
    """Trace of the guide. Keys are handed out before values are fixed, so fixing one leaves other draws as they are."""
    return trace(substitute(Seeded(guide, key), data=values)).get_trace(*args, **kwargs)


def replayed(
    model: Any, guide_trace: Trace, key: jax.Array, values: dict[str, Any], shared: dict[str, Any] | None = None
) -> Any:
    """The model on what the guide drew; `values` fixes more by name, and those in `shared` take their place."""
    seen = {**guide_trace, **{name: {**guide_trace[name], "value": value} for name, value in (shared or {}).items()}}
    return replay(substitute(Seeded(model, key), data={**values, **(shared or {})}), seen)


def run(
    model: Any, guide: Any, args: tuple, kwargs: dict, key: jax.Array, values: dict[str, Any]
) -> tuple[Trace, Trace]:
    """Traces of the guide and of the model replayed on it; `values` fixes parameters, plates and latents by name."""
    key_guide, key_model = split(key)
    guide_trace = run_guide(guide, args, kwargs, key_guide, values)
    return guide_trace, trace(replayed(model, guide_trace, key_model, values)).get_trace(*args, **kwargs)


def plates_of(*traces: Trace) -> dict[str, jax.Array]:
    """Indices of every plate."""
    return {name: site["value"] for tr in traces for name, site in tr.items() if site["type"] == "plate"}


def check_match(guide_trace: Trace, model_trace: Trace) -> frozenset[str]:
    """Refuses a guide that does not propose the latents of the model, and names those that are to be summed out."""
    guide, model = latents_of(guide_trace), latents_of(model_trace)
    summed = frozenset(name for name in model if name not in guide and is_summed(model[name]))
    missing = sorted(set(model) - set(guide) - summed)
    if missing:
        raise ValueError(
            f"the guide must sample every latent of the model, but {missing} are only in the model. Add them to the "
            "guide, or have discrete ones summed out by numpyro.contrib.funsor.config_enumerate."
        )
    unknown = sorted(n for n in guide if n not in model and not guide[n]["infer"].get("is_auxiliary"))
    if unknown:
        raise ValueError(
            f"every latent of the guide must be in the model, but {unknown} are only in the guide. Sample them in the "
            "model, or mark them infer={'is_auxiliary': True}."
        )
    return summed


def choose_plate(latents: Trace, wanted: str | None) -> tuple[str | None, str | None]:
    """The plate that all plated latents share, the outermost if there are several; `wanted` overrides the choice.

    Where they share none the whole program is one row, and a note says so.
    """
    stacks = [[frame.name for frame in site["cond_indep_stack"]] for site in latents.values()]
    stacks = [stack for stack in stacks if stack]
    if wanted is not None:
        if not any(wanted in stack for stack in stacks):
            known = sorted({name for stack in stacks for name in stack})
            raise ValueError(f"plate must name a plate around latents of the guide, one of {known}, got {wanted!r}.")
        return wanted, None
    if not stacks:
        return None, None
    # frames are recorded from the innermost plate outwards
    common = [name for name in reversed(stacks[0]) if all(name in stack for stack in stacks)]
    if not common:
        plates = sorted({name for stack in stacks for name in stack})
        return None, (
            f"the latents stand in plates that do not share one, {plates}, so the whole program is weighed as one row. "
            "Pass plate=... to weigh the rows of one of them by themselves; latents outside of it are then shared by "
            "all rows."
        )
    return common[0], None


def find_layout(
    guide_trace: Trace,
    model_trace: Trace,
    wanted: str | None,
    leaks: Callable[[str, tuple[str, ...], tuple[str, ...]], bool],
) -> Layout:
    """Divides the latents into rows.

    Args:
        guide_trace: a run of the guide.
        model_trace: the model, replayed on it.
        wanted: plate chosen by the user, or `WHOLE`.
        leaks: `plate, inside, outside -> bool`, whether a site outside the plate depends on the first latents, or one
            inside on the second.
    """
    summed = check_match(guide_trace, model_trace)
    latents = {name: site for name, site in latents_of(guide_trace).items() if not is_deterministic(site)}
    if not latents:
        raise ValueError(
            "the guide must have a random latent to draw, got "
            + ("none but points (Delta sites, as those of AutoDelta). " if latents_of(guide_trace) else "none at all. ")
            + "Train it with Trace_ELBO(), or choose a guide that has a spread: AutoNormal or, to draw from after a "
            "fit, AutoLaplaceApproximation."
        )
    plate, note = (None, None) if wanted == WHOLE else choose_plate(latents, wanted)
    local = {name: site for name, site in latents.items() if frame_of(site, plate) is not None}
    inside = frozenset(name for name in summed if frame_of(model_trace[name], plate) is not None)
    if plate is None or leaks(plate, (*local, *inside), tuple(summed - inside)):
        return Layout(None, 1, 1, dict.fromkeys(latents, 0), (), (), without_path(latents), summed, note)
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
        summed=summed,
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
