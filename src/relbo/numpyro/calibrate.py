r"""`calibrate`: simulation-based calibration of a NumPyro model and guide.

The model makes data: its observed sites are drawn instead of read, all else being as it is. Guide and resampled
posterior then draw for each of these data sets, and the latents that made them are ranked among the draws, as in
`relbo.calibration`. Discrete latents are ranked like any others.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PRNGKeyArray
from numpyro.handlers import seed, substitute, trace, uncondition

from relbo._check import is_int, require
from relbo.acceptance import AbstractAcceptance, Always
from relbo.calibration.ranks import MOST_NUMBERS, among, named_rates, ranks_at, without_nan
from relbo.calibration.result import Calibration
from relbo.numpyro.autoguides import set_up
from relbo.numpyro.layout import WHOLE, latents_of
from relbo.numpyro.objective import as_typed_key
from relbo.numpyro.pair import build_batch, build_pair, from_rows
from relbo.numpyro.program import Program
from relbo.posterior import Settings, draw_rows, settings_of

Simulated = dict[str, Any]
"""Values of the observed sites, by name."""


def calibrate(
    key: Array,
    model: Any,
    guide: Any,
    params: dict[str, Any] | None,
    data: Any = (),
    *,
    rates: Sequence[float] = (0.5, 0.1),
    with_data: Callable[[Simulated], tuple] | None = None,
    fit: Callable[..., dict[str, Any]] | None = None,
    num_simulations: int = 200,
    num_samples: int = 49,
    num_draws: int = 500,
    max_rounds: int = 1_000,
    acceptance: AbstractAcceptance | None = None,
    plate: str | None = None,
    batch: int = 20,
) -> Calibration:
    """Checks draws from a guide, and from the resampled posterior, for data that the model itself makes.

    A guide that reads its data (an amortised one) is checked at its fitted `params`. A guide that was fitted to one
    data set, such as an autoguide, says nothing about others: give `fit`, which fits it to each simulated one.

    Args:
        key: randomness.
        model: the NumPyro model; its observed sites must be distributions that can be drawn from.
        guide: its guide.
        params: values of the parameters, as `svi.run(...).params`; with `fit`, those of the model's own parameters.
        data: positional arguments of model and guide, as they are for your own data: a tuple, or the one argument.
        rates: acceptance rates at which to draw from r.
        with_data: from simulated values of the observed sites, by name, to the positional arguments; by default each
            observed site takes the place of the argument that it was given as.
        fit: (key, *arguments) -> params, compiled and run for each data set, such as
            `lambda key, *args: svi.run(key, 1_000, *args, progress_bar=False).params`.
        num_simulations: N, how many data sets.
        num_samples: L, draws of each source for each of them.
        num_draws: plain draws from the guide behind each threshold.
        max_rounds: a row gives up, which is an error, after max_rounds * L proposals.
        acceptance: the acceptance function, `relbo.Soft()` by default.
        plate: the row plate, as for `EstimatorELBO`.
        batch: data sets that are worked on at once.

    Returns:
        A `relbo.calibration.Calibration`: ranks, exact p-values, `summary()`, `figure()`.

    Example:
        >>> settings = {"rates": [0.1], "num_simulations": 40, "num_samples": 9}
        >>> params = {"logit": jnp.array(0.0)}
        >>> found = relbo.numpyro.calibrate(key, model, guide, params, jnp.array(1.0), **settings)
        >>> found.statistics, found.ranks["guide"].shape
        (('z', 'log p(x, z)'), (40, 2))
    """
    require(is_int(num_simulations, at_least=10), "num_simulations", "an integer >= 10", num_simulations)
    require(is_int(num_samples, at_least=2), "num_samples", "an integer >= 2", num_samples)
    require(is_int(batch, at_least=1), "batch", "an integer >= 1", batch)
    by_name = named_rates(rates)
    args = data if isinstance(data, tuple) else (data,)
    own = dict(params or {})
    set_up(guide, args, {})
    key_data, key_fit, key_draw, key_ranks = jax.random.split(as_typed_key(key), 4)
    arguments = with_data or _places_of(model, own, args)
    sources = {"guide": settings_of(jnp.inf, None, Always(), num_samples, num_draws, max_rounds, throw=True)}
    sources |= {
        name: settings_of(None, rate, acceptance, num_samples, num_draws, max_rounds, throw=True)
        for name, rate in by_name.items()
    }

    def simulate(key: PRNGKeyArray) -> tuple[Simulated, dict[str, Array]]:
        tr = trace(uncondition(substitute(seed(model, key), data=own))).get_trace(*args)
        seen = {n: s["value"] for n, s in tr.items() if s["type"] == "sample" and s["infer"].get("was_observed")}
        latents = {n: s["value"] for n, s in latents_of(tr).items() if n not in seen}
        return seen, latents

    def one(key: PRNGKeyArray, key_fit: PRNGKeyArray, seen: Simulated, settings: Settings) -> tuple[dict, Array, Array]:
        simulated = arguments(seen)
        values = own if fit is None else {**own, **fit(key_fit, *simulated)}
        program = _whole(model, guide, simulated, key, values, plate)
        figures = draw_rows(key, build_pair(program, values, {}, 1), build_batch(program, 1).x, settings)
        local = jax.tree.map(lambda v: v[0], from_rows(program, figures["z"], 1))
        return jax.vmap(lambda v: program.sites(values, v))(local), figures["num_proposals"], figures["exhausted"]

    truths = jax.jit(jax.vmap(simulate))(jax.random.split(key_data, num_simulations))
    names = sorted(truths[1])
    require(bool(names), "model", "a model with latents", "none")
    ranks: dict[str, np.ndarray] = {}
    costs: dict[str, float | None] = {}
    for number, (source, settings) in enumerate(sources.items()):
        draw = jax.jit(jax.vmap(lambda k, f, s, settings=settings: one(k, f, s, settings)))
        keys = jax.random.split(jax.random.fold_in(key_draw, number), num_simulations)
        fits = jax.random.split(key_fit, num_simulations)  # the same fit for every source
        sites, spent, exhausted = _in_blocks(draw, keys, fits, truths[0], batch)
        require(not exhausted.any(), f"draws from {source}", "to be found", "rows that ran out; raise the rate")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(jax.random.fold_in(key_ranks, number))))
        whole, place = among(rng, {n: truths[1][n] for n in names}, {n: sites[n] for n in names})
        found, statistics = _statistics(model, own, arguments, truths[0], whole)
        without_nan(found, statistics, source)
        ranks[source] = ranks_at(rng, found, place)
        costs[source] = 1.0 if number == 0 else float(np.mean(spent)) / num_samples
    return Calibration(ranks, statistics, num_samples, costs)


def _places_of(model: Any, params: dict[str, Any], args: tuple) -> Callable[[Simulated], tuple]:
    """Which argument each observed site was given as, found by its values."""
    tr = trace(substitute(seed(model, jax.random.key(0)), data=params)).get_trace(*args)
    observed = {n: s["value"] for n, s in tr.items() if s["type"] == "sample" and s["is_observed"]}
    require(
        bool(observed), "model", "a model with observed sites at these data", "none: pass the data that it observes"
    )
    leaves, treedef = jax.tree.flatten(args)
    places = {}
    for name, value in observed.items():
        same = [i for i, leaf in enumerate(leaves) if leaf is value] or [
            i for i, v in enumerate(leaves) if jnp.shape(v) == jnp.shape(value) and bool(jnp.array_equal(v, value))
        ]
        if len(same) != 1:
            raise ValueError(
                f"calibrate must know which argument the observed site {name!r} is given as, and {len(same)} arguments "
                "have its values: pass with_data, a function from simulated values by site name to the arguments."
            )
        places[same[0]] = name
    dtypes = {i: jnp.asarray(leaves[i]).dtype for i in places}

    def arguments(seen: Simulated) -> tuple:
        filled = [seen[places[i]].astype(dtypes[i]) if i in places else leaf for i, leaf in enumerate(leaves)]
        return jax.tree.unflatten(treedef, filled)

    return arguments


def _whole(model: Any, guide: Any, args: tuple, key: PRNGKeyArray, params: dict, plate: str | None) -> Program:
    # rows one by one where there are no latents beside them, as `resample` has it
    program = Program(model, guide, args, {}, key, params, plate)
    if program.layout.shared:
        program = Program(model, guide, args, {}, key, params, WHOLE)
    return program


def _in_blocks(draw: Any, keys: Key[Array, " n"], fits: Key[Array, " n"], seen: Simulated, size: int) -> Any:
    """Blocks of equal size and one compilation; the last one repeats its last data set."""
    num, parts = keys.shape[0], []
    for start in range(0, num, size):
        rows = np.minimum(np.arange(start, start + size), num - 1)
        found = draw(keys[rows], fits[rows], jax.tree.map(lambda v, rows=rows: v[rows], seen))
        parts.append(jax.tree.map(lambda v, start=start: np.asarray(v)[: num - start], found))
    return jax.tree.map(lambda *v: np.concatenate(v), *parts)


def _statistics(
    model: Any, params: dict[str, Any], arguments: Callable[[Simulated], tuple], seen: Simulated, latents: dict
) -> tuple[np.ndarray, tuple[str, ...]]:
    """(n, L + 1, statistics): every number of every latent, or random sums of them, and the log joint density."""
    num_rows, num_places = next(iter(latents.values())).shape[:2]
    names = [
        name + "".join(f"[{i}]" for i in index) for name, v in latents.items() for index in np.ndindex(*v.shape[2:])
    ]
    numbers = np.concatenate([np.reshape(v, (num_rows, num_places, -1)) for v in latents.values()], axis=2)
    if len(names) > MOST_NUMBERS:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(names), MOST_NUMBERS))
        numbers, names = numbers @ signs, [f"random sum {i}" for i in range(MOST_NUMBERS)]

    def log_joint(seen: Simulated, values: dict[str, Array]) -> Array:
        fixed = substitute(seed(model, jax.random.key(0)), data={**params, **values})
        tr = trace(fixed).get_trace(*arguments(seen))
        return sum(
            (jnp.sum(s["fn"].log_prob(s["value"])) for s in tr.values() if s["type"] == "sample"), start=jnp.zeros(())
        )

    density = jax.jit(jax.vmap(lambda x, zs: jax.vmap(lambda z: log_joint(x, z))(zs)))(seen, latents)
    return np.concatenate([numbers, np.asarray(density)[..., None]], axis=2), (*names, "log p(x, z)")
