r"""A NumPyro model and guide as a relbo pair, evaluated for all rows of a minibatch and all draws at once.

With the row plate of size N, subsampled to b rows, a program's log density is

    log p = log p(g) + (N / b) sum_i log p(x_i, z_i | g),        log q = log q(g) + (N / b) sum_i log q(z_i | x_i, g),

g being what stands outside the plate. relbo's estimators see the rows, *without* the factor N / b, as its
`log_joint` and `log_prob`; the factor comes back once, when rows are added up (`_objective.py`).

Other scale factors stay: with a_s the scale of a model site and c_s that of a guide site, a row has

    log p_i := sum_s a_s log p_s - sum_s (c_s - 1) log q_s,      log q_i := sum_s log q_s,

so log p_i - log q_i is the scaled difference that `Trace_ELBO` adds up, while q stays the density that was drawn
from, whose score is needed.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.handlers import trace

from relbo.numpyro import flow as _flow
from relbo.numpyro.densities import log_prob
from relbo.numpyro.enumeration import enumerated_trace, sum_out
from relbo.numpyro.layout import (
    Layout,
    Trace,
    depends_on,
    find_layout,
    frame_of,
    latents_of,
    plates_of,
    replayed,
    run,
    run_guide,
    samples_of,
)
from relbo.numpyro.supports import has_edge, moving, support_of
from relbo.streams import split


class Parts(NamedTuple):
    """Log densities of one whole-batch draw."""

    model: Float[Array, " b"]
    """Log p of each row."""
    guide: Float[Array, " b"]
    """Log q of each row."""
    shared: Float[Array, ""]
    """Log p - log q of everything outside the plate, scaled."""
    scored: Float[Array, ""]
    """Log q of the shared latents that have no reparameterised sampler, unscaled."""


class Program:
    """One model and guide with their arguments, a fixed minibatch and a fixed layout.

    Args:
        model: the NumPyro model.
        guide: its guide.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        key: draws the minibatch, once for all that follows.
        params: values of parameter and mutable sites.
        plate: the row plate, if the user chose one.
    """

    def __init__(
        self,
        model: Any,
        guide: Any,
        args: tuple,
        kwargs: dict,
        key: PRNGKeyArray,
        params: dict[str, Any],
        plate: str | None = None,
    ) -> None:
        self.model, self.guide, self.args, self.kwargs = model, guide, args, kwargs
        self.key, self.plates = key, {}
        guide_trace, model_trace = run(model, guide, args, kwargs, key, params)
        self.plates = plates_of(model_trace, guide_trace)
        self.sizes = {
            name: (site["value"].shape[0], site["args"][0])
            for tr in (model_trace, guide_trace)
            for name, site in tr.items()
            if site["type"] == "plate"
        }
        self.mutable = {
            name: site["value"]
            for tr in (guide_trace, model_trace)
            for name, site in tr.items()
            if site["type"] == "mutable"
        }
        self.noisy = frozenset(name for name, site in latents_of(guide_trace).items() if _flow.needs_noise(site))
        both = {**model_trace, **guide_trace}
        layout = find_layout(guide_trace, model_trace, plate, lambda *names: self._leaks(params, both, *names))
        self.layout = layout._replace(
            edged=tuple(n for n in layout.local if _is_edged(n, model_trace, guide_trace)),
            moving=self._moving(params, guide_trace, layout),
            rescaled=self._rescaled(both, layout.plate),
        )
        self.num_plate_dims = max([0, *(len(s["fn"].batch_shape) for s in both.values() if s["type"] == "sample")])
        chosen = self.layout.plate
        whole = (jnp.zeros(1, jnp.int32), 1, 1)
        self.index = rows_of(*(whole if chosen is None else (self.plates[chosen], *self.sizes[chosen])))
        self.observed = observations(model_trace, chosen, self.layout.num_rows)

    def _leaks(
        self, params: dict[str, Any], sites: Trace, plate: str, inside: tuple[str, ...], outside: tuple[str, ...]
    ) -> bool:
        # a plate whose latents reach beyond it does not make the program factorise over its rows, nor does one whose
        # rows share a latent that is summed out
        def depends(names: tuple[str, ...], *, is_inside: bool) -> bool:
            def densities(values: dict[str, Any]) -> list[Array]:
                fixed = {**params, **self.plates, **values}
                traces = run(self.model, self.guide, self.args, self.kwargs, self.key, fixed)
                found = [site for tr in traces for site in tr.values() if site["type"] == "sample"]
                found = [site for site in found if (frame_of(site, plate) is not None) == is_inside]
                return [site["fn"].log_prob(site["value"]) for site in found]

            return bool(names) and bool(depends_on(densities, {name: sites[name]["value"] for name in names}))

        return depends(inside, is_inside=False) or depends(outside, is_inside=True)

    def _moving(self, params: dict[str, Any], guide_trace: Trace, layout: Layout) -> tuple[str, ...]:
        latents = (*layout.local, *layout.scored)
        fixed = {name: guide_trace[name]["value"] for name in (*layout.local, *layout.shared)}

        def ends(values: dict[str, Any]) -> dict[str, Any]:
            sites = run_guide(self.guide, self.args, self.kwargs, self.key, {**fixed, **self.plates, **values})
            return {name: jax.tree.leaves(support_of(sites[name]["fn"])) for name in latents}

        reached = {name: fixed[name] for name in layout.shared if name not in layout.scored}
        return moving(ends, {**params, **reached})

    def _rescaled(self, sites: Trace, plate: str | None) -> tuple[str, ...]:
        # plates around sites of a row; all sites are of the only row where there is no plate of rows
        of_rows = [site for site in sites.values() if site["type"] == "sample"]
        of_rows = [site for site in of_rows if plate is None or frame_of(site, plate) is not None]
        names = dict.fromkeys(frame.name for site in of_rows for frame in site["cond_indep_stack"])
        return tuple(n for n in names if n != plate and self.sizes[n][0] < self.sizes[n][1])

    def draw(self, params: dict[str, Any], shared: dict[str, Array], key: PRNGKeyArray) -> tuple[dict, dict]:
        """One whole-batch draw from the guide given shared latents: (shared, local) values by name."""
        values = {**params, **self.plates, **shared}
        guide_trace = run_guide(self.guide, self.args, self.kwargs, key, values)
        return (
            {name: guide_trace[name]["value"] for name in self.layout.shared},
            {
                name: _flow.with_noise(guide_trace[name]) if name in self.noisy else guide_trace[name]["value"]
                for name in self.layout.local
            },
        )

    def sites(self, params: dict[str, Any], local: dict[str, Any]) -> dict[str, Array]:
        """Values of the latent and deterministic sites of the model at one whole-batch draw.

        A latent that is summed out has none, nor has what depends on it.
        """
        values = {name: local[name].value if name in self.noisy else local[name] for name in self.layout.local}
        values = {**params, **self.plates, **values}
        _, model_trace = run(self.model, self.guide, self.args, self.kwargs, self.key, values)
        wanted = {name: site["value"] for name, site in model_trace.items() if site["type"] == "deterministic"}
        wanted = {name: site["value"] for name, site in latents_of(model_trace).items()} | wanted
        summed = {name: wanted.pop(name) for name in self.layout.summed}
        if not summed:
            return wanted

        def depending(name: str) -> bool:
            def one(fixed: dict[str, Any]) -> Any:
                return run(self.model, self.guide, self.args, self.kwargs, self.key, {**values, **fixed})[1][name][
                    "value"
                ]

            return bool(depends_on(one, summed))

        return {name: value for name, value in wanted.items() if not depending(name)}

    def row_axes(self, sites: Any) -> dict[str, int | None]:
        """Of the sites that belong to rows: the axis of the row in their values, from the right; None if whole."""
        if self.layout.plate is None:
            return dict.fromkeys(sites)
        return {name: axis for name, axis in self.layout.local.items() if name in sites}

    def score(
        self,
        params: dict[str, Any],
        shared: dict[str, Array],
        local: dict[str, Any],
        shared_model: dict[str, Array] | None = None,
    ) -> Parts:
        """Log densities of one whole-batch draw, as functions of the parameters and of the shared latents.

        The shared latents that the model sees may be given apart from those of the guide.
        """
        noise = {name: local[name] for name in self.layout.local if name in self.noisy}
        values = {name: local[name].value if name in noise else local[name] for name in self.layout.local}
        values = {**params, **self.plates, **shared, **values}
        key_guide, key_model = split(self.key)
        guide_trace = run_guide(self.guide, self.args, self.kwargs, key_guide, values)
        total = _Total(self.layout)
        model = replayed(self.model, guide_trace, key_model, values, shared_model)
        if self.layout.summed:
            sites = samples_of(enumerated_trace(model, self.args, self.kwargs, self.num_plate_dims))
            groups, sites = sum_out(sites, self.layout.summed, self.layout.plate, self.layout.num_rows)
            for group in groups:
                total.add_model(group.log_prob, group.scale, -1 if group.is_inside else None)
        else:
            sites = samples_of(trace(model).get_trace(*self.args, **self.kwargs))
        for site in sites.values():
            total.add_model(log_prob(site["fn"], site["value"]), site["scale"], _dim_of(site, self.layout.plate))
        for name, site in samples_of(guide_trace).items():
            density = _flow.log_prob(site["fn"], noise[name]) if name in noise else log_prob(site["fn"], site["value"])
            total.add_guide(name, site, density)
        return total.parts()


class _Total:
    """Log densities of the sites of a program, added up row by row."""

    def __init__(self, layout: Layout) -> None:
        size = layout.num_rows
        self.layout, self.subsampling = layout, layout.num_data / size
        self.model, self.guide = [jnp.zeros(size)], [jnp.zeros(size)]
        self.outside, self.scored = [jnp.zeros(())], [jnp.zeros(())]

    def add_model(self, density: Array, scale: Any, dim: int | None, sign: int = 1) -> None:
        """A site of the model, or an observed one of the guide; `dim` is the axis of the row plate."""
        scale = 1.0 if scale is None else scale
        if self.layout.plate is not None and dim is None:
            self.outside.append(sign * jnp.sum(scale * density))
            return
        scale = scale if dim is None else scale / self.subsampling
        self.model.append(sign * _row_sum(density if _is_one(scale) else scale * density, dim))

    def add_guide(self, name: str, site: dict[str, Any], density: Array) -> None:
        """A site of the guide."""
        dim = _dim_of(site, self.layout.plate)
        is_outside = self.layout.plate is not None and dim is None
        if is_outside or site["is_observed"]:
            self.add_model(density, site["scale"], dim, sign=-1)
            if is_outside and name in self.layout.scored:
                self.scored.append(jnp.sum(density))
            return
        scale = 1.0 if site["scale"] is None else site["scale"]
        scale = scale if dim is None else scale / self.subsampling
        rows = _row_sum(density, dim)
        self.guide.append(rows)
        if not _is_one(scale):
            self.model.append(rows - _row_sum(scale * density, dim))

    def parts(self) -> Parts:
        """The sums."""
        return Parts(_add(self.model), _add(self.guide), _add(self.outside), _add(self.scored))


def _is_edged(name: str, model_trace: Trace, guide_trace: Trace) -> bool:
    return name in model_trace and has_edge(model_trace[name]["fn"], guide_trace[name]["fn"])


def _dim_of(site: dict[str, Any], plate: str | None) -> int | None:
    frame = frame_of(site, plate)
    return None if frame is None else frame.dim


def rows_of(index: Array, num_rows: int, num_data: int) -> Array:
    """The rows of a plate; if it is not subsampled, as numbers that are known while the program is traced."""
    if num_rows != num_data:
        return index
    with jax.ensure_compile_time_eval():
        return jnp.arange(num_data, dtype=index.dtype)


def observations(model_trace: Trace, plate: str | None, num_rows: int) -> dict[str, Array]:
    """Observed values with the row as first axis, of the sites that have a value for each row."""
    found = {}
    for name, site in model_trace.items():
        if site["type"] != "sample" or not site["is_observed"] or jnp.size(site["value"]) == 0:
            continue
        frame = frame_of(site, plate)
        if plate is None:
            found[name] = jnp.asarray(site["value"])[None]
        elif frame is not None and jnp.ndim(site["value"]) >= site["fn"].event_dim - frame.dim:
            rows = jnp.moveaxis(jnp.asarray(site["value"]), frame.dim - site["fn"].event_dim, 0)
            found.update({name: rows} if rows.shape[0] == num_rows else {})
    return found


def _is_one(scale: Any) -> bool:
    return isinstance(scale, int | float) and abs(scale - 1) < 1e-12


def _row_sum(log_prob: Array, dim: int | None) -> Float[Array, " b"]:
    if dim is None:
        return jnp.sum(log_prob)[None]
    rows = jnp.moveaxis(log_prob, dim, 0)
    return jnp.sum(rows.reshape(rows.shape[0], -1), axis=1)


def _add(terms: list[Array]) -> Array:
    # the leading zero only says what shape an empty sum has
    total = terms[0] if len(terms) == 1 else terms[1]
    for term in terms[2:]:
        total = total + term
    return total
