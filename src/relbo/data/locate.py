"""Where data files are looked for, and where fetched ones go."""

import os
from pathlib import Path

from relbo._check import require

VARIABLE = "RELBO_DATA"


def cache_dir() -> Path:
    """The per-user cache of the operating system, such as `~/.cache/relbo`."""
    import pooch  # costs a tenth of a second, and most programs never look here

    return Path(pooch.os_cache("relbo"))


def places(data_dir: Path | str | None = None) -> list[Path]:
    """Where files are looked for: in the explicit directory alone, or else in `$RELBO_DATA`, then in the cache."""
    if data_dir is not None:
        return [Path(data_dir).expanduser()]
    variable = os.environ.get(VARIABLE)
    return [*([Path(variable).expanduser()] if variable else []), cache_dir()]


def checked(data_dir: Path | str | None) -> Path | None:
    """An explicit directory as a path; one that is not there is refused, not passed over."""
    if data_dir is None:
        return None
    require(isinstance(data_dir, str | Path) and str(data_dir) != "", "data_dir", "a directory", data_dir)
    place = Path(data_dir).expanduser()
    if not place.is_dir():
        raise FileNotFoundError(f"the data directory {place} does not exist; create it, or leave --data-dir out.")
    return place


def find(file: str, data_dir: Path | None = None) -> Path | None:
    """The first place's copy of a file, or None."""
    candidates = (place / file for place in places(data_dir))
    return next((path for path in candidates if path.is_file()), None)
