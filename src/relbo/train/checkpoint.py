"""Checkpoints with orbax: atomic, a few kept, no pickle.

A checkpoint is a few items and a JSON record. An item is a flat dictionary of named arrays: `pair` (the parameters
after the last step), `best` (those with the best validation bound) and `rest` (all else that the next step needs). Each
is read apart from the others, so that who wants parameters needs neither estimator nor optimiser. The skeleton that the
arrays fill is made by the reader, so that nothing in a checkpoint is code. Orbax writes into a temporary folder and
renames it when it is whole: whenever a process is killed, the folder holds only whole checkpoints.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


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


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Orbax, which takes a second to import, and reports every file that it touches: not while we use it."""
    import orbax.checkpoint as ocp

    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield ocp
    finally:
        logger.setLevel(level)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: where they are kept; created if need be.
        keep: how many of the latest are kept.
    """

    def __init__(self, directory: Path, keep: int = 2) -> None:
        self._directory = Path(directory).absolute()
        with _orbax() as ocp:
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

    def save(self, step: int, items: dict[str, PyTree], record: dict[str, Any]) -> None:
        """Saves the arrays of each item and a JSON record; returns when they are safe on disk."""
        arrays = {item: named_arrays(tree) for item, tree in items.items()}
        layout = {item: layout_of(named) for item, named in arrays.items()}
        with _orbax() as ocp:
            parts = {item: ocp.args.StandardSave(named) for item, named in arrays.items() if named}
            parts["record"] = ocp.args.JsonSave({"layout": layout, "record": record})
            self._manager.save(step, args=ocp.args.Composite(**parts), force=True)
            self._manager.wait_until_finished()

    def restore(self, step: int, skeletons: dict[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """Those items of a checkpoint that a skeleton is given for, and the record."""
        whole = self._read_record(step)
        like = {
            item: {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in named_arrays(skeleton).items()}
            for item, skeleton in skeletons.items()
        }
        for item, named in like.items():
            self._refuse_other_layout(step, item, whole["layout"].get(item, {}), layout_of(named))
        found = self._read(
            step, lambda ocp: {item: ocp.args.StandardRestore(named) for item, named in like.items() if named}
        )
        return {item: fill(skeleton, found.get(item, {})) for item, skeleton in skeletons.items()}, whole["record"]

    def _refuse_other_layout(self, step: int, item: str, stored: dict[str, str], expected: dict[str, str]) -> None:
        wrong = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        if wrong:
            name = wrong[0]
            raise ValueError(
                f"the {item} of {self._where(step)} does not fit: {len(wrong)} arrays differ, the first being {name}, "
                f"expected {expected.get(name, 'none')}, got {stored.get(name, 'none')}."
            )

    def _where(self, step: int) -> str:
        return f"checkpoint {self._directory / str(step)}"

    def _read_record(self, step: int) -> dict[str, Any]:
        return self._read(step, lambda ocp: {"record": ocp.args.JsonRestore()})["record"]

    def _read(self, step: int, items: Callable[[Any], dict[str, Any]]) -> Any:
        try:
            with _orbax() as ocp:
                return self._manager.restore(step, args=ocp.args.Composite(**items(ocp)))
        except Exception as error:  # orbax and tensorstore raise many kinds for a damaged file
            details = (str(error).splitlines() or ["no details"])[0][:200]
            raise ValueError(
                f"{self._where(step)} cannot be read: it is damaged or not relbo's ({type(error).__name__}: "
                f"{details}). Remove that folder to go on from the checkpoint before it."
            ) from error

    def record(self, step: int) -> dict[str, Any]:
        """The JSON record alone."""
        return self._read_record(step)["record"]

    def close(self) -> None:
        """Releases the folder."""
        with _orbax():
            self._manager.close()


@contextlib.contextmanager
def opened(directory: Path, keep: int = 2) -> Iterator[Checkpoints]:
    """The checkpoints of a run, closed at the end."""
    checkpoints = Checkpoints(directory, keep)
    try:
        yield checkpoints
    finally:
        checkpoints.close()
