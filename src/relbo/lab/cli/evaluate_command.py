"""`relbo evaluate`: bounds on held-out data, with their errors."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.progress import Progress
from rich.table import Table

from relbo.lab.cli.devices import DEVICES, start_devices
from relbo.lab.cli.notes import say_notes
from relbo.lab.cli.printing import console, print_table
from relbo.lab.cli.train_command import threshold_words

if TYPE_CHECKING:
    from relbo.evaluate import Estimate

EXAMPLES = """
Evaluate a run: ELBO, IS-k and RS-k, in nats, with the standard error over images and the Monte-Carlo error.

**Examples**

    relbo evaluate runs/vrs

    relbo evaluate runs/vrs --bound elbo --bound is:25 --bound rs:25

    relbo evaluate runs/vrs --bound is:5000 --repeats 1 --json
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("evaluate", help=EXAMPLES)(evaluate_command)


def evaluate_command(
    run: Path = typer.Argument(..., help="Run directory."),
    bound: list[str] = typer.Option(["elbo", "is:25"], help="elbo, is:K or rs:K; repeatable."),
    split: str = typer.Option("test", help="train, valid or test."),
    limit: int | None = typer.Option(None, help="Only the first so many images."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    repeats: int = typer.Option(2, help="Independent evaluations; two or more give a Monte-Carlo error."),
    threshold: str | None = typer.Option(
        None, help="RS: quantile:GAMMA, rate:RATE or fixed:T on fresh draws; as in training if nothing is said."
    ),
    rate: float | None = typer.Option(None, help="RS: short for --threshold rate:RATE."),
    seed: int = typer.Option(0, help="Randomness of the evaluation."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    devices: int | None = DEVICES,
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    out: Path | None = typer.Option(None, help="Also write the JSON to this file."),
) -> None:
    """Evaluate a run."""
    from relbo import bounds, thresholds
    from relbo._check import root_key
    from relbo._disk import refuse_unwritable
    from relbo._options import COMMAND_LINE, check
    from relbo.evaluate import FRESH_DRAWS, evaluate, num_draws
    from relbo.lab.compare import rejection_of
    from relbo.lab.runs import open_run
    from relbo.train.log import plain, write_json

    mesh = start_devices(devices)
    words = threshold_words(threshold, rate)
    names = [bounds.parse(text) for text in bound]
    check(COMMAND_LINE, split=split, limit=limit, repeats=repeats, seed=seed)
    if words is not None and not any(isinstance(name, bounds.RS) for name in names):
        raise ValueError(f"--threshold and --rate are for the bounds rs:K, got only {', '.join(map(str, names))}.")
    if out is not None:
        refuse_unwritable(out)
    opened = open_run(run, data_dir=data_dir, which=parameters, with_metrics=False)
    say_notes([opened])
    rows = opened.data.split(split)[:limit]
    if split == "train" and opened.data.kind == "gray":
        raise ValueError("the gray training images have no fixed binary values: evaluate on valid or test.")
    rule, acceptance = rejection_of(opened)
    if words is not None:
        rule = thresholds.parse(words, num_draws=FRESH_DRAWS)

    total = num_draws(names, repeats) * len(rows)
    terminal = console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("draws", total=total)
        estimates = evaluate(
            opened.pair,
            rows,
            names,
            key=root_key(seed),
            repeats=repeats,
            threshold=rule,
            acceptance=acceptance,
            on_progress=lambda done: bar.advance(task, done),
            mesh=mesh,
        )
    result = {
        "run": str(run),
        "step": opened.step,
        "split": split,
        "parameters": parameters,
        "threshold": str(rule),
        "acceptance": str(acceptance),
        "bounds": [estimate.summary() for estimate in estimates.values()],
        "notes": list(opened.notes),
    }
    if as_json:
        print(json.dumps(plain(result), indent=2))
    else:
        print_bounds(estimates, f"{run}, {split}, {len(rows)} images, step {opened.step} ({parameters})")
    if out is not None:
        write_json(out, result)


def print_bounds(estimates: "dict[str, Estimate]", title: str) -> None:
    """Prints a line for each bound."""
    table = Table(title=title)
    for heading in ("bound", "nats", "NLL", "s.e. (images)", "s.e. (Monte Carlo)", "note"):
        table.add_column(heading, justify="left" if heading in ("bound", "note") else "right")
    for estimate in estimates.values():
        note = ""
        if "acceptance_rate" in estimate.extra:
            extra = estimate.extra
            note = (
                f"acceptance {extra['acceptance_rate']:.3f}; at as many proposals is:{extra['matched_is_samples']} "
                f"gives {extra['matched_is_mean']:.2f}"
            )
        table.add_row(
            estimate.name,
            f"{estimate.mean:.3f}",
            f"{-estimate.mean:.3f}",
            f"{estimate.standard_error:.3f}",
            f"{estimate.monte_carlo_error:.3f}",
            note,
        )
    print_table(table)
