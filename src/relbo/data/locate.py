"""Where data files are looked for, and where fetched ones go."""

import os
from pathlib import Path

VARIABLE = "RELBO_DATA"


def cache_dir() -> Path:
    """The per-user cache of the operating system, such as `~/.cache/relbo`."""
    import pooch  # costs a tenth of a second, and most programs never look here

    return Path(pooch.os_cache("relbo"))


def places(data_dir: Path | None = None) -> list[Path]:
    """The directories in the order of search: the explicit one, `$RELBO_DATA`, the cache."""
    variable = os.environ.get(VARIABLE)
    chosen = [data_dir, Path(variable) if variable else None, cache_dir()]
    return [place.expanduser() for place in chosen if place is not None]


def find(file: str, data_dir: Path | None = None) -> Path | None:
    """The first place's copy of a file, or None."""
    candidates = (place / file for place in places(data_dir))
    return next((path for path in candidates if path.is_file()), None)
