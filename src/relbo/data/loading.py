"""From a name or a path to a checked dataset."""

from pathlib import Path

from relbo._check import did_you_mean, require
from relbo.data import files, locate
from relbo.data.dataset import Dataset
from relbo.data.row_directory import is_row_directory, load_rows
from relbo.data.sources import DIGITS, SOURCES, Source

DEFAULT = DIGITS.name


def load(name_or_path: str | Path, data_dir: Path | str | None = None) -> Dataset:
    """A named dataset, a user's file or a directory of rows.

    Args:
        name_or_path: a name of `relbo.data.SOURCES`, or the path of an `.npz` file whose `train`, `valid` and `test`
            are matrices of 0s and 1s (any numeric or boolean dtype), or bit-packed uint8 beside `<split>_shape`, or
            that of a directory that `relbo data convert` or `relbo.data.write_rows` wrote, whose rows stay on disk.
        data_dir: where the files of named datasets are; by default in `$RELBO_DATA` or the user's cache.

    Returns:
        The checked dataset; for a named one its content is the published content, bit for bit.

    Raises:
        FileNotFoundError: the file is nowhere; the message says how to get it.
        ValueError: the name is unknown, or the file is not what it should be.

    Example:
        >>> relbo.data.load("digits").name
        'digits'
    """
    is_name = isinstance(name_or_path, str | Path) and str(name_or_path) != "" and "\0" not in str(name_or_path)
    require(
        is_name, "data", f"one of {', '.join(SOURCES)} or the path of an .npz file or of a folder of rows", name_or_path
    )
    place = locate.checked(data_dir)
    if str(name_or_path) in SOURCES:
        return load_source(SOURCES[str(name_or_path)], place)
    path = Path(name_or_path).expanduser()
    if is_row_directory(path):
        return load_rows(path)
    if path.suffix == ".npz" or len(path.parts) > 1 or path.exists():
        return files.load_file(path)
    raise ValueError(
        f"data must be one of {', '.join(SOURCES)} or the path of an .npz file or of a folder of rows, got "
        f"{str(name_or_path)!r}{did_you_mean(str(name_or_path), SOURCES)}"
    )


def load_source(source: Source, data_dir: Path | None = None) -> Dataset:
    """A named dataset."""
    return source.read(present(source, data_dir) or _missing(source, data_dir))


def present(source: Source, data_dir: Path | None = None) -> Path | None:
    """The file of a named dataset, if it is there."""
    if source.name == DIGITS.name:
        return Path(__file__).with_name(source.file)
    return locate.find(source.file, data_dir)


def _missing(source: Source, data_dir: Path | None) -> Path:
    searched = ", ".join(str(place) for place in locate.places(data_dir))
    raise FileNotFoundError(
        f"{source.file} (the {source.name} data) is in none of the places searched ({searched}); {source.advice()}, or "
        f"name its directory with --data-dir or ${locate.VARIABLE}."
    )
