"""Checkpoints with orbax: atomic, a few kept, no pickle, and nothing is believed that does not have its hash.

A checkpoint is a few items and a JSON record. An item is a flat dictionary of named arrays: `pair` (the parameters
after the last step), `best` (those with the best validation bound) and `rest` (all else that the next step needs). Each
is read apart from the others, so that who wants parameters needs neither estimator nor optimiser. The skeleton that the
arrays fill is made by the reader, so that nothing in a checkpoint is code. Orbax writes into a temporary folder and
renames it when it is whole: whenever a process is killed, the folder holds only whole checkpoints.

The record carries the SHA-256 of every array and of itself, the step and the run that it belongs to. All are compared
at every load: a flipped bit, or a folder of another run or step, is refused by name. What was saved is read back before
an older checkpoint is removed.
"""

import contextlib
import logging
import re
import shutil
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from relbo.train.errors import Damaged, first_line
from relbo.train.sealed import array_digest, digest_of_parts, sealed, unsealed, values_digest
from relbo.train.together import Together

TEMPORARY = ".orbax-checkpoint-tmp"
"""Part of the names of folders that orbax has not finished."""
PATIENCE = 10.0
"""Seconds that orbax's threads have to end."""
DAMAGED = ".damaged"
"""How the names of checkpoints end that were set aside."""


def named_arrays(tree: PyTree) -> dict[str, Any]:
    """Every array of a tree under the name of its place; random keys become their words.

    They are NumPy's, but for those that several processes hold parts of.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): _on_host(_words(leaf)) for path, leaf in leaves if _is_array(leaf)}


def _on_host(array: Any) -> Any:
    return array if isinstance(array, jax.Array) and not array.is_fully_addressable else np.asarray(array)


def layout_of(arrays: dict[str, Any]) -> dict[str, str]:
    """Shape and type of each named array."""
    return {name: f"{a.dtype}{list(a.shape)}" for name, a in arrays.items()}


def fill(skeleton: PyTree, arrays: dict[str, Any]) -> PyTree:
    """The skeleton with its arrays replaced by the named ones."""

    def place(path: Any, leaf: Any) -> Any:
        if not _is_array(leaf):
            return leaf
        value, like = arrays[jax.tree_util.keystr(path)], _words(leaf)
        if isinstance(like, jax.Array) and isinstance(like.sharding, jax.sharding.NamedSharding):
            value = jax.device_put(value, like.sharding)  # nothing is moved if it is there already
        value = jnp.asarray(value)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
        return value

    return jax.tree_util.tree_map_with_path(place, skeleton)


def _like(array: Any) -> jax.ShapeDtypeStruct:
    """What to read, and where to: what several processes hold to its place, all else to a device of this one."""
    here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=getattr(array, "sharding", here))


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _words(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf


def _is_news(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not ("never retrieved" in text and "orbax" in text)


def _drop_stragglers() -> None:
    """Keeps two kinds of traceback off the screen, from now on.

    Arrays are read and written side by side. When one is damaged, or the disk full, orbax closes its event loop, and
    those that end later complain, in threads of tensorstore's, that it is closed; asyncio logs the errors of the others
    as never retrieved. That is no news, as the first error is raised anyway.
    """
    logging.getLogger("asyncio").addFilter(_is_news)
    before = sys.unraisablehook
    if getattr(before, "drops_stragglers", False):
        return

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            before(unraisable)

    hook.drops_stragglers = True  # type: ignore[attr-defined]
    sys.unraisablehook = hook


@contextlib.contextmanager
def _orbax() -> Iterator[tuple[Any, Any]]:
    """Orbax and its writer. It takes a second to import, and logs every file and every failure: not while we use it."""
    import orbax.checkpoint as ocp

    _drop_stragglers()
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    others = set(threading.enumerate())
    try:
        with contextlib.closing(ocp.Checkpointer(ocp.CompositeCheckpointHandler())) as checkpointer:
            yield ocp, checkpointer
    finally:
        # when one item cannot be written those beside it still try, and log that they cannot
        end = time.monotonic() + PATIENCE
        while set(threading.enumerate()) - others and time.monotonic() < end:  # one that is being begun has no `join`
            time.sleep(0.001)
        logger.setLevel(level)


@contextlib.contextmanager
def _plainly_named(directory: Path) -> Iterator[Path]:
    """A name of a directory in which every character means itself.

    Orbax, and what it is made of, reads a path as a pattern (`[...]`, `*`), as a URL or as UTF-8: below `p[0]` it finds
    nothing of what it wrote itself, and leaves the arrays unmerged without a word. There it is given a link.
    """
    if re.fullmatch(r"(?!/(az|gs|hf|s3)/)[\w /.,=+~-]*", str(directory)):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="relbo-") as place:
        link = Path(place) / "checkpoints"
        link.symlink_to(directory, target_is_directory=True)
        yield link


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: where they are kept; created by the first `save`.
        run: what tells this run from all others; a checkpoint of another is refused.
        keep: how many of the latest are kept.
        together: the processes that read and write them, if there are several.
        parts: in how many parts arrays are hashed, the shards of the run; the number of devices does not matter.
    """

    def __init__(
        self, directory: Path, run: str, keep: int = 2, together: Together | None = None, parts: int = 1
    ) -> None:
        self._directory = Path(directory).absolute()
        self._run = run
        self._keep = keep
        self._together = together
        self._parts = parts

    def steps(self) -> list[int]:
        """Steps of all checkpoints, the newest last."""
        if not self._directory.is_dir():
            return []
        names = (path.name for path in self._directory.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))

    def latest(self) -> int | None:
        """Step of the newest checkpoint."""
        return max(self.steps(), default=None)

    def where(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self._directory / str(step)

    def save(self, step: int, items: dict[str, PyTree], record: dict[str, Any]) -> None:
        """Saves the arrays of each item and a JSON record; returns when they are safe on disk.

        Raises:
            OSError: one sentence with the path and the reason; the earlier checkpoints are as they were.
        """
        arrays = {item: named_arrays(tree) for item, tree in items.items()}
        whole = {
            "run": self._run,
            "step": step,
            "layout": {item: layout_of(named) for item, named in arrays.items()},
            "parts": self._parts,
            "arrays": self._digests(arrays, self._parts),
            "record": record,
        }
        try:
            if self._writes():
                self._directory.mkdir(parents=True, exist_ok=True)
            with _orbax() as (ocp, checkpointer), _plainly_named(self._directory) as place:
                parts = {item: ocp.args.StandardSave(named) for item, named in arrays.items() if named}
                parts["record"] = ocp.args.JsonSave(sealed(whole))
                checkpointer.save(place / str(step), args=ocp.args.Composite(**parts))
            self._read_back(step, items)
            if self._writes():
                for old in self.steps()[: -self._keep]:
                    self._remove(old)
        except Exception as error:  # orbax and tensorstore raise many kinds when a disk is full
            if self._writes():
                self.sweep()
            is_full = "No space left" in str(error) or getattr(error, "errno", None) == 28
            reason = "No space left on device" if is_full else f"{type(error).__name__}: {first_line(error)}"
            raise OSError(f"{self.where(step)} cannot be written: {reason}.") from error

    def _read_back(self, step: int, items: dict[str, PyTree]) -> None:
        try:
            self.restore(step, items)
        except Damaged:
            if self._writes():
                self._remove(step)
            raise

    def restore(self, step: int, skeletons: dict[str, PyTree]) -> tuple[dict[str, PyTree], dict[str, Any]]:
        """Those items of a checkpoint that a skeleton is given for, and the record.

        Raises:
            Damaged: something in it is not what was written.
            ValueError: it is whole, but of other shapes than the skeletons.
        """
        whole = self._read_record(step)
        like = {
            item: {name: _like(a) for name, a in named_arrays(skeleton).items()} for item, skeleton in skeletons.items()
        }
        for item, named in like.items():
            self._refuse_other_layout(step, item, whole["layout"].get(item, {}), layout_of(named))
        found = self._all_succeed(
            lambda: self._read(
                step, lambda ocp: {item: ocp.args.StandardRestore(named) for item, named in like.items() if named}
            )
        )
        digests = self._digests(
            {item: {name: found[item][name] for name in named} for item, named in like.items()}, whole.get("parts", 1)
        )
        for item, hashes in digests.items():
            for name, digest in hashes.items():
                if digest != whole["arrays"][item][name]:
                    raise Damaged(self._damage(step, f"{name} of the {item} does not have its hash"))
        return {item: fill(skeleton, found.get(item, {})) for item, skeleton in skeletons.items()}, whole["record"]

    def record(self, step: int) -> dict[str, Any]:
        """The JSON record alone."""
        return self._read_record(step)["record"]

    def _writes(self) -> bool:
        return self._together is None or self._together.is_writer

    def _all_succeed(self, action: Callable[[], Any]) -> Any:
        return action() if self._together is None else self._together.all_succeed(action, Damaged)

    def _digests(self, arrays: dict[str, dict[str, Any]], parts: int) -> dict[str, dict[str, str]]:
        return {item: {name: self._digest(a, parts) for name, a in named.items()} for item, named in arrays.items()}

    def _digest(self, array: Any, parts: int) -> str:
        """The hash of an array; where several processes hold parts of it, each hashes its own."""
        if not isinstance(array, jax.Array) or array.is_fully_addressable:
            return array_digest(np.asarray(array), parts)
        if array.is_fully_replicated:
            return array_digest(np.asarray(array.addressable_data(0)), parts)
        assert self._together is not None
        size, found = array.shape[0] // parts, np.zeros((parts, 32), np.uint8)
        for shard in array.addressable_shards:
            first = (shard.index[0].start or 0) // size
            for part in range(shard.data.shape[0] // size):
                values = np.asarray(shard.data[part * size : (part + 1) * size])
                found[first + part] = np.frombuffer(values_digest(values), np.uint8)
        return digest_of_parts(array, self._together.gathered(found).max(axis=0).tobytes())

    def set_aside(self, step: int) -> None:
        """Renames a damaged checkpoint, so that its step can be saved again and it can still be looked at."""
        aside = self._directory / f"{step}{DAMAGED}"
        shutil.rmtree(aside, ignore_errors=True)
        self.where(step).rename(aside)

    def sweep(self) -> None:
        """Removes what a writer left that was killed or ran out of space; only the one writer may do so."""
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                if TEMPORARY in path.name:
                    shutil.rmtree(path, ignore_errors=True)

    def _remove(self, step: int) -> None:
        # renamed first: a kill in the middle leaves no half of a checkpoint under the name of a whole one
        doomed = self._directory / f"{step}{TEMPORARY}"
        self.where(step).rename(doomed)
        shutil.rmtree(doomed)

    def _refuse_other_layout(self, step: int, item: str, stored: dict[str, str], expected: dict[str, str]) -> None:
        wrong = sorted(name for name in stored.keys() | expected.keys() if stored.get(name) != expected.get(name))
        if wrong:
            name = wrong[0]
            raise ValueError(
                f"the {item} of checkpoint {self.where(step)} does not fit: {len(wrong)} arrays differ, the first "
                f"being {name}, expected {expected.get(name, 'none')}, got {stored.get(name, 'none')}."
            )

    def _damage(self, step: int, reason: str) -> str:
        return f"checkpoint {self.where(step)} cannot be read: it is damaged or not relbo's ({reason})."

    def _read_record(self, step: int) -> dict[str, Any]:
        found = self._read(step, lambda ocp: {"record": ocp.args.JsonRestore()})["record"]
        whole = unsealed(found, f"the record of checkpoint {self.where(step)}")
        for name, expected in (("run", self._run), ("step", step)):
            if whole.get(name) != expected:
                raise Damaged(self._damage(step, f"it is of {name} {whole.get(name)}, not of {expected}"))
        return whole

    def _read(self, step: int, items: Callable[[Any], dict[str, Any]]) -> Any:
        try:
            with _orbax() as (ocp, checkpointer), _plainly_named(self._directory) as place:
                return checkpointer.restore(place / str(step), args=ocp.args.Composite(**items(ocp)))
        except Exception as error:  # orbax and tensorstore raise many kinds for a damaged file
            with warnings.catch_warnings():
                # what orbax had begun for the other arrays is let go here, without a word of Python about it
                warnings.simplefilter("ignore", RuntimeWarning)
                traceback.clear_frames(error.__traceback__)
            raise Damaged(self._damage(step, f"{type(error).__name__}: {first_line(error)}")) from error
