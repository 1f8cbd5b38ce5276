r"""The Bernoulli sites of a guide as layers of units, for the estimators that work on logits (ARM, DisARM, REBAR, ...).

Every unobserved site of a row is one layer, in the order of the guide: the logits of a site can depend on the sites
before it, which is all that the estimators ask of layers. A layer's units are all the numbers of the site in one row,
whatever their shape. The guide runs for all rows together (`relbo.rows`), and at each site the estimator's unit makes
the value from the logits and the noise.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from numpyro import distributions as dist
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from relbo import units
from relbo._tree import tree_add
from relbo.estimators import ARM, AbstractEstimator, Concrete, DisARM
from relbo.models.base import AbstractBernoulliProposal, AbstractModel, Layers
from relbo.needs import Needs
from relbo.numpyro.layout import Trace
from relbo.numpyro.pair import ProgramPair, Row
from relbo.rows import ROWS, for_all_rows
from relbo.types import Pair

BITS_ALONE = (ARM, DisARM)
"""Estimators that run the program at zeros and ones only, never in between."""
AllRows = tuple[Float[Array, "b _"], ...]
"""`Layers` of all rows together."""
_BERNOULLI = (dist.BernoulliLogits, dist.BernoulliProbs)


class Layer(NamedTuple):
    """One site of the guide."""

    name: str
    axis: int
    """Axis of the row in the site's value, from the right; 0 if the whole program is one row."""
    shape: tuple[int, ...]
    """Of the value in one row."""
    dtype: Any
    """Of the logits."""

    def to_rows(self, value: Float[Array, "..."]) -> Float[Array, "b d"]:
        """(program's own axes) -> (row, unit)."""
        rows = value[None] if self.axis == 0 else jnp.moveaxis(value, self.axis, 0)
        return rows.reshape(rows.shape[0], -1)

    def from_rows(self, rows: Float[Array, "b d"]) -> Float[Array, "..."]:
        """The inverse of `to_rows`."""
        value = rows.reshape(rows.shape[0], *self.shape)
        return value[0] if self.axis == 0 else jnp.moveaxis(value, 0, self.axis)


class ProgramLayers(AbstractBernoulliProposal):
    """The guide as layers of Bernoulli units; called for one row inside of `RowView.each`."""

    pair: ProgramPair
    layers: tuple[Layer, ...] = eqx.field(static=True)
    integer: bool = eqx.field(static=True)
    """Whether the program sees bits as integers, as NumPyro draws them, and not as floating-point numbers."""

    def rollout(self, noise: tuple[Any, ...], x: PyTree, unit: units.Unit) -> tuple[Layers, Layers]:
        """One run of the guide for all rows and each draw of the shared latents."""
        return for_all_rows(lambda rows: self._all_rows(rows, unit), noise)

    def noise(self, key: PRNGKeyArray) -> Layers:
        """Uniform noise for the units of one row."""
        keys = jax.random.split(key, len(self.layers))
        sizes = [(math.prod(layer.shape),) for layer in self.layers]
        made = zip(keys, sizes, self.layers, strict=True)
        return tuple(units.uniform_noise(k, size, layer.dtype) for k, size, layer in made)

    def _all_rows(self, noise: tuple[Any, ...], unit: units.Unit) -> tuple[AllRows, AllRows]:
        pair, num_shared = self.pair, self.pair.num_shared

        key_guide, _ = jax.random.split(pair.program.key)  # the key that `Program.score` runs it with

        def run(shared: dict[str, Array], noise: tuple[Any, ...]) -> tuple[AllRows, AllRows]:
            decide = _Decide(self.layers, noise, unit, integer=self.integer)
            with decide:
                _guide_of(pair, key_guide, shared)()
            return tuple(decide.values), tuple(decide.logits)

        by_draw = jax.tree.map(lambda leaf: leaf.reshape(num_shared, -1, *leaf.shape[1:]), noise)
        found = pair.for_each_shared(run, pair.shared_guide, by_draw)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)


class ProgramRows(AbstractModel):
    """The model of a program, called for one row inside of `RowView.each`; x is what is observed in the row."""

    pair: ProgramPair
    layers: tuple[Layer, ...] = eqx.field(static=True)
    integer: bool = eqx.field(static=True)
    """Whether the program sees bits as integers."""

    def log_joint(self, x: PyTree, z: Layers) -> Float[Array, ""]:
        """Log p of the row, as `relbo.numpyro.program` defines it."""

        def all_rows(rows: AllRows) -> Float[Array, " b"]:
            values = {
                layer.name: _seen(row, integer=self.integer).reshape(-1, 1, *layer.shape)
                for layer, row in zip(self.layers, rows, strict=True)
            }
            # a value between 0 and 1 is outside of the support, but not an error here
            with numpyro.validation_enabled(is_validate=False):
                row = Row(jnp.arange(len(rows[0]), dtype=jnp.int32), {})
                return self.pair.log_densities(row, values)[0][:, 0]

        return for_all_rows(all_rows, z)

    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, PyTree]:
        """Refused."""
        raise ValueError("a NumPyro program takes its data as arguments, so it cannot draw one row of them.")

    def num_features(self) -> int:
        """Numbers observed in one row."""
        return self.pair.num_features


def suited(pair: ProgramPair, estimator: AbstractEstimator) -> ProgramPair | Pair:
    """The pair itself or, for an estimator that needs them, as Bernoulli layers."""
    return by_layers(pair, type(estimator)) if estimator.needs is Needs.BITS else pair


def of_program(gradient: Pair) -> ProgramPair:
    """The gradient in the program's own values from that in its model and in its layers."""
    model: Any = gradient.model
    proposal: Any = gradient.proposal
    return tree_add(model.pair, proposal.pair)


def by_layers(pair: ProgramPair, kind: type[AbstractEstimator]) -> Pair:
    """The pair as estimators of this kind need it, or a `ValueError` that says what the program does not allow."""
    sentence = refusal(pair, kind)
    if sentence is not None:
        raise ValueError(sentence)
    return _layered(pair, kind)


def refusal(pair: ProgramPair, kind: type[AbstractEstimator]) -> str | None:
    """Why the latents of a row are no layers for estimators of this kind; None if they are."""
    if issubclass(kind, Concrete):
        return (
            "Concrete needs a model whose own units can be relaxed, which a NumPyro model does not show. Choose REBAR, "
            "RELAX or StraightThrough."
        )
    obstacle = _obstacle(pair)
    if obstacle is not None:
        return (
            f"{kind.__name__} needs Bernoulli layers: every latent of a row must be a Bernoulli site of the guide, but "
            f"{obstacle}. Choose an estimator that needs any proposal, such as RLOO, VIMCO or VRS."
        )
    if issubclass(kind, BITS_ALONE):
        return None
    try:
        jax.eval_shape(lambda: _one_relaxed_run(_layered(pair, kind)))
    except TypeError as error:
        return (
            f"{kind.__name__} runs the program at values of its Bernoulli latents between 0 and 1, as floating-point "
            f"numbers, which it does not take ({str(error).splitlines()[0]}). Choose DisARM or ARM, which need bits "
            "alone."
        )
    return None


class _Decide(Messenger):
    """Gives each layer the value that the unit makes, and keeps values and logits by row."""

    def __init__(self, layers: tuple[Layer, ...], noise: tuple[Any, ...], unit: units.Unit, *, integer: bool) -> None:
        super().__init__()
        self.places = {layer.name: (layer, n) for layer, n in zip(layers, noise, strict=True)}
        self.unit, self.integer = unit, integer
        self.values: list[Array] = []
        self.logits: list[Array] = []

    def process_message(self, msg: dict[str, Any]) -> None:
        """At a site that is a layer."""
        if msg["type"] != "sample" or msg["name"] not in self.places:
            return
        layer, noise = self.places[msg["name"]]
        logits = layer.to_rows(_logits(msg))
        values = jax.vmap(self.unit)(logits, noise)
        self.values.append(values)
        self.logits.append(logits)
        msg["value"] = _seen(layer.from_rows(values), integer=self.integer)


class _Watch(Messenger):
    """Notes the sites that have their values before any handler could choose them."""

    def __init__(self) -> None:
        super().__init__()
        self.ready: set[str] = set()

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["value"] is not None:
            self.ready.add(msg["name"])


def _seen(bits: Array, *, integer: bool) -> Array:
    return bits.astype(jnp.int32) if integer else bits


def _guide_of(pair: ProgramPair, key: PRNGKeyArray, shared: dict[str, Array]) -> Callable[[], Any]:
    """The guide with all that does not belong to a row fixed."""
    program = pair.program
    fixed = substitute(seed(program.guide, key), data={**pair.params, **program.plates, **shared})
    return lambda: fixed(*program.args, **program.kwargs)


def _sites(pair: ProgramPair, watch: Messenger) -> Trace:
    """The latents of a row, as one run of the guide shows them."""
    guide = _guide_of(pair, pair.program.key, jax.tree.map(lambda v: v[0], pair.shared_guide))
    with trace() as found, watch:
        guide()
    return {name: found[name] for name in pair.program.layout.local}


def _obstacle(pair: ProgramPair) -> str | None:
    watch = _Watch()
    sites = _sites(pair, watch)
    others = {name: type(_base(site["fn"])).__name__ for name, site in sites.items() if not _is_bernoulli(site)}
    if others:
        return "; ".join(f"{name!r} is {kind}" for name, kind in others.items())
    masked = [name for name, site in sites.items() if _is_masked(site["fn"])]
    if masked:
        return f"{masked} are masked in the guide"
    early = [name for name in sites if name in watch.ready]
    return f"{early} are drawn inside of control flow (scan, cond), where no value can be chosen" if early else None


def _layered(pair: ProgramPair, kind: type[AbstractEstimator]) -> Pair:
    sites, integer = _sites(pair, Messenger()), issubclass(kind, BITS_ALONE)
    layers = tuple(_layer(sites[name], axis) for name, axis in pair.program.layout.local.items())
    return Pair(ProgramRows(pair, layers, integer), ProgramLayers(pair, layers, integer))


def _one_relaxed_run(pair: Pair) -> Any:
    proposal: Any = pair.proposal
    model: Any = pair.model
    rows = model.pair.num_shared * model.pair.program.layout.num_rows

    def one(key: PRNGKeyArray) -> Any:
        z, _ = proposal.rollout(proposal.noise(key), None, units.relaxed(0.5))
        return model.log_joint(None, z)

    return jax.vmap(one, axis_name=ROWS)(jax.random.split(jax.random.key(0), rows))


def _layer(site: dict[str, Any], axis: int) -> Layer:
    shape = list(jnp.shape(site["value"]))
    if axis != 0:
        del shape[axis]
    return Layer(site["name"], axis, tuple(shape), _logits(site).dtype)


def _logits(site: dict[str, Any]) -> Float[Array, "..."]:
    # `expand` and `to_event` broadcast on the left, and leave the order of axes alone
    shape = site["fn"].shape(site["kwargs"].get("sample_shape", ()))
    logits = jnp.asarray(_base(site["fn"]).logits)
    return jnp.broadcast_to(logits.astype(jnp.result_type(logits, float)), shape)


def _is_bernoulli(site: dict[str, Any]) -> bool:
    return isinstance(_base(site["fn"]), _BERNOULLI)


def _base(fn: Any) -> Any:
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        fn = fn.base_dist
    return fn


def _is_masked(fn: Any) -> bool:
    while hasattr(fn, "base_dist"):
        if isinstance(fn, dist.MaskedDistribution):
            return True
        fn = fn.base_dist
    return False
