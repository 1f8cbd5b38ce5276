"""`relbo evaluate`: bounds on held-out data, with their errors."""

import json
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

EXAMPLES = """
Evaluate a run: ELBO, IS-k and RS-k, in nats, with the standard error over images and the Monte-Carlo error.

**Examples**

    relbo evaluate runs/vrs

    relbo evaluate runs/vrs --bound elbo --bound is:25 --bound rs:25

    relbo evaluate runs/vrs --bound is:5000 --repeats 1 --json
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("evaluate", help=EXAMPLES)(evaluate)


def evaluate(
    run: Path = typer.Argument(..., help="Run directory."),
    bound: list[str] = typer.Option(["elbo", "is:25"], help="elbo, is:K or rs:K; repeatable."),
    split: str = typer.Option("test", help="train, valid or test."),
    limit: int | None = typer.Option(None, help="Only the first so many images."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    repeats: int = typer.Option(2, help="Independent evaluations; two or more give a Monte-Carlo error."),
    gamma: float | None = typer.Option(None, help="RS: threshold at this quantile of fresh draws."),
    rate: float | None = typer.Option(None, help="RS: threshold with this acceptance rate on fresh draws."),
    seed: int = typer.Option(0, help="Randomness of the evaluation."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    out: Path | None = typer.Option(None, help="Also write the JSON to this file."),
) -> None:
    """Evaluate a run."""
    from relbo._check import root_key
    from relbo.compare import rejection_of
    from relbo.evaluate import FRESH_DRAWS, BoundName, evaluate
    from relbo.thresholds import Quantile, Rate
    from relbo.train.log import plain, write_json
    from relbo.train.runs import open_run

    if gamma is not None and rate is not None:
        raise ValueError(f"give at most one of --gamma and --rate, got {gamma} and {rate}.")
    names = [BoundName.parse(text) for text in bound]
    opened = open_run(run, data_dir=data_dir, which=parameters)
    rows = opened.data.split(split)[:limit]
    if split == "train" and opened.data.kind == "gray":
        raise ValueError("the gray training images have no fixed binary values: evaluate on valid or test.")
    threshold, acceptance = rejection_of(opened)
    if gamma is not None:
        threshold = Quantile(gamma, FRESH_DRAWS)
    if rate is not None:
        threshold = Rate(rate, FRESH_DRAWS)

    total = sum(name.num_samples for name in names) * len(rows) * repeats
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("draws", total=total)
        estimates = evaluate(
            opened.pair,
            rows,
            [str(name) for name in names],
            key=root_key(seed),
            repeats=repeats,
            threshold=threshold,
            acceptance=acceptance,
            on_progress=lambda done: bar.advance(task, done),
        )
    result = {
        "run": str(run),
        "step": opened.step,
        "split": split,
        "parameters": parameters,
        "threshold": str(threshold),
        "acceptance": str(acceptance),
        "bounds": [estimate.summary() for estimate in estimates.values()],
    }
    if out is not None:
        write_json(out, result)
    if as_json:
        print(json.dumps(plain(result), indent=2))
        return
    table = Table(title=f"{run}, {split}, {len(rows)} images, step {opened.step} ({parameters})")
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
    Console().print(table)
