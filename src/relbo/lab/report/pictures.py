"""Pictures of a run: samples from the model and reconstructions of held-out images.

They are tiny PNG files, one pixel for each pixel of the data, that the page enlarges without smoothing.
"""

import base64
import io
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Shaped

from relbo._check import root_key
from relbo.acceptance import AbstractAcceptance
from relbo.lab.compare import rejection_of, rejects
from relbo.lab.report.html import Html, tag
from relbo.lab.runs import Run
from relbo.rejection import draw_accepted
from relbo.streams import Streams
from relbo.thresholds import AbstractThreshold
from relbo.types import Pair
from relbo.view import view_of

GAP = 1
"""Pixels between two images."""
GAP_LEVEL = 0.55
"""Brightness of the gap, apart from the black and the white of the images."""
MAX_ROUNDS = 10_000
"""An image gives up after so many proposals."""
ROUND_WIDTH = 32
"""One width of rounds only: for a few draws compilation is what costs time."""


class Reconstructions(NamedTuple):
    """Held-out images, and E[x | h] for one h of each; (n, d) in [0, 1]."""

    images: np.ndarray
    from_q: np.ndarray
    """h ~ q(h | x)."""
    from_r: np.ndarray | None
    """h ~ r(h | x); None for a run without rejection."""


def image_shape(run: Run) -> tuple[int, int] | None:
    """Height and width of what can be drawn of a run; None if its model has no `mean_x(z)`, or its data no images."""
    return run.data.image_shape if hasattr(run.pair.model, "mean_x") else None


@eqx.filter_jit
def _means_of_samples(pair: Pair, keys: Shaped[Array, "n ..."]) -> Float[Array, "n d"]:
    def one(key: PRNGKeyArray) -> Array:
        _, z = pair.model.sample(key)
        return pair.model.mean_x(z)  # type: ignore[attr-defined]  # see image_shape

    return jax.vmap(one)(keys)


def model_samples(run: Run, num: int, seed: int) -> np.ndarray:
    """E[x | h] with h from the model's prior, (num, d)."""
    return np.asarray(_means_of_samples(run.pair, jax.random.split(root_key(seed), num)))


@eqx.filter_jit
def _reconstruct(
    pair: Pair,
    key: PRNGKeyArray,
    x: Float[Array, "n d"],
    threshold: AbstractThreshold | None,
    acceptance: AbstractAcceptance | None,
) -> tuple[Float[Array, "n d"], Float[Array, "n d"] | None]:
    key_threshold, key_propose, key_accept, key_other = jax.random.split(key, 4)

    def means(z: PyTree) -> Float[Array, "n d"]:
        first = jax.tree.map(lambda leaf: leaf[:, 0], z)
        return jax.vmap(pair.model.mean_x)(first)  # type: ignore[attr-defined]  # see image_shape

    view = view_of(pair, x)
    from_q = means(view.draw(key_propose, 1))
    if threshold is None or acceptance is None:
        return from_q, None
    t = threshold.solve(view.log_weights(key_threshold, max(threshold.fresh_draws, 1)), acceptance)
    # the sampler's first proposal is the draw from q above: q and r differ only where it was rejected
    accepted = draw_accepted(
        view,
        Streams(key_propose, key_accept, key_other),
        t,
        acceptance,
        num_samples=1,
        max_rounds=MAX_ROUNDS,
        widths=(ROUND_WIDTH,),
    )
    return from_q, means(accepted.z)


def reconstructions(run: Run, num: int, split: str, seed: int) -> Reconstructions:
    """The first `num` images of a split and their reconstructions."""
    images = np.asarray(run.data.split(split)[:num])
    x = jnp.asarray(images, jnp.result_type(float))
    threshold, acceptance = rejection_of(run) if rejects(run) else (None, None)
    from_q, from_r = _reconstruct(run.pair, root_key(seed), x, threshold, acceptance)
    return Reconstructions(images, np.asarray(from_q), None if from_r is None else np.asarray(from_r))


def tile(images: np.ndarray, shape: tuple[int, int], columns: int) -> np.ndarray:
    """Puts (n, d) images side by side, row by row, with gaps."""
    height, width = shape
    rows = -(-len(images) // columns)
    canvas = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP), GAP_LEVEL)
    for place, image in enumerate(images):
        row, column = divmod(place, columns)
        top, left = row * (height + GAP) + GAP, column * (width + GAP) + GAP
        canvas[top : top + height, left : left + width] = image.reshape(height, width)
    return canvas


def png(canvas: np.ndarray, description: str) -> Html:
    """A picture in gray levels in [0, 1] as an `<img>` that holds its own data."""
    levels = np.round(255 * np.clip(canvas, 0, 1)).astype(np.uint8)
    buffer = io.BytesIO()
    matplotlib.image.imsave(
        buffer, np.repeat(levels[:, :, None], 3, axis=2), format="png", pil_kwargs={"optimize": True}
    )
    data = base64.b64encode(buffer.getvalue()).decode()
    height, width = levels.shape
    return tag("img", class_="pixels", src=f"data:image/png;base64,{data}", width=width, height=height, alt=description)
