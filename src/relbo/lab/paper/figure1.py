r"""Figure 1 of the paper: on a 5 x 5 grid, a lower T buys a smaller KL with more proposals.

The proposal is uniform; r(z) is proportional to q(z) a(z). The paper prints T, acceptance rate and KL but not its
target, and the seven numbers do not determine one: `LEVELS` is a RECONSTRUCTION, a plus with the grid's symmetry
that agrees with all of them up to their rounding.

Reference:
    Grover et al. (2018), "Variational Rejection Sampling", figure 1, https://arxiv.org/abs/1804.01712.
"""

import functools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.colors import LogNorm

import relbo
from relbo import bounds, exact
from relbo._check import is_int, require, root_key
from relbo.acceptance import Soft
from relbo.lab.paper import output
from relbo.models.toy import TableModel, TableProposal
from relbo.rejection import draw_accepted
from relbo.streams import split_streams
from relbo.types import Pair
from relbo.view import view_of

THRESHOLDS = (math.inf, 10.0, 0.0, -5.0)
PRINTED = ((1.0, 18.0), (0.5, 3.1), (0.2, 0.3), (0.01, 1e-3))
"""Acceptance rate and KL in nats as the paper prints them, for each of `THRESHOLDS`."""
LEVELS = {"centre": 2.3, "plus": 0.0, "corner": -82.0, "rest": -11.1}
"""Log of the unnormalised target on the centre, the other cells of the middle row and column, the corners, the rest."""
NOTE = (
    "The target is a reconstruction: the paper does not give its own, and its printed numbers do not determine one. "
    "This one agrees with all of them up to rounding."
)
ROWS = 50
"""Parallel streams of proposals; they share the draws equally."""
SIZE = 5


def log_target() -> np.ndarray:
    """The reconstructed log target, unnormalised, (5, 5)."""
    grid = np.full((SIZE, SIZE), LEVELS["rest"])
    grid[SIZE // 2, :] = grid[:, SIZE // 2] = LEVELS["plus"]
    grid[SIZE // 2, SIZE // 2] = LEVELS["centre"]
    grid[np.ix_([0, -1], [0, -1])] = LEVELS["corner"]
    return grid


def grid_pair() -> Pair:
    """The normalised target and the uniform proposal over the 25 cells; there is one x, number 0."""
    table = jnp.asarray(log_target().reshape(1, -1), jnp.result_type(float))
    return Pair(TableModel(table), TableProposal(jnp.zeros_like(table)))


def run(*, num_draws: int = 10_000, seed: int = 0) -> dict[str, Any]:
    """Acceptance rate and KL for each T, exact and sampled.

    Args:
        num_draws: accepted draws behind each sampled figure, at least 100.
        seed: randomness of the draws.

    Returns:
        A dictionary ready for JSON, from which `plot` draws.
    """
    require(is_int(num_draws, at_least=100), "num_draws", "an integer >= 100", num_draws)
    per_row = -(-num_draws // ROWS)
    keys = jax.random.split(root_key(seed), len(THRESHOLDS))
    with output.in_float64():
        panels = [
            {
                "threshold": t if math.isfinite(t) else "inf",
                "printed": {"acceptance_rate": rate, "kl_nats": kl},
                "exact": exact_figures(t),
                "sampled": sampled_figures(key, t, per_row),
            }
            for key, t, (rate, kl) in zip(keys, THRESHOLDS, PRINTED, strict=True)
        ]
        target = jnp.exp(exact.log_posterior(grid_pair().model, jnp.asarray(0), jnp.arange(SIZE**2)))
    return {
        "relbo_version": relbo.__version__,
        "target_is_a_reconstruction": True,
        "note": NOTE,
        "settings": {"seed": seed, "num_draws": per_row * ROWS, "log_target_levels": LEVELS, "grid_size": SIZE},
        "target_probability": np.asarray(target).reshape(SIZE, SIZE).tolist(),
        "panels": panels,
    }


def exact_figures(t: float) -> dict[str, Any]:
    """Z_R, KL(r || p) and r itself by enumeration."""
    pair, x, cells = grid_pair(), jnp.asarray(0), jnp.arange(SIZE**2)
    resampled = jnp.exp(exact.log_resampled(pair, x, cells, t))
    return {
        "acceptance_rate": float(jnp.exp(exact.log_z(pair, x, cells, t))),
        "kl_nats": float(exact.kl(pair, x, cells, t)),
        "resampled_probability": np.asarray(resampled).reshape(SIZE, SIZE).tolist(),
    }


def sampled_figures(key: Array, t: float, per_row: int) -> dict[str, Any]:
    r"""The same from the rejection sampler, with standard errors.

    Z_R is (k-1)/(N-1), k acceptances in N proposals, with variance about Z_R^2 (1 - Z_R) / k. KL is
    log E_r[exp(A - E_r A)] over all draws; to first order its error is the mean of
    exp(A) / mean exp(A) - 1 - (A - mean A).
    """
    num_draws = ROWS * per_row
    num_proposals, a = _draw(key, grid_pair(), jnp.asarray(t), per_row)
    rate = float(jnp.exp(bounds.log_z_counted(num_draws, num_proposals)))
    centred = a - jnp.mean(a)
    influence = jnp.exp(centred - bounds.log_mean_exp(centred)) - 1 - centred
    return {
        "acceptance_rate": rate,
        "acceptance_rate_standard_error": rate * math.sqrt(max(1 - rate, 0.0) / num_draws),
        "kl_nats": float(bounds.kl_from_signal(a)),
        "kl_nats_standard_error": float(jnp.std(influence) / math.sqrt(num_draws)),
        "num_accepted": num_draws,
        "num_proposals": int(num_proposals),
    }


@functools.partial(jax.jit, static_argnames="per_row")
def _draw(key: Array, pair: Pair, t: Array, per_row: int) -> tuple[Array, Float[Array, " n"]]:
    """The proposals that ROWS * per_row draws from r took, and the learning signal A of each draw."""
    accepted = draw_accepted(
        view_of(pair, jnp.zeros(ROWS, int)),
        split_streams(key),
        jnp.broadcast_to(t, ROWS),
        Soft(),
        num_samples=per_row,
        max_rounds=10_000,
    )
    x, cells = jnp.asarray(0), jnp.arange(SIZE**2)
    log_w = exact.log_joint(pair.model, x, cells) - exact.log_proposal(pair.proposal, x, cells)
    return jnp.sum(accepted.num_proposals), bounds.signal(log_w, t)[accepted.z.reshape(-1)]


def plot(results: dict[str, Any], path: Path) -> Path:
    """Draws the target and the four r on one logarithmic colour scale."""
    figure, panels = output.new_figure(9.2, 2.6, 1 + len(results["panels"]))
    grids = [results["target_probability"]] + [p["exact"]["resampled_probability"] for p in results["panels"]]
    titles = ["target (reconstruction)"] + [_title(p) for p in results["panels"]]
    for axes, grid, title in zip(panels, grids, titles, strict=True):
        # cells below the scale are drawn as its lower end
        image = axes.imshow(np.maximum(grid, 1e-5), norm=LogNorm(1e-5, 1), cmap="viridis")
        axes.set_title(title, fontsize=9, color=output.INK)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.01, extend="min")
    bar.set_label("probability of a cell", fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return output.save(figure, path)


def _title(panel: dict[str, Any]) -> str:
    t = panel["threshold"]
    name = "∞" if t == "inf" else f"{t:g}".replace("-", "\N{MINUS SIGN}")
    return f"T = {name}\nrate {panel['exact']['acceptance_rate']:.2g}\nKL {panel['exact']['kl_nats']:.2g} nats"
