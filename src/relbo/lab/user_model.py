"""A pair of the user's own: `FILE_OR_MODULE:FUNCTION`, with `FUNCTION(key, data) -> relbo.Pair`.

    relbo train --model mixture.py:make --data digits --out runs/mixture

The key is the run's, the data the loaded `relbo.data.Dataset`. A run remembers the SHA-256 of the file, so that nobody
goes on with another model than the one that was begun; what that file imports is not looked at.
"""

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from relbo.data import Dataset
from relbo.types import Pair


class Place(NamedTuple):
    """Where a function is."""

    file: Path
    """What its content is hashed of."""
    module: str | None
    """The name to import it by; None for a file that is loaded by its path."""
    function: str

    def words(self) -> str:
        """`FILE_OR_MODULE:FUNCTION`, with the file's absolute path."""
        return f"{self.module or self.file}:{self.function}"


def find(words: str) -> Place:
    """Reads FILE_OR_MODULE:FUNCTION; nothing of the user's is run, but the packages that a module is in."""
    where, _, function = words.rpartition(":")
    if not where or not function.isidentifier():
        raise ValueError(f"a model must be FILE:FUNCTION or MODULE:FUNCTION, such as mixture.py:make, got {words!r}.")
    if where.endswith(".py") or "/" in where or "\\" in where:
        file = Path(where).expanduser().absolute()
        if not file.is_file():
            raise FileNotFoundError(f"the model {words} needs the file {file}, which is not there.")
        return Place(file, None, function)
    try:
        spec = importlib.util.find_spec(where)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise ValueError(f"the model {words} needs the module {where}, which cannot be found; a file is named FILE.py.")
    return Place(Path(spec.origin), where, function)


def sha256(place: Place) -> str:
    """SHA-256 (hex) of the file's content."""
    return hashlib.sha256(place.file.read_bytes()).hexdigest()


def change(words: str, recorded: str | None) -> str | None:
    """The sentence that a model's file is no longer what a run was begun with; None if it is."""
    place = find(words)
    now = sha256(place)
    if recorded in (None, now):
        return None
    return f"{place.file} has changed since the run began: its SHA-256 was {recorded} and is now {now}."


def make_pair(words: str, key: PRNGKeyArray, data: Dataset) -> Pair:
    """Calls the user's function.

    Args:
        words: FILE_OR_MODULE:FUNCTION.
        key: randomness of the first parameters.
        data: the run's data.

    Raises:
        ValueError: the file cannot be run, it has no such function, the function fails, or it returns something else.
    """
    function = load_function(words, "model")
    pair = guarded(f"the model's function {words} failed", lambda: function(key, data))
    if not isinstance(pair, Pair):
        raise ValueError(f"the model's function {words} must return a relbo.Pair, got {type(pair).__name__}.")
    return pair


def load_function(words: str, what: str) -> Callable[..., Any]:
    """The user's function; `what` it is for, a model or a program, is said where it cannot be had."""
    place = find(words)
    module = guarded(f"the {what}'s file {place.file} cannot be run", lambda: _load(place))
    function = getattr(module, place.function, None)
    if not callable(function):
        raise ValueError(f"the {what}'s file {place.file} has no function {place.function!r}.")
    return function


def _load(place: Place) -> ModuleType:
    if place.module is not None:
        return importlib.import_module(place.module)
    # one module for one content: a pair that is made again is of the same classes
    name = (
        f"relbo_model_{place.file.stem}_{hashlib.sha256(str(place.file).encode()).hexdigest()[:8]}_{sha256(place)[:8]}"
    )
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place.file)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is being run
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def guarded(what: str, action: Callable[[], Any]) -> Any:
    """Runs code of the user's; its failure is a `ValueError` of one sentence."""
    try:
        return action()
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no details"])[0]
        raise ValueError(f"{what}: {type(error).__name__}: {reason}") from error
