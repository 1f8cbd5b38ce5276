"""`relbo data`: which datasets there are, whether a file is good, how to get one, and rows that stay on disk."""

from pathlib import Path

import typer
from rich import box
from rich.table import Table

from relbo.data import (
    SOURCES,
    Dataset,
    RowFiles,
    check_rows,
    convert_rows,
    fetching,
    independent_nats,
    load,
    loading,
    locate,
)
from relbo.data.dataset import SPLITS
from relbo.data.row_directory import is_row_directory
from relbo.data.row_writing import ROWS_PER_FILE
from relbo.lab.cli.printing import print_table

_DATA_DIR = typer.Option(
    None, "--data-dir", help="Directory to use instead of `$RELBO_DATA` and the per-user cache.", show_default=False
)

_LIST_HELP = """List the named datasets and where their files are.

**Examples**

    relbo data list

    relbo data list --data-dir ~/datasets
"""

_CHECK_HELP = """Load a dataset, check it, and print its shapes, means and fingerprint.

WHAT is a name of `relbo data list`, or the path of an `.npz` file with arrays `train`, `valid` and `test`: matrices
of 0s and 1s, or bit-packed uint8 (`np.packbits(axis=1)`) beside `train_shape`, `valid_shape` and `test_shape`;
or the folder that `relbo data convert` wrote, of which every byte is read and compared with its hash.

**Examples**

    relbo data check digits

    relbo data check binarized-mnist --data-dir ~/datasets

    relbo data check mine.npz

    relbo data check big/
"""

_CONVERT_HELP = """Write a dataset as a folder of `.npy` files, of which a run reads only the rows that it visits.

SOURCE is a name of `relbo data list`, an `.npz` file, or such a folder. The fingerprint stays the same, so a run may go
on with either. For data that never fit in memory see `relbo.data.write_rows`.

**Examples**

    relbo data convert mine.npz big/

    relbo data convert binarized-mnist mnist-rows/ --data-dir ~/datasets --rows-per-file 10000

    relbo data convert big/ unpacked/ --no-packed
"""

_FETCH_HELP = """Download a dataset from its public page, check its hashes, and write it as one `.npz` file.

The file goes to `--data-dir`, or else to `$RELBO_DATA`, or else to the per-user cache.

**Examples**

    relbo data fetch binarized-mnist

    relbo data fetch mnist --data-dir ~/datasets

    relbo data fetch mnist --url https://mirror.example.org/mnist/ --force
"""


def register(app: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(
        help="List, check, convert and fetch datasets, for instance `relbo data check binarized-mnist`.",
        no_args_is_help=True,
    )
    app.add_typer(group, name="data")
    group.command("list", help=_LIST_HELP)(list_data)
    group.command("check", help=_CHECK_HELP)(check)
    group.command("convert", help=_CONVERT_HELP)(convert)
    group.command("fetch", help=_FETCH_HELP)(fetch)


def list_data(data_dir: Path | None = _DATA_DIR) -> None:
    """Prints the table of named datasets."""
    place = locate.checked(data_dir)
    table = _table("name", "kind", "image", "train/valid/test", "file")
    for source in SOURCES.values():
        path = loading.present(source, place)
        if source is loading.DIGITS:
            where = "in the package"
        elif path is None:
            where = "not here; relbo data fetch " + source.name if source.remote else "not here; put in place by hand"
        else:
            where = str(path)
        image = "x".join(str(side) for side in source.image_shape)
        table.add_row(source.name, source.kind, image, "/".join(str(n) for n in source.sizes), where)
    print_table(table)


def check(
    what: str = typer.Argument(help="Name of a dataset, or path of an .npz file or of a folder.", show_default=False),
    data_dir: Path | None = _DATA_DIR,
) -> None:
    """Loads a dataset and prints what it holds."""
    folder = Path(what).expanduser()
    dataset = check_rows(folder) if what not in SOURCES and is_row_directory(folder) else load(what, data_dir)
    nats = independent_nats(dataset)
    table = _table("split", "rows", "pixels", "values", "mean", "independent pixels (nats)")
    for split in SPLITS:
        rows = dataset.split(split)
        is_gray = dataset.kind == "gray" and split == "train"
        mean = int(dataset.column_sums(split).sum()) / (rows.size * (255 if is_gray else 1))
        values = "0..255" if is_gray else "0, 1"
        table.add_row(split, str(len(rows)), str(rows.shape[1]), values, f"{mean:.6f}", f"{nats[split]:.3f}")
    print_table(table)
    typer.echo(f"fingerprint  {dataset.fingerprint}")
    typer.echo(_verdict(what, dataset, nats))


def convert(
    source: str = typer.Argument(help="Name of a dataset, or path of an .npz file or of a folder.", show_default=False),
    out: Path = typer.Argument(help="Folder to write, new or empty.", show_default=False),
    rows_per_file: int = typer.Option(ROWS_PER_FILE, help="Rows of each file but the last of a split."),
    packed: bool = typer.Option(True, help="Store 0s and 1s eight to a byte; gray levels never are."),
    data_dir: Path | None = _DATA_DIR,
) -> None:
    """Writes a dataset as a folder of rows."""
    dataset = convert_rows(source, out, data_dir=data_dir, rows_per_file=rows_per_file, packed=packed)
    sizes = " / ".join(f"{len(dataset.split(split)):,}" for split in SPLITS)
    typer.echo(f"wrote {out}: {sizes} rows of {dataset.train.shape[1]} pixels")
    typer.echo(f"fingerprint  {dataset.fingerprint}")


def fetch(
    name: str = typer.Argument(help="Name of a dataset.", show_default=False),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Where to put the file.", show_default=False),
    url: list[str] = typer.Option(
        [], "--url", help="Page to download from instead; repeat for several, tried in order.", show_default=False
    ),
    force: bool = typer.Option(False, "--force", help="Download even if a good copy is there."),
) -> None:
    """Downloads a named dataset."""
    fetching.fetch(name, data_dir, base_urls=url or None, force=force, report=lambda line: typer.echo(line, err=True))


def _verdict(what: str, dataset: Dataset, nats: dict[str, float]) -> str:
    """What was checked; a named dataset got this far only with the right fingerprint."""
    source = SOURCES.get(what)
    if source is None:
        train = "gray levels for training and two" if dataset.kind == "gray" else "three"
        hashes = ", and every file has its hash" if isinstance(dataset.train, RowFiles) else ""
        return f"ok: {what} holds {train} splits of 0s and 1s{hashes}"
    if source.independent_nats is None:
        return f"ok: the content is that of {source.name} ({source.about})"
    found = [nats[split] for split in SPLITS]
    expected = " / ".join(f"{value:.3f}" for value in source.independent_nats)
    if any(abs(a - b) > 1e-3 for a, b in zip(found, source.independent_nats, strict=True)):
        got = " / ".join(f"{value:.3f}" for value in found)
        raise ValueError(f"{source.name}: independent pixels must give {expected} nats per image, got {got}.")
    return f"ok: the content is that of {source.name}, and independent pixels give {expected} nats, as they must"


def _table(*columns: str) -> Table:
    """A table whose last column alone may break over lines: a path cut short is of no use."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns[:-1]:
        table.add_column(column, no_wrap=True)
    table.add_column(columns[-1])
    return table
