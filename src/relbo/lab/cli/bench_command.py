"""`relbo bench`: what a step costs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from relbo.lab.cli.printing import print_table

EXAMPLES = """
Measure the sampler's waste and the training step against its matrix products and other libraries.

Ratios come first: contenders take turns in one run, and medians are compared. PyTorch is measured if it is installed
(`pip install torch==2.13.0`), NumPyro too.

**Examples**

    relbo bench --out out/bench

    relbo bench --layers 200 --rounds 3 --out out/quick

    relbo bench --layers 200-200-200-200 --batch-size 500 --out out/large

    relbo bench --growth --out out/growth

    relbo bench --profile --layers 200 --out out/profile
"""


NETWORKS = ("200", "200-200", "200-200-200")


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("bench", help=EXAMPLES)(bench_command)


def bench_command(
    out: Annotated[Path, typer.Option(help="Directory for `bench.json`; created if it does not exist.")],
    layers: Annotated[list[str] | None, typer.Option(help="Networks to time; repeatable.", show_default=False)] = None,
    batch_size: Annotated[int, typer.Option(min=2, max=2000, help="Images in a step.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each contender.")] = 7,
    steps: Annotated[int, typer.Option(min=1, max=40, help="Steps in one turn.")] = 20,
    growth: Annotated[
        bool, typer.Option("--growth", help="Time against batch, S, layers and acceptance instead; writes a plot.")
    ] = False,
    curve: Annotated[
        list[str] | None,
        typer.Option(help="With --growth: only this curve, such as `N`; repeatable.", show_default=False),
    ] = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Where the time goes, instruction by instruction, instead.")
    ] = False,
) -> None:
    """Measure what a step costs."""
    from relbo._check import require
    from relbo.lab.bench import growth as growing
    from relbo.lab.bench import profile as profiling
    from relbo.lab.bench.run import run
    from relbo.lab.cli.train_command import parse_layers
    from relbo.lab.paper import output

    if curve and not growth:
        raise ValueError("--curve is for --growth, got it alone.")
    if growth and profile:
        raise ValueError("give at most one of --growth and --profile, got both.")
    networks = [parse_layers(text) for text in layers or NETWORKS]
    out = output.output_directory(out)

    def on_stage(stage: str) -> None:
        typer.echo(f"measuring {stage}", err=True)

    if growth:
        names = curve or list(growing.CURVES)
        known = ", ".join(growing.CURVES)
        require(set(names) <= set(growing.CURVES), "--curve", f"one of {known}", names)
        found = growing.run(rounds=rounds, steps=steps, names=names, on_stage=on_stage)
        files = [output.write_json(out / "growth.json", found), growing.plot(found, out / "growth.png")]
        show([growth_table(found)], files)
        return
    if profile:
        profiles = {
            "-".join(map(str, one)): profiling.profile(one, steps=steps, batch_size=batch_size) for one in networks
        }
        show([profile_table(one) for one in profiles.values()], [output.write_json(out / "profile.json", profiles)])
        return
    results = run(layers=networks, rounds=rounds, steps=steps, batch_size=batch_size, on_stage=on_stage)
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
    settings = results["settings"]
    ratios = Table(
        title="Training step of VRS (sampler, gradient, Adam), "
        f"batch {settings['batch_size']}, S = {settings['num_samples']}, N = {settings['num_proposals']}, "
        f"gamma {settings['gamma']}"
    )
    times = Table(title="Milliseconds per step: median (quartiles)")
    for table in (ratios, times):
        table.add_column("")
        for name in networks:
            table.add_column(name, justify="right")

    def row(label: str, pick: Any) -> None:
        ratios.add_row(label, *[pick(network) for network in networks.values()])

    row("step / its matrix products", lambda n: f"{n['step_over_products']:.2f}")
    row("step / roofline", lambda n: f"{n['step_over_roofline']:.2f}")
    row("step / RLOO with as many proposals", lambda n: f"{n['step_over_rloo']:.2f}")
    row("the paper's step (S = N = 5) / its products", lambda n: f"{n['paper_step_over_products']:.2f}")
    labels = sorted({other for n in networks.values() for other in (*n["times_faster_than"], *n["not_measured"])})
    for other in labels:
        row(f"{other} / step", lambda n, o=other: _number(n["times_faster_than"].get(o), n["not_measured"].get(o)))
    for name in next(iter(networks.values()))["following_share_of_time"]:
        row(f"following, {name}: share of time", lambda n, k=name: f"{n['following_share_of_time'][k]:.1%}")
    for draws in next(iter(networks.values()))["refresh_share_of_time"]:
        row(f"refresh, {draws}: share of 10 epochs", lambda n, d=draws: f"{n['refresh_share_of_time'][d]:.1%}")
    row("acceptance", lambda n: f"{n['acceptance']:.3f}")
    row("proposals evaluated per draw", lambda n: f"{n['num_evaluated_per_draw']:.3f}")
    for word in ("is5000", "rs25"):
        row(f"{word}, images per second", lambda n, w=word: f"{n[f'{w}_images_per_second']:.1f}")
        row(f"{word} / its forward products", lambda n, w=word: f"{n[f'{w}_over_products']:.2f}")
    row("compilation, s", lambda n: f"{n['compile_seconds']:.1f}")
    row("scratch memory, MB", lambda n: f"{n['temporary_bytes'] / 1e6:.1f}")
    ratios.caption = f"peak memory of the whole run {results['peak_memory_bytes'] / 1e9:.2f} GB"
    for label in next(iter(networks.values()))["milliseconds_per_step"]:
        cells = [n["milliseconds_per_step"][label] for n in networks.values()]
        times.add_row(label, *[f"{c['median']:.2f} ({c['low']:.2f}-{c['high']:.2f})" for c in cells])
    return [ratios, times]


def profile_table(found: dict[str, Any]) -> Table:
    """Parts of a step."""
    total = sum(part["milliseconds"] for part in found["parts"].values())
    table = Table(
        title=f"{found['network']}, batch {found['batch_size']}: milliseconds of a traced step",
        caption=f"{found['instructions_in_the_loop']} instructions in the loop, {total:.2f} ms in all; following T: "
        + ", ".join(f"{name} {share:.1%}" for name, share in found["following_share_of_time"].items()),
    )
    for heading in ("part", "ms", "of it products", "share", "instructions"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for name, part in found["parts"].items():
        numbers = f"{part['milliseconds']:.3f}", f"{part['products']:.3f}", f"{part['milliseconds'] / total:.1%}"
        table.add_row(name, *numbers, str(part["instructions"]))
    return table


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
    for table in tables:
        print_table(table)
    for file in files:
        typer.echo(f"wrote {file}")


def _number(value: float | None, reason: str | None) -> str:
    return f"{value:.2f}" if value is not None else f"not measured: {reason}"
