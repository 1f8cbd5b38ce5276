"""`relbo calibrate`: are the draws of a run those of its model's posterior?"""

from pathlib import Path
from typing import Any

import typer

from relbo.lab.cli.printing import console

EXAMPLES = """
Check draws from the proposal q of a RUN, and from the resampled posterior r at several acceptance rates, by
simulation-based calibration: the model makes data from known latents, and their ranks among the draws must be uniform.

A p-value below 0.01 says that the draws are not those of the posterior of this model. Sigmoid belief networks of at
most 16 units are also checked with draws from the enumerated posterior, which must pass. With `--out`, also writes
`calibration.json` and `calibration.png`.

**Examples**

    relbo calibrate runs/vrs

    relbo calibrate runs/vrs --rate 0.5 --rate 0.1 --rate 0.02 --num-simulations 1000 --out out/calibration
"""

MOST_BITS = 16
"""Units of a network whose posterior is enumerated."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("calibrate", help=EXAMPLES)(calibrate_command)


def calibrate_command(
    run: Path = typer.Argument(..., help="Run directory."),
    rate: list[float] = typer.Option([0.5, 0.1], help="Acceptance rate at which to draw from r; repeatable."),
    num_simulations: int = typer.Option(500, min=10, help="Data that the model makes; small errors need many."),
    num_samples: int = typer.Option(99, min=2, help="Draws for each of them."),
    num_draws: int = typer.Option(1_000, min=2, help="Plain draws from q behind each threshold."),
    max_rounds: int = typer.Option(1_000, min=1, help="A row gives up after so many times --num-samples proposals."),
    parameters: str = typer.Option("best", help="best (on validation) or last."),
    seed: int = typer.Option(0, help="Randomness."),
    data_dir: Path | None = typer.Option(None, help="Where data files are; else RELBO_DATA, else the user cache."),
    out: Path | None = typer.Option(None, help="Folder for calibration.json and calibration.png."),
) -> None:
    """Calibrate the draws of a run."""
    from relbo._check import root_key
    from relbo.calibration import calibrate
    from relbo.lab.cli.notes import say_notes
    from relbo.lab.paper import output
    from relbo.lab.runs import open_run

    if out is not None:
        output.output_directory(out)
    opened = open_run(run, data_dir=data_dir, which=parameters)
    say_notes([opened])
    with console(stderr=True).status("simulating") as status:  # shows nothing where there is no terminal
        found = calibrate(
            root_key(seed),
            opened.pair,
            rates=rate,
            num_simulations=num_simulations,
            num_samples=num_samples,
            num_draws=num_draws,
            max_rounds=max_rounds,
            support=enumerable(opened.pair),
            on_stage=lambda source: status.update(f"drawing from {source}"),
        )
    typer.echo(found.summary())
    if out is not None:
        about = {"run": str(run), "parameters": parameters, "step": opened.step, "seed": seed}
        written = output.write_json(out / "calibration.json", {"point": about, **as_json(found)})
        for file in (written, output.save(found.figure(), out / "calibration.png")):
            typer.echo(f"wrote {file}", err=True)


def enumerable(pair: Any) -> Any:
    """All states of a small sigmoid belief network; None of anything else."""
    import jax.numpy as jnp
    import numpy as np

    from relbo import exact
    from relbo.models.sbn import SBNProposal

    if not isinstance(pair.proposal, SBNProposal):
        return None
    biases = [conditional.output.bias for conditional in pair.proposal.upward]
    sizes = [bias.size for bias in biases]
    if sum(sizes) > MOST_BITS:
        return None
    bits = exact.binary_states(sum(sizes)).astype(biases[0].dtype)
    return tuple(jnp.split(bits, np.cumsum(sizes)[:-1].tolist(), axis=1))


def as_json(found: Any) -> dict[str, Any]:
    """Ranks and p-values, ready for JSON."""
    return {
        "num_samples": found.num_samples,
        "num_simulations": len(next(iter(found.ranks.values()))),
        "sources": {
            source: {
                "proposals_per_draw": found.proposals_per_draw[source],
                "p_value": found.p_value(source),
                "p_values": found.p_values(source),
                "ranks": {name: column.tolist() for name, column in zip(found.statistics, ranks.T, strict=True)},
            }
            for source, ranks in found.ranks.items()
        },
    }
