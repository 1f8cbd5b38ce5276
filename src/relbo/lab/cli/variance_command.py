"""`relbo variance`: how noisy the gradient of each estimator is, at equal cost, and which one to take."""

import math
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from relbo.lab.cli.devices import DEVICES, start_devices
from relbo.lab.cli.notes import say_notes
from relbo.lab.cli.printing import console, print_table

EXAMPLES = """
Which estimator? Measure gradient variance and signal-to-noise ratio of all that fit, for theta and phi apart, for the
same number of proposals per datapoint and for the same time: at a fresh network, at your own model (`--model`), at a
NumPyro model and guide (`--program`), or at the parameters of a RUN of `relbo train`. The table is ranked, and ends
with a recommendation.

Baselines, controls and thresholds are warmed up first, with the parameters held fixed. `--model FILE.py:FUNCTION` is as
for `relbo train`; the FUNCTION of `--program` takes nothing and returns (model, guide, params, args). With `--out`,
also writes `variance.json` and `variance.png`.

**Examples**

    relbo variance

    relbo variance runs/vrs --out out/variance

    relbo variance --layers 50-50 --estimator rloo --estimator disarm --estimator rebar --proposals 12

    relbo variance --model mixture.py:make --data digits

    relbo variance --program regression.py:make --batch-size 1

    relbo variance runs/vrs --parameters last --threshold rate:0.5 --estimator vrs --estimator rloo
"""


MOVES = (
    "After a small step of phi draws of q are impossible, or q does not add up to 1: where the support of q depends on "
    "phi no gradient but Pathwise()'s is unbiased. Take a proposal with a fixed support."
)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("variance", help=EXAMPLES)(variance_command)


def variance_command(
    run: Path | None = typer.Argument(None, help="Run directory; a fresh network if not given."),
    data: str | None = typer.Option(None, help="Fresh network: data set by name or path; digits if not given."),
    layers: str | None = typer.Option(
        None, help="Fresh network: units of each layer, such as 200-200; 200 if not given."
    ),
    model: str | None = typer.Option(None, help="Your own pair: FILE.py:FUNCTION or MODULE:FUNCTION."),
    program: str | None = typer.Option(None, help="Your own NumPyro program: FILE.py:FUNCTION or MODULE:FUNCTION."),
    parameters: str = typer.Option("best", help="RUN: best (on validation) or last."),
    estimator: list[str] = typer.Option(
        [], help="Estimator by name (`relbo list`); repeatable; all that fit by default."
    ),
    proposals: int = typer.Option(10, help="Proposals per datapoint that every estimator may spend on an estimate."),
    estimates: int = typer.Option(500, help="Estimates of each gradient."),
    warmup: int = typer.Option(500, help="Steps of baselines, controls and thresholds before the measurement."),
    batch_size: int = typer.Option(50, help="Datapoints of the measured batch; a program has its own."),
    threshold: str | None = typer.Option(
        None, help="With rejection: quantile:GAMMA, rate:Z or fixed:T; the RUN's own, else quantile:0.9."
    ),
    seed: int = typer.Option(0, help="Root of all randomness, the fresh network's included."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    devices: int | None = DEVICES,
    out: Path | None = typer.Option(None, help="Folder for variance.json and variance.png."),
) -> None:
    """Measure the noise of gradients."""
    from relbo import data as datasets
    from relbo.lab import noise_table as experiment
    from relbo.lab.cli.train_command import parse_layers
    from relbo.lab.config import RunConfig, build_pair, refuse_idle, takers
    from relbo.lab.noise_meters import AbstractMeter, PairMeter, ProgramMeter
    from relbo.lab.paper import output
    from relbo.lab.runs import open_run
    from relbo.lab.user_program import make_program

    mesh = start_devices(devices)
    if run is not None and (data, layers, model, program) != (None, None, None, None):
        raise ValueError(
            "--data and --layers are for a fresh network, --model and --program for your own: a RUN has all."
        )
    if program is not None and (data, layers, model) != (None, None, None):
        raise ValueError("--program stands alone: a NumPyro program has its own model and data.")
    names = [name.removesuffix(experiment.BUDGET) for name in estimator]
    if threshold is not None and names and not set(names) & set(takers("threshold")):
        refuse_idle(names[0], threshold, ["threshold"])
    if out is not None:
        output.output_directory(out)
    place: dict[str, Any]
    meter: AbstractMeter
    if run is not None:
        opened = open_run(run, data_dir=data_dir, which=parameters)
        say_notes([opened])
        config, meter = opened.config, PairMeter(opened.pair, opened.data)
        place = {"run": str(run), "parameters": parameters, "step": opened.step}
    elif program is not None:
        config, meter = RunConfig(seed=seed), ProgramMeter(*make_program(program))
        batch_size = min(batch_size, meter.num_data)
        place = {"run": None, "parameters": "given", "step": 0, "program": program, "data": "its own"}
    else:
        chosen = RunConfig(data=data or datasets.DEFAULT, model=model, layers=parse_layers(layers or "200"), seed=seed)
        config = chosen.settled()
        dataset = datasets.load(config.data, data_dir)
        meter = PairMeter(build_pair(config, dataset), dataset)
        place = {"run": None, "parameters": "fresh", "step": 0}
    settings = experiment.Settings(
        num_proposals=proposals,
        num_estimates=estimates,
        num_warmup=warmup,
        batch_size=batch_size,
        threshold=threshold or config.threshold,
        acceptance=config.acceptance,
        num_draws=config.num_draws,
        seed=seed,
    )
    with console(stderr=True).status("measuring") as status:  # shows nothing where there is no terminal
        found = experiment.run(
            meter, estimator, settings, on_stage=lambda name: status.update(f"measuring {name}"), mesh=mesh
        )
    found["point"] = {"data": config.data, "model": config.model, "layers": list(config.layers), **place}
    print_variances(found)
    if out is not None:
        for file in (
            output.write_json(out / "variance.json", found),
            experiment.plot(found, out / "variance.png"),
        ):
            typer.echo(f"wrote {file}", err=True)


def print_variances(found: dict[str, Any]) -> None:
    """Prints a line for each estimator, and how to read it."""
    settings, point = found["settings"], found["point"]
    network = point.get("program") or point["model"] or "-".join(str(width) for width in point["layers"])
    title = f"gradient noise at {settings['num_proposals']} proposals per datapoint: {point['data']}, {network}"
    where = (
        f"{point['parameters']} parameters"
        if point["run"] is None
        else f"{point['run']}, step {point['step']} ({point['parameters']})"
    )
    table = Table(box=box.SIMPLE, pad_edge=False)
    for heading in ("estimator", "bound", "unbiased"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "draws",
        "proposals",
        "ms",
        "variance theta",
        "phi",
        "signal/noise theta",
        "phi",
        "phi, equal time",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in found["estimators"]:
        table.add_row(
            row["estimator"],
            row["bound"],
            "yes" if row["unbiased"] else "no",
            str(row["num_samples"]),
            f"{row['mean_num_proposals']:.1f}",
            f"{1e3 * row['seconds']:.2f}",
            *(
                value_with_error(row[part][name], row[part][f"{name}_standard_error"])
                for name in ("variance", "signal_to_noise")
                for part in ("theta", "phi")
            ),
            value_with_error(
                row["phi"]["signal_to_noise_equal_time"], row["phi"]["signal_to_noise_equal_time_standard_error"]
            ),
        )
    out = console()
    out.print(f"{title}, {where}", soft_wrap=True)  # a title of the table would be broken at its width
    print_table(table)
    for line in (
        f"{found['estimators'][0]['num_estimates']} estimates each, on one batch of {settings['batch_size']}; +-: "
        "standard error. Variance: total over coordinates.",
        f"draws: num_samples, chosen to spend {settings['num_proposals']} proposals; proposals: the mean spent (random "
        f"with rejection, at {settings['threshold']}, acceptance {settings['acceptance']}). Variance and ratio are "
        f"scaled to exactly {settings['num_proposals']}.",
        f"Baselines, controls and thresholds took {settings['num_warmup']} steps before, the parameters held fixed.",
        "ms: one compiled estimate of the batch; equal time: the ratio in the time that the fastest one needs.",
        *([MOVES] if found["support_moves"] else []),
        "Bounds differ, and with them what the gradient is of; the ratio does not depend on the gradient's scale.",
        found["recommendation"],
    ):
        out.print(line, soft_wrap=True)


def value_with_error(value: float | None, error: float | None) -> str:
    """Three digits, and the standard error relative to it; of 0, what it may be at the most."""
    if value is None or error is None:
        return "-"
    if value == error == 0:
        return "0"
    return f"{value:#.3g} +- {error / value:.1%}" if value > 0 else f"< {math.sqrt(2) * error:.1g}"
