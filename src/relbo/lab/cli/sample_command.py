"""`relbo sample`: draws from the resampled posterior of held-out datapoints."""

import dataclasses
from pathlib import Path

import typer
from rich.progress import Progress

from relbo.lab.cli.devices import DEVICES, start_devices
from relbo.lab.cli.printing import console
from relbo.lab.cli.train_command import threshold_words

EXAMPLES = """
Draw from the resampled posterior r(z | x) of datapoints of a run, and say what the draws are worth.

Writes a NumPy file with the draws (`z...`, first axes row and draw) and, for each row, `acceptance`, `log_evidence`,
`log_evidence_error`, `kl`, `ess`, `pareto_k`, `num_proposals`, `threshold` and the `log_weights` of its draws.

**Examples**

    relbo sample runs/vrs --limit 10 --rate 0.1 --num-samples 100 --out draws.npz

    relbo sample runs/vrs --split valid --threshold quantile:0.5 --out draws.npz
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("sample", help=EXAMPLES)(sample_command)


def sample_command(
    run: Path = typer.Argument(..., help="Run directory."),
    out: Path = typer.Option(..., help="File to write, .npz."),
    split: str = typer.Option("test", help="train, valid or test."),
    limit: int = typer.Option(10, min=1, help="Only the first so many datapoints."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    rate: float | None = typer.Option(None, help="Acceptance rate to aim at: the lower, the closer to the posterior."),
    threshold: str | None = typer.Option(
        None, help="quantile:GAMMA, rate:RATE or fixed:T; as in training if neither is said."
    ),
    num_samples: int = typer.Option(1_000, min=2, help="Draws for each datapoint."),
    num_draws: int = typer.Option(1_000, min=2, help="Plain draws from q behind each threshold."),
    max_rounds: int = typer.Option(1_000, min=1, help="A row gives up after so many times --num-samples proposals."),
    seed: int = typer.Option(0, help="Randomness."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    devices: int | None = DEVICES,
) -> None:
    """Draw from the resampled posterior."""
    import jax

    from relbo import thresholds
    from relbo._check import root_key
    from relbo._disk import refuse_unwritable
    from relbo._options import COMMAND_LINE, check
    from relbo.data.files import write_npz
    from relbo.lab.cli.notes import say_notes
    from relbo.lab.compare import rejection_of
    from relbo.lab.runs import open_run
    from relbo.posterior import posterior

    mesh = start_devices(devices)
    words = threshold_words(threshold, rate)
    if out.suffix != ".npz":
        raise ValueError(f"--out must be a file that ends in .npz, got {out}.")
    check(
        COMMAND_LINE,
        split=split,
        limit=limit,
        num_samples=num_samples,
        num_draws=num_draws,
        max_rounds=max_rounds,
        seed=seed,
    )
    refuse_unwritable(out)
    opened = open_run(run, data_dir=data_dir, which=parameters, with_metrics=False)
    say_notes([opened])
    rows = opened.data.split(split)[:limit]
    if split == "train" and opened.data.kind == "gray":
        raise ValueError("the gray training images have no fixed binary values: draw for valid or test.")
    rule, acceptance = rejection_of(opened)
    if words is not None:
        rule = thresholds.parse(words, num_draws=num_draws)
    terminal = console(stderr=True)
    with Progress(console=terminal, transient=True, disable=not terminal.is_terminal) as bar:
        task = bar.add_task("datapoints", total=len(rows))
        found = posterior(
            root_key(seed),
            opened.pair,
            rows,
            threshold=rule,
            acceptance=acceptance,
            num_samples=num_samples,
            num_draws=num_draws,
            max_rounds=max_rounds,
            throw=False,
            on_progress=lambda done: bar.advance(task, done),
            mesh=mesh,
        )
    names = [field.name for field in dataclasses.fields(found) if field.name not in ("z", "samples", "proposals")]
    draws = {f"z{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(found.z)}
    write_npz(out, {**draws, **{name: getattr(found, name) for name in names}})
    typer.echo(found.summary())
    typer.echo(f"wrote {out}", err=True)
    if found.exhausted.any():
        typer.echo(
            f"{int(found.exhausted.sum())} of {len(rows)} rows ran out of proposals, and their draws are not from r: "
            "aim at a higher rate, or raise --max-rounds.",
            err=True,
        )
