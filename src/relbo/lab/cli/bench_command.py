"""`relbo bench`: what a step costs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

EXAMPLES = """
Measure the sampler's waste and the training step against its matrix products and other libraries.

Ratios come first: contenders take turns in one run, and medians are compared. PyTorch is measured if it is installed
(`pip install torch==2.13.0`), NumPyro too.

**Examples**

    relbo bench --out out/bench

    relbo bench --layers 200 --rounds 3 --out out/quick

    relbo bench --growth --out out/growth
"""


NETWORKS = ("200", "200-200", "200-200-200")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", help=EXAMPLES)(bench_command)


def bench_command(
    out: Annotated[Path, typer.Option(help="Directory for `bench.json`; created if it does not exist.")],
    layers: Annotated[list[str] | None, typer.Option(help="Networks to time; repeatable.", show_default=False)] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 7,
    steps: Annotated[int, typer.Option(min=1, max=40, help="Steps in one turn.")] = 20,
    growth: Annotated[
        bool, typer.Option("--growth", help="Time against batch, S, layers and acceptance instead; writes a plot.")
    ] = False,
) -> None:
    """Measure what a step costs."""
    from relbo.lab.bench import growth as growing
    from relbo.lab.bench.run import run
    from relbo.lab.cli.train_command import parse_layers
    from relbo.lab.paper import output

    networks = [parse_layers(text) for text in layers or NETWORKS]
    out = output.output_directory(out)
    console = Console(stderr=True, highlight=False)

    def on_stage(stage: str) -> None:
        console.print(f"measuring {stage}")

    if growth:
        found = growing.run(rounds=rounds, steps=steps, on_stage=on_stage)
        files = [output.write_json(out / "growth.json", found), growing.plot(found, out / "growth.png")]
        show([growth_table(found)], files)
        return
    results = run(layers=networks, rounds=rounds, steps=steps, on_stage=on_stage)
    show([waste_table(results), *step_tables(results)], [output.write_json(out / "bench.json", results)])


def waste_table(results: dict[str, Any]) -> Table:
    """Proposals evaluated for each one needed."""
    table = Table(title="Sampler: proposals evaluated / needed, batch 50, S = 5", caption="target: at most 1.15")
    table.add_column("acceptance rate")
    table.add_column("waste", justify="right")
    for name, value in results["waste"].items():
        table.add_row(name, f"{value:.3f}")
    return table


def step_tables(results: dict[str, Any]) -> list[Table]:
    """Ratios, then times."""
    networks = results["networks"]
    ratios = Table(title="Training step of VRS (sampler, gradient, Adam), batch 50, S = 5, gamma 0.9")
    times = Table(title="Milliseconds per step: median (quartiles)")
    for table in (ratios, times):
        table.add_column("")
        for name in networks:
            table.add_column(name, justify="right")

    def row(label: str, pick: Any) -> None:
        ratios.add_row(label, *[pick(network) for network in networks.values()])

    row("step / its matrix products", lambda n: f"{n['step_over_products']:.2f}")
    row("step / products if nothing were shared", lambda n: f"{n['step_over_unshared_products']:.2f}")
    labels = sorted({other for n in networks.values() for other in (*n["times_faster_than"], *n["not_measured"])})
    for other in labels:
        row(f"{other} / step", lambda n, o=other: _number(n["times_faster_than"].get(o), n["not_measured"].get(o)))
    for draws in ("100 draws", "10 draws"):
        row(f"refresh, {draws}: share of 10 epochs", lambda n, d=draws: f"{n['refresh_share_of_time'][d]:.1%}")
    row("acceptance", lambda n: f"{n['acceptance']:.3f}")
    row("proposals evaluated per draw", lambda n: f"{n['num_evaluated_per_draw']:.3f}")
    row("IS-5000, images per second", lambda n: f"{n['is5000_images_per_second']:.1f}")
    row("compilation, s", lambda n: f"{n['compile_seconds']:.1f}")
    row("scratch memory, MB", lambda n: f"{n['temporary_bytes'] / 1e6:.1f}")
    ratios.caption = f"peak memory of the whole run {results['peak_memory_bytes'] / 1e9:.2f} GB"
    for label in next(iter(networks.values()))["milliseconds_per_step"]:
        cells = [n["milliseconds_per_step"][label] for n in networks.values()]
        times.add_row(label, *[f"{c['median']:.2f} ({c['low']:.2f}-{c['high']:.2f})" for c in cells])
    return [ratios, times]


def growth_table(found: dict[str, Any]) -> Table:
    """Fitted exponents."""
    table = Table(
        title="Time per step ~ size^exponent, or fixed + per unit * size", caption=f"around {found['around']}"
    )
    for heading in ("what grows", "from", "to", "exponent", "fixed, ms", "per unit, ms", "ms, first to last"):
        table.add_column(heading, justify="right")
    for name, curve in found["curves"].items():
        first, last = curve["milliseconds"][0], curve["milliseconds"][-1]
        sizes = curve["sizes"]
        fits = [f"{curve[field]:.3g}" for field in ("exponent", "fixed", "per_unit")]
        table.add_row(name, f"{sizes[0]:.3g}", f"{sizes[-1]:.3g}", *fits, f"{first:.2f} to {last:.2f}")
    return table


def show(tables: list[Table], files: list[Path]) -> None:
    """Prints the tables and where the files are."""
    console = Console()
    for table in tables:
        console.print(table)
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True, highlight=False, markup=False)


def _number(value: float | None, reason: str | None) -> str:
    return f"{value:.2f}" if value is not None else f"not measured: {reason}"
