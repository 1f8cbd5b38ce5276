r"""Discrete latents of the model that no guide proposes, summed out as `TraceEnum_ELBO` does.

A latent that is marked `infer={"enumerate": "parallel"}` (`numpyro.contrib.funsor.config_enumerate`) and that the
guide leaves out is not drawn: the model is run with all its values at once, along an axis of their own, and

    log p(x, z) = log sum_c p(x, z, c)

takes the place of log p(x, z, c). Factors that share such latents are multiplied and summed together, plates from the
inside out (Obermeyer et al. 2019, "Tensor Variable Elimination for Plated Factor Graphs"), by funsor.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro import distributions as dist

from relbo.numpyro.densities import log_prob

Site = dict[str, Any]


class Group(NamedTuple):
    """Factors that share summed latents, after the sum."""

    log_prob: Float[Array, "..."]
    """(b,) for a group inside the row plate, () for one outside."""
    is_inside: bool
    scale: Any
    """The scale that all its sites have."""


def is_summed(site: Site) -> bool:
    """Whether the model asks for the latent to be summed out."""
    return site["infer"].get("enumerate") == "parallel"


def enumerated_trace(model: Callable, args: tuple, kwargs: dict, num_plate_dims: int) -> dict[str, Site]:
    """Trace of the model with all values of its enumerated latents at once."""
    enum, to_enum_plates, trace = _funsor_handlers()
    with to_enum_plates(), enum(first_available_dim=-1 - num_plate_dims):
        return trace(model).get_trace(*args, **kwargs)


def sum_out(
    sites: dict[str, Site], summed: frozenset[str], plate: str | None, num_rows: int
) -> tuple[list[Group], dict[str, Site]]:
    """Sums the enumerated latents out.

    Args:
        sites: the sample sites of an `enumerated_trace`.
        summed: names of the latents to sum out.
        plate: the row plate.
        num_rows: b.

    Returns:
        What is left of the factors that depend on them, and the sites that do not.
    """
    import funsor
    import funsor.ops
    import funsor.optimizer
    from numpyro.contrib.funsor import to_data, to_funsor

    factors = {
        name: to_funsor(_factor(site, name in summed), output=funsor.Real, dim_to_name=site["infer"]["dim_to_name"])
        for name, site in sites.items()
        if summed.intersection(site["infer"]["dim_to_name"].values()) or name in summed
    }
    for name, factor in factors.items():
        over_time = [dim for dim in factor.inputs if dim.startswith(("_time", "_PREV_"))]
        if over_time:
            raise ValueError(
                f"the enumerated latents must not run along a scan, got one at {name!r}. Write the loop in Python with "
                "numpyro.contrib.funsor.markov, or propose the latent in the guide."
            )
    groups = []
    for names, variables in _components({name: summed & frozenset(f.inputs) for name, f in factors.items()}):
        plates = {frame.name for name in names for frame in sites[name]["cond_indep_stack"]}
        is_inside = plate in plates
        with funsor.interpretations.lazy:
            result = funsor.sum_product.sum_product(
                funsor.ops.logaddexp,
                funsor.ops.add,
                [factors[name] for name in names],
                eliminate=variables | frozenset(plates - {plate}),
                plates=frozenset(plates - {plate}),
            )
        result = funsor.optimizer.apply_optimizer(result)
        value = to_data(result, name_to_dim={plate: -1} if is_inside else {})
        groups.append(
            Group(
                jnp.broadcast_to(value, (num_rows,)) if is_inside else jnp.reshape(value, ()),
                is_inside,
                _common_scale({name: sites[name]["scale"] for name in names}),
            )
        )
    return groups, {name: site for name, site in sites.items() if name not in factors}


def _factor(site: Site, is_summed_out: bool) -> Array:  # noqa: FBT001
    fn = site["fn"]
    if is_summed_out:
        # where a latent is masked it still has a law to be summed over: that sum is 1
        shape = fn.batch_shape
        while isinstance(fn, dist.MaskedDistribution | dist.ExpandedDistribution):
            fn = fn.base_dist
        fn = fn.expand(shape)
    return log_prob(fn, site["value"])


def _components(variables: dict[str, frozenset[str]]) -> list[tuple[list[str], frozenset[str]]]:
    """Groups of factors that share variables, directly or through others."""
    found: list[tuple[list[str], frozenset[str]]] = []
    for name, own in variables.items():
        touching = [group for group in found if group[1] & own]
        found = [group for group in found if not group[1] & own]
        names = [n for group in touching for n in group[0]]
        found.append(([*names, name], own.union(*(group[1] for group in touching))))
    return found


def _common_scale(scales: dict[str, Any]) -> Any:
    values = {name: 1.0 if scale is None else scale for name, scale in scales.items()}
    if not all(isinstance(value, int | float) for value in values.values()) or len(set(values.values())) != 1:
        raise ValueError(
            f"sites that depend on the same enumerated latents must have one scale, a number, got {values}. Give them "
            "the same plates and the same handlers.scale."
        )
    return next(iter(values.values()))


def _funsor_handlers() -> tuple[type, Callable[[], AbstractContextManager], type]:
    try:
        from numpyro.contrib.funsor import enum, plate_to_enum_plate, trace
    except ImportError as error:
        error.add_note("Latents that are summed out of the model need funsor: install it with `pip install funsor`.")
        raise
    return enum, plate_to_enum_plate, trace
