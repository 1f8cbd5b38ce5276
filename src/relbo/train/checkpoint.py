"""Checkpoints with orbax: atomic, a few kept, no pickle.

A checkpoint is a flat dictionary of named arrays and a JSON record. The skeleton that the arrays fill is rebuilt from
the run's configuration, so that nothing in a checkpoint is code. Orbax writes into a temporary folder and renames it
when it is whole: whenever a process is killed, the folder holds only whole checkpoints.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax reports every file that it touches


def named_arrays(tree: PyTree) -> dict[str, np.ndarray]:
    """Every array of a tree under the name of its place; random keys become their words."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(_words(leaf)) for path, leaf in leaves if _is_array(leaf)}


def layout_of(arrays: dict[str, Any]) -> dict[str, str]:
    """Shape and type of each named array."""
    return {name: f"{a.dtype}{list(a.shape)}" for name, a in arrays.items()}


def fill(skeleton: PyTree, arrays: dict[str, Any]) -> PyTree:
    """The skeleton with its arrays replaced by the named ones."""

    def place(path: Any, leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        value = jnp.asarray(arrays[jax.tree_util.keystr(path)])
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
        return value

    return jax.tree_util.tree_map_with_path(place, skeleton)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _words(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: where they are kept; created if need be.
        keep: how many of the latest are kept.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self._directory = Path(directory).absolute()
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=ocp.checkpoint_managers.LatestN(keep),
                enable_async_checkpointing=False,
                create=True,
            ),
        )

    def latest(self) -> int | None:
        """Step of the newest whole checkpoint."""
        return self._manager.latest_step()

    def save(self, step: int, tree: PyTree, record: dict[str, Any]) -> None:
        """Saves the arrays of a tree and a JSON record; returns when they are safe on disk."""
        arrays = named_arrays(tree)
        record = {"layout": layout_of(arrays), "record": record}
        items = ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), record=ocp.args.JsonSave(record))
        self._manager.save(step, args=items, force=True)
        self._manager.wait_until_finished()

    def restore(self, step: int, skeleton: PyTree) -> tuple[PyTree, dict[str, Any]]:
        """The tree and record of a checkpoint."""
        like = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in named_arrays(skeleton).items()}
        whole = self._read(step, record=ocp.args.JsonRestore())["record"]
        stored, expected = whole["layout"], layout_of(like)
        wrong = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        if wrong:
            name = wrong[0]
            raise ValueError(
                f"{self._where(step)} does not fit this configuration: {len(wrong)} arrays differ, the first being "
                f"{name}, expected {expected.get(name, 'none')}, got {stored.get(name, 'none')}."
            )
        arrays = self._read(step, arrays=ocp.args.StandardRestore(like))["arrays"]
        return fill(skeleton, arrays), whole["record"]

    def _where(self, step: int) -> str:
        return f"checkpoint {self._directory / str(step)}"

    def _read(self, step: int, **items: Any) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**items))
        except Exception as error:  # orbax and tensorstore raise many kinds for a damaged file
            details = (str(error).splitlines() or ["no details"])[0][:200]
            raise ValueError(
                f"{self._where(step)} cannot be read: it is damaged or not relbo's ({type(error).__name__}: "
                f"{details}). Remove that folder to go on from the checkpoint before it."
            ) from error

    def record(self, step: int) -> dict[str, Any]:
        """The JSON record alone."""
        return self._read(step, record=ocp.args.JsonRestore())["record"]["record"]

    def close(self) -> None:
        """Releases the folder."""
        self._manager.close()


@contextlib.contextmanager
def opened(directory: Path, keep: int = 2) -> Iterator[Checkpoints]:
    """The checkpoints of a run, closed at the end."""
    checkpoints = Checkpoints(directory, keep)
    try:
        yield checkpoints
    finally:
        checkpoints.close()
