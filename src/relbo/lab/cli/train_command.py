"""`relbo train`: train a sigmoid belief network or a pair of one's own, stop and resume at will."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import typer

from relbo._disk import command
from relbo.lab.cli.devices import (
    COORDINATOR,
    DEVICES,
    DISTRIBUTED,
    NUM_PROCESSES,
    PROCESS_ID,
    start_devices,
)

RECIPE_THRESHOLD = "quantile:0.7"
"""What rejects by default, in the second half of a run: docs/results.md says what was compared."""
EXAMPLES = """
Train a sigmoid belief network, or your own model, with any estimator; stop it with Ctrl-C and go on with `--resume`.

`--model FILE.py:FUNCTION` trains the `relbo.Pair` that your `FUNCTION(key, data)` returns; data is a
`relbo.data.Dataset`. All that works on runs works on it.

**Examples**

    relbo train --out runs/first

    relbo train --data binarized-mnist --layers 200 --lr 3e-3 --schedule cosine --epochs 40 --out runs/vrs

    relbo train --estimator vrs --num-samples 5 --threshold quantile:0.9 --warmup-epochs 0 --out runs/paper

    relbo train --layers 200-200 --estimator vimco --num-samples 10 --lr 3e-4 --out runs/vimco

    relbo train --estimator vrs --rate 0.5 --out runs/rate

    relbo train --model mixture.py:make --estimator vrs --rate 0.5 --out runs/mixture

    relbo train --resume --out runs/first

    relbo train --devices 4 --shards 8 --batch-size 400 --out runs/four

    srun relbo train --distributed --data rows/ --batch-size 4096 --out /shared/runs/big
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("train", help=EXAMPLES)(train_command)


def train_command(
    context: typer.Context,
    out: Path = typer.Option(..., help="Run directory to write."),
    data: str = typer.Option(
        "digits", help="Data set by name (`relbo data list`), or path of an .npz file or of a folder of rows."
    ),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    model: str | None = typer.Option(None, help="Your own pair: FILE.py:FUNCTION or MODULE:FUNCTION."),
    layers: str = typer.Option("200", help="Units of each stochastic layer, the one next to the data first: 200-200."),
    num_hidden: int = typer.Option(0, help="Tanh layers inside each conditional; 0 is the linear network."),
    estimator: str = typer.Option("vrs", help="Estimator by name (`relbo list`)."),
    num_samples: int | None = typer.Option(
        None, help="Draws per datapoint; 5, for VRS accepted ones at the least, 2.", show_default=False
    ),
    num_proposals: int | None = typer.Option(
        None,
        help="VRS: proposals that every row evaluates, all accepted ones among them being used; 6, with --num-samples "
        "as many as these, which is the paper's algorithm.",
        show_default=False,
    ),
    threshold: str | None = typer.Option(
        None, help="VRS: quantile:GAMMA, rate:RATE or fixed:T; quantile:0.7 if nothing is said.", show_default=False
    ),
    rate: float | None = typer.Option(None, help="VRS: short for --threshold rate:RATE, an acceptance rate to hold."),
    refresh_epochs: float = typer.Option(10.0, help="VRS: epochs between refreshes of a quantile; 0 is online."),
    warmup_epochs: float | None = typer.Option(
        None, help="VRS: epochs without rejection at the start; by default half of --epochs."
    ),
    num_draws: int = typer.Option(20, help="VRS: draws behind each threshold that is solved for."),
    acceptance: str = typer.Option("soft:1.0", help="VRS: soft:SHARPNESS, soft:SHARPNESS:FLOOR, hard or always."),
    set_: list[str] = typer.Option([], "--set", help="Any other setting of the estimator, NAME=VALUE; repeatable."),
    optimizer: str = typer.Option("adam", help="Any Optax optimiser by name."),
    lr: float = typer.Option(1e-3, help="Learning rate."),
    schedule: str = typer.Option("constant", help="Learning-rate schedule: constant, cosine or linear."),
    optimizer_set: list[str] = typer.Option([], help="Other settings of the optimiser, NAME=VALUE; repeatable."),
    batch_size: int = typer.Option(50, help="Datapoints per step."),
    epochs: int = typer.Option(30, help="Passes over the training data."),
    seed: int = typer.Option(0, help="Root of all randomness."),
    shards: int | None = typer.Option(
        None,
        help="Parts that the rows are split into, a multiple of the devices; they decide, not the devices, which "
        "rows meet in a batch. By default as many as devices.",
        show_default=False,
    ),
    devices: int | None = DEVICES,
    distributed: bool = DISTRIBUTED,
    coordinator: str | None = COORDINATOR,
    num_processes: int | None = NUM_PROCESSES,
    process_id: int | None = PROCESS_ID,
    valid_bound: str = typer.Option(
        "is:100", help="Bound by which the best parameters are chosen; few draws prefer a tight q to a good model."
    ),
    valid_every: int | None = typer.Option(
        None, help="Epochs between validations; a tenth of --epochs.", show_default=False
    ),
    patience: int | None = typer.Option(None, help="Stop after this many validations without a better bound."),
    checkpoint_every: int | None = typer.Option(None, help="Steps between checkpoints; an epoch if not given."),
    log_every: int = typer.Option(100, help="Steps between records in metrics.jsonl."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the run in --out."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress bar."),
    compilation_cache: Path | None = typer.Option(
        None, help="Keep compiled programs in this directory, so that the same run starts at once next time."
    ),
) -> None:
    """Train a sigmoid belief network, or a pair of the user's own."""
    import jax

    from relbo._options import COMMAND_LINE, check
    from relbo.lab.compiled import keep_compiled
    from relbo.lab.config import TAKEN_AS, RunConfig, parse_settings, refuse_idle
    from relbo.lab.runs import train_run
    from relbo.train.directory import RUN, refuse_foreign

    if compilation_cache is not None:
        keep_compiled(compilation_cache)
    said = said_in(context)
    if model is not None and said & {"layers", "num_hidden"}:
        raise ValueError(
            "--layers and --num-hidden are for the sigmoid belief network: with --model they mean nothing."
        )
    check(COMMAND_LINE, checkpoint_every=checkpoint_every, log_every=log_every, shards=shards)
    mesh = start_devices(
        devices, distributed=distributed, coordinator=coordinator, num_processes=num_processes, process_id=process_id
    )
    draws = draws_by_default(estimator, num_samples, num_proposals)
    asked = RunConfig(
        data=data,
        model=model,
        layers=parse_layers(layers),
        num_hidden=num_hidden,
        estimator=estimator,
        num_samples=draws[0],
        num_proposals=draws[1],
        threshold=threshold_words(threshold, rate) or RECIPE_THRESHOLD,
        num_draws=num_draws,
        refresh_epochs=refresh_epochs,
        warmup_epochs=warmup_epochs,
        acceptance=acceptance,
        settings=parse_settings(set_),
        optimizer=optimizer,
        lr=lr,
        schedule=schedule,
        optimizer_settings=parse_settings(optimizer_set),
        batch_size=batch_size,
        epochs=epochs,
        seed=seed,
        shards=shards or (1 if mesh is None else mesh.size),
        valid_bound=valid_bound,
        valid_every=1 if valid_every is None else valid_every,
        patience=patience,
    )
    if warmup_epochs is None:  # after the number of epochs was checked
        asked = dataclasses.replace(asked, warmup_epochs=asked.epochs / 2)
    if valid_every is None:
        asked = dataclasses.replace(asked, valid_every=max(asked.epochs // 10, 1))
    refuse_foreign(out, resume=resume)
    if resume and not (out / RUN).exists():
        raise FileNotFoundError(f"there is no run in {out} to go on with: leave --resume out to begin one there.")
    config = _resumed(said, asked, out) if resume and (out / "config.json").exists() else asked
    refuse_idle(config.estimator, config.threshold, TAKEN_AS.keys() & words_of(context))
    if both := sorted(asked.settings.keys() & said):
        option = f"--{both[0].replace('_', '-')}"
        raise ValueError(f"{both[0]} must be said once, got {option} and --set {both[0]}=...; leave one out.")
    result = train_run(
        config,
        out,
        data_dir=data_dir,
        resume=resume,
        checkpoint_every=checkpoint_every,
        log_every=log_every,
        progress=False if quiet else None,
        mesh=mesh,
    )
    speaks = mesh is None or mesh.devices.flat[0].process_index == jax.process_index()  # the first, for all
    step = int(result.state.step)
    if result.stopped == "interrupted":
        if speaks:
            typer.echo(
                f"Stopped at step {step}, saved. Go on with: {command('train', '--resume', '--out', out)}", err=True
            )
        sys.exit(128 + (result.signal or 0))
    best = "" if result.best_bound is None else f", best validation bound {result.best_bound:.2f} nats"
    why = "no better validation bound" if result.stopped == "early" else "all epochs done"
    if speaks:
        typer.echo(f"Trained to step {step} ({why}){best}. Evaluate with: {command('evaluate', out)}", err=True)


def parse_layers(text: str) -> tuple[int, ...]:
    """Reads 200-200."""
    words = text.split("-")
    if not all(word.isdecimal() and len(word) < 20 and int(word) > 0 for word in words):
        raise ValueError(f"--layers must be positive integers joined by '-', such as 200-200, got {text!r}.")
    return tuple(int(word) for word in words)


def draws_by_default(estimator: str, num_samples: int | None, num_proposals: int | None) -> tuple[int, int | None]:
    """S and N of a run: those that were said, else those of the recipe (docs/results.md) where there is a budget."""
    from relbo.estimators import REGISTRY

    cls = REGISTRY.get(estimator)  # an unknown one is refused later, with all others
    has_budget = cls is not None and any(field.name == "num_proposals" for field in dataclasses.fields(cls))
    if has_budget and num_samples is None:
        return 2, 6 if num_proposals is None else num_proposals
    return 5 if num_samples is None else num_samples, num_proposals


def threshold_words(threshold: str | None, rate: float | None) -> str | None:
    """What --threshold and --rate say together; None if they say nothing."""
    if threshold is not None and rate is not None:
        raise ValueError(f"give at most one of --threshold and --rate, got {threshold} and {rate}.")
    return threshold if rate is None else f"rate:{rate}"


def said_in(context: typer.Context) -> set[str]:
    """Fields of the configuration that the command line mentions."""
    fields = {"rate": "threshold", "set_": "settings", "optimizer_set": "optimizer_settings"}
    return {fields.get(name, name) for name in words_of(context)}


def words_of(context: typer.Context) -> set[str]:
    """Parameters that the command line mentions."""
    return {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def _resumed(said: set[str], asked: Any, out: Path) -> Any:
    # what the command line does not say, the run's own configuration says
    from relbo.lab.config import RunConfig

    stored = RunConfig.load(out)
    names = {field.name for field in dataclasses.fields(RunConfig)} & said
    return dataclasses.replace(stored, **{name: getattr(asked, name) for name in names})
