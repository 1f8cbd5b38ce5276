"""`relbo reproduce`: the paper's figures and tables."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from relbo.lab.cli.printing import print_table
from relbo.lab.cli.table1_command import table1_command

Out = Annotated[Path, typer.Option("--out", help="Directory for the results; created if it does not exist.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]


def register(app: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True)
    app.add_typer(group, name="reproduce")

    @group.callback()
    def options() -> None:
        """Reproduce the paper's figures and tables.

        Example: `relbo reproduce figure1 --out out/figure1`
        """

    group.command("figure1")(figure1_command)
    group.command("poisson")(poisson_command)
    group.command("tradeoff")(tradeoff_command)
    group.command("table1")(table1_command)


def figure1_command(
    out: Out,
    draws: Annotated[int, typer.Option(min=100, help="Accepted draws behind each sampled figure.")] = 10_000,
    seed: Seed = 0,
) -> None:
    """Figure 1: T against acceptance rate and KL on a 5 x 5 grid (a reconstructed target).

    Writes `figure1.json` and `figure1.png`.

    **Examples**

    - `relbo reproduce figure1 --out out/figure1`

    - `relbo reproduce figure1 --out out/quick --draws 1000 --seed 7`
    """
    from relbo.lab.paper import figure1 as experiment
    from relbo.lab.paper import output

    out = output.output_directory(out)
    results = experiment.run(num_draws=draws, seed=seed)
    files = [output.write_json(out / "figure1.json", results), experiment.plot(results, out / "figure1.png")]

    table = Table(
        title="Figure 1, on a reconstruction of the paper's target",
        caption=f"{experiment.NOTE} In brackets: standard errors, in units of the last digits.",
    )
    for heading in ("T", "rate\npaper", "\nexact", "\nsampled", "KL, nats\npaper", "\nexact", "\nsampled"):
        table.add_column(heading, justify="right", no_wrap=True)
    for panel in results["panels"]:
        printed, found, sampled = panel["printed"], panel["exact"], panel["sampled"]
        table.add_row(
            str(panel["threshold"]),
            f"{printed['acceptance_rate']:g}",
            f"{found['acceptance_rate']:.4g}",
            with_error(sampled, "acceptance_rate"),
            f"{printed['kl_nats']:g}",
            f"{found['kl_nats']:.4g}",
            with_error(sampled, "kl_nats"),
        )
    show(table, files)


def poisson_command(
    out: Out,
    seeds: Annotated[int, typer.Option(min=1, help="Independent runs of each estimator.")] = 10,
    steps: Annotated[int, typer.Option(min=10, help="SGD steps of each run.")] = 600,
    seed: Seed = 0,
) -> None:
    """Figures 2 to 5: learning a Poisson rate by VRS and by VIMCO.

    Writes `poisson.json` and `poisson-target.png`, `poisson-acceptance.png`, `poisson-vrs.png`, `poisson-vimco.png`.

    **Examples**

    - `relbo reproduce poisson --out out/poisson`

    - `relbo reproduce poisson --out out/quick --seeds 2 --seed 7`
    """
    from relbo.lab.paper import output
    from relbo.lab.paper import poisson as experiment

    out = output.output_directory(out)
    results = experiment.run(seed=seed, num_seeds=seeds, num_steps=steps)
    files = [output.write_json(out / "poisson.json", results), *experiment.plot(results, out)]

    exact, budget = results["exact"], results["budget"]
    worst = max(abs(row["acceptance_rate"] - row["poisson_tail"]) for row in exact["acceptance_check"])
    table = Table(
        title=f"Poisson rate learned from {results['settings']['start_rate']:g}",
        caption=f"Exact maximiser: R-ELBO {exact['r_elbo_maximiser_rate']:.6f}, ELBO "
        f"{exact['elbo_maximiser_rate']:.2f}. VRS: {budget['num_vrs_runs_within_tolerance']} of "
        f"{budget['num_vrs_runs']} runs within {budget['relative_tolerance']:.1%} of it in "
        f"{budget['num_proposals']} proposals. VIMCO ascends another bound, flat near its own maximum. "
        f"Z_R by enumeration equals the Poisson tail to {worst:.0e}.",
    )
    for heading in ("estimator", "seed", f"rate at {budget['num_proposals']}", "settled at", "final rate", "proposals"):
        table.add_column(heading, justify="right")
    for name in ("vrs", "vimco"):
        for found in results[name]:
            settled = found["num_proposals_until_within_tolerance_for_good"]
            table.add_row(
                name,
                str(found["seed"]),
                f"{found['learned_rate_at_budget']:.4f}",
                "-" if settled is None else str(settled),
                f"{found['learned_rate_at_end']:.4f}",
                str(found["num_proposals_at_end"]),
            )
    show(table, files)


def tradeoff_command(out: Out, seed: Seed = 0) -> None:
    """What compute buys: the exact bound against the acceptance rate on a small sigmoid belief network.

    Writes `tradeoff.json` and `tradeoff.png`.

    **Examples**

    - `relbo reproduce tradeoff --out out/tradeoff`

    - `relbo reproduce tradeoff --out out/other --seed 1`
    """
    from relbo.lab.paper import output
    from relbo.lab.paper import tradeoff as experiment

    out = output.output_directory(out)
    results = experiment.run(seed=seed)
    files = [output.write_json(out / "tradeoff.json", results), experiment.plot(results, out / "tradeoff.png")]

    table = Table(title="Exact means over the data", caption=f"log p(x) is {results['log_evidence_nats']:.3f} nats.")
    for heading in ("T", "acceptance rate", "R-ELBO, nats", "KL(r || p), nats"):
        table.add_column(heading, justify="right")
    for point in results["points"][::4]:
        table.add_row(
            f"{float(point['threshold']):g}",
            f"{point['acceptance_rate']:.3f}",
            f"{point['r_elbo_nats']:.3f}",
            f"{point['kl_nats']:.3f}",
        )
    show(table, files)


def with_error(figures: dict[str, Any], name: str) -> str:
    """A sampled figure with its standard error in units of the last digits, 0.5135(25) for 0.5135 +- 0.0025."""
    value, error = figures[name], figures[f"{name}_standard_error"]
    if error == 0:
        return f"{value:g}"
    digits = max(1 - math.floor(math.log10(error)), 0)
    return f"{value:.{digits}f}({round(error * 10**digits)})"


def show(table: Table, files: list[Path]) -> None:
    """Prints the table and where the files are."""
    print_table(table)
    for file in files:
        typer.echo(f"wrote {file}")
