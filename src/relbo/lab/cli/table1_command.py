"""`relbo reproduce table1`: the paper's table of methods, all by one trainer."""

import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from relbo.lab.cli.printing import console, print_table


def table1_command(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Directory of the cells and the table; an earlier one is resumed. --from: that of FILE."
        ),
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            help="smoke (minutes, digits), budget (--minutes a cell), long (100 epochs), headline (the recipe, 500 to "
            "1,000 epochs) or paper."
        ),
    ] = "smoke",
    group: Annotated[
        list[str], typer.Option(help="long: a, b, c or d, its cells in the order worth running; repeatable.")
    ] = [],  # noqa: B006
    only: Annotated[list[str], typer.Option(help="Row to run, repeatable; all if not given.")] = [],  # noqa: B006
    arch: Annotated[
        list[str], typer.Option(help="Architecture to run: 200, 200-200 or 200-200-200; repeatable; all if not given.")
    ] = [],  # noqa: B006
    seeds: Annotated[
        int | None, typer.Option(help="Seeds 0 to K - 1 of each cell; 1, or as the group says.", metavar="K")
    ] = None,
    seed: Annotated[list[int], typer.Option(help="This seed of each cell in place of those; repeatable.")] = [],  # noqa: B006
    minutes: Annotated[float | None, typer.Option(help="budget: minutes of training for each cell; 5.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Other epochs than the preset's, on all architectures.")] = None,
    lr: Annotated[
        list[str], typer.Option(help="Another learning rate: LR, or FAMILY=LR for one estimator; repeatable.")
    ] = [],  # noqa: B006
    bound: Annotated[
        list[str], typer.Option(help="Bound on the test images in place of the preset's: elbo, is:K, rs:K; repeatable.")
    ] = [],  # noqa: B006
    data: Annotated[str | None, typer.Option(help="Other data than the preset's, by name or path.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where data files are; else RELBO_DATA, else the user cache.")
    ] = None,
    is_5000: Annotated[
        bool, typer.Option("--is-5000", help="Also evaluate IS-5000; paper and headline do anyway.")
    ] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="Train nothing: collect and draw what there is, also while others train.")
    ] = False,
    from_: Annotated[
        list[Path],
        typer.Option(
            "--from",
            help="Draw table and figures from this table1.json alone; repeatable: the cells of all, as one table.",
            metavar="FILE",
        ),
    ] = [],  # noqa: B006
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Table 1: all methods on sigmoid belief networks of one, two and three layers, beside the published numbers.

    Each cell is a run directory `OUT/ROW/ARCHITECTURE`, or `OUT/seed-K/ROW/ARCHITECTURE`. Stop it with Ctrl-C and give
    the same command to go on: finished cells stay as they are, others go on from their last checkpoint. A cell that
    fails does not stop the others. The same command may run several times at once, on one machine or on several that
    share OUT: each process makes the cells that no other is making. Writes `table1.json`, `table1.md` and a figure for
    each architecture.

    **Examples**

    - `relbo reproduce table1 --preset smoke --out out/table1`

    - `relbo reproduce table1 --preset budget --minutes 10 --only vrs-0.9 --only rloo-6 --arch 200 --out out/budget`

    - `relbo reproduce table1 --preset long --group a --out out/long`

    - `relbo reproduce table1 --preset long --only vrs-recipe --arch 200 --seed 3 --out out/again`

    - `relbo reproduce table1 --preset long --out out/long --collect`

    - `relbo reproduce table1 --from out/long/table1.json --out out/redrawn`

    - `relbo reproduce table1 --from here/table1.json --from there/table1.json --out out/both`
    """
    from relbo._disk import refuse_unwritable
    from relbo.lab.paper import output, table1_collect
    from relbo.lab.paper import table1 as experiment
    from relbo.lab.paper.table1_merge import merge
    from relbo.train.errors import Interrupted, TrainingError

    if len(from_) == 1:
        draw(table1_collect.read(from_[0]), output.output_directory(from_[0].parent if out is None else out))
        return
    if from_:
        if out is None:
            raise ValueError(f"expected --out DIR for the table of {len(from_)} files, got none.")
        try:
            merged = merge([table1_collect.read(file) for file in from_])
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"--from must be files of `relbo reproduce table1`, got a damaged one ({error!r})."
            ) from error
        draw(merged, output.output_directory(out), json=True)
        return
    if out is None:
        raise ValueError("expected --out DIR for the cells and the table, or --from FILE to draw one; got neither.")
    chosen = preset_of(preset, data=data, minutes=minutes, is_5000=is_5000, epochs=epochs, rates=lr, bounds=bound)
    cells = experiment.cells(out, chosen, only, arch, groups=group, seeds=seeds_of(seeds, seed))
    refuse_unwritable(out / "table1.json")
    table1_collect.collect(out, chosen)  # refuses cells of other settings anywhere in the table before any is trained
    output.output_directory(out)
    start = time.perf_counter()

    def say(stage: str) -> None:
        if not quiet:
            typer.echo(f"[{time.perf_counter() - start:6.1f} s] {stage}", err=True)

    failures: dict[str, str] = {}
    if not collect:
        try:
            failures = experiment.run(
                cells, data_dir=data_dir, on_stage=say, progress=sys.stderr.isatty() and not quiet
            )
        except (Interrupted, KeyboardInterrupt) as stop:
            typer.echo("Stopped, saved. Give the same command again to go on.", err=True)
            sys.exit(getattr(stop, "exit_code", 130))
    draw(table1_collect.collect(out, chosen), out, json=True, only_found=bool(only or arch or group))
    if not collect and (left := sum(cell.label not in failures and cell.finished() is None for cell in cells)):
        typer.echo(
            f"{left} of {len(cells)} cells are left to other processes: give the same command again when these end.",
            err=True,
        )
    if failures:
        label, reason = next(iter(failures.items()))
        raise TrainingError(f"{len(failures)} of {len(cells)} cells failed, the first being {label}: {reason}")


def seeds_of(number: int | None, chosen: Sequence[int]) -> Sequence[int]:
    """The seeds that the command line names; none if it leaves them to the groups."""
    if number is None:
        if wrong := [seed for seed in chosen if not 0 <= seed < 1_000_000_000]:
            raise ValueError(f"--seed must be an integer from 0 to 999,999,999, got {wrong[0]}.")
        return chosen
    if chosen:
        raise ValueError(f"expected --seeds or --seed, got --seeds {number} and --seed {chosen[0]}.")
    if not 1 <= number <= 1_000:
        raise ValueError(f"--seeds must be an integer from 1 to 1,000, got {number}.")
    return range(number)


def preset_of(
    name: str,
    *,
    data: str | None = None,
    minutes: float | None = None,
    is_5000: bool = False,
    epochs: int | None = None,
    rates: Sequence[str] = (),
    bounds: Sequence[str] = (),
) -> Any:
    """The preset with what the command line changes of it."""
    from relbo._check import did_you_mean
    from relbo.bounds import parse
    from relbo.lab.paper.table1_presets import LONG, PRESETS

    if name not in PRESETS:
        raise ValueError(f"--preset must be one of {', '.join(PRESETS)}; got {name!r}{did_you_mean(name, PRESETS)}")
    preset = PRESETS[name]
    if minutes is not None:
        if name != "budget":
            raise ValueError(f"--minutes is for --preset budget, got it with {name}, which counts epochs.")
        if not 0 < minutes < float("inf"):
            raise ValueError(f"--minutes must be a number > 0, got {minutes}.")
        preset = dataclasses.replace(preset, max_seconds=60 * minutes)
    if data is not None:
        preset = dataclasses.replace(preset, common=dataclasses.replace(preset.common, data=data))
    if epochs is not None:
        preset = preset.with_epochs(epochs)
    if rates:
        preset = preset.with_rates(rates)
    if bounds:
        preset = dataclasses.replace(preset, bounds=tuple(dict.fromkeys(str(parse(bound)) for bound in bounds)))
    if is_5000 and LONG not in preset.bounds:
        preset = dataclasses.replace(preset, bounds=(*preset.bounds, LONG))
    return preset


def draw(results: dict[str, Any], out: Path, *, json: bool = False, only_found: bool = False) -> None:
    """Writes the page and the figures, with `json` also the results themselves, and prints the tables."""
    from relbo._disk import write_text
    from relbo.lab.paper.table1_figures import plot
    from relbo.lab.paper.table1_page import markdown
    from relbo.train.log import write_json

    files = [out / "table1.md"]
    if json:
        files.insert(0, out / "table1.json")
        write_json(files[0], results)
    write_text(out / "table1.md", markdown(results))
    files += plot(results, out)
    print_sheets(results, only_found=only_found)
    *others, last = map(str, files)
    typer.echo(f"wrote {', '.join(others)} and {last}" if others else f"wrote {last}", err=True)


def print_sheets(results: dict[str, Any], *, only_found: bool) -> None:
    """Prints the tables of all architectures, and how to read them."""
    from relbo.lab.paper.table1_page import footnotes, missing, reading, sheets, summary_sheets

    out = console()
    of_architectures = (sheet for made in sheets(results, only_found=only_found).values() for sheet in made)
    for sheet in (*of_architectures, *summary_sheets(results, only_found=only_found)):
        table = Table(title=sheet.title, box=box.SIMPLE, pad_edge=False)
        for position, heading in enumerate(sheet.headings):
            table.add_column(heading, justify="left" if position < sheet.num_texts else "right")
        for row in sheet.rows:
            table.add_row(*row)
        print_table(table)
    for line in (results["note"], missing(results), *reading(results), *footnotes(results)):
        out.print(line, soft_wrap=True)
