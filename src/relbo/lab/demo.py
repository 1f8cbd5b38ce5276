"""The demonstration: three estimators for the same number of proposals, and what rejection is for.

VRS, RLOO and VIMCO are trained on the embedded digits. A fourth run trains a network so small that its posterior can be
enumerated; there it is shown how close draws from q and from r are to it, and what they cost.

VRS is trained by the recipe of docs/results.md: 6 proposals for each image, nothing rejected in the first half of the
run, then the 0.7 quantile, for which it draws 20 more per image once. RLOO and VIMCO get 6 draws at every step, so that
all three pay for nearly the same number of proposals in all.

A folder of an earlier demonstration is resumed: finished runs are used as they are, others go on from their last
checkpoint. Nothing in it is ever deleted.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from relbo import exact
from relbo.lab import closeness
from relbo.lab.compare import Comparison, compare_runs, rejection_of
from relbo.lab.config import RunConfig
from relbo.lab.report import write_report
from relbo.lab.report.html import Html, render, table, tag
from relbo.lab.runs import Run, open_run, train_run
from relbo.train.errors import Interrupted as Interrupted
from relbo.train.log import write_json

COMMON = RunConfig(layers=(100,), lr=3e-3, schedule="cosine", epochs=40, valid_bound="is:100", valid_every=4)
CONFIGS = {
    "vrs": dataclasses.replace(
        COMMON,
        estimator="vrs",
        num_samples=2,
        num_proposals=6,
        threshold="quantile:0.7",
        num_draws=20,
        warmup_epochs=20.0,
        refresh_epochs=20.0,
    ),
    "rloo": dataclasses.replace(COMMON, estimator="rloo", num_samples=6),
    "vimco": dataclasses.replace(COMMON, estimator="vimco", num_samples=6),
}
SMALL_NAME = "small"
SMALL = RunConfig(layers=(10,), lr=3e-3, epochs=20, valid_bound="is:25", valid_every=4, estimator="rloo", num_samples=6)
"""The network of 1,024 states."""
NUM_ENUMERATED = 50
"""Test images whose posterior is enumerated."""
BOUNDS = ("elbo", "is:25", "rs:25", "is:1000")
CHECKPOINT_EVERY = 250
"""Steps: a run takes seconds."""
MARKER, REPORT, CLOSENESS = "demo.json", "report.html", "closeness.json"
"""Files of the demonstration beside its run directories."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """What the demonstration found."""

    comparison: Comparison
    report: Path
    threshold_draws: int
    """Draws behind the thresholds of VRS, beyond the proposals counted in its run."""
    closeness: list[dict[str, Any]]
    """Of draws to the exact posterior of the small network, for each cost; see `relbo.lab.closeness`."""


def run(
    out: Path,
    *,
    configs: dict[str, RunConfig] | None = None,
    bounds: Sequence[str] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
    progress: bool = False,
) -> Demo:
    """Trains, evaluates and writes the report, all inside `out`.

    Args:
        out: folder to write to, new or of an earlier demonstration.
        configs: runs by name, the first one with rejection; by default `CONFIGS`.
        bounds: what is evaluated on the test images, by default `BOUNDS`; RS with the first run's thresholds, for all.
        on_stage: told what begins.
        progress: show progress bars.

    Raises:
        ValueError: the folder holds files in the way that are not the demonstration's.
        Interrupted: Ctrl-C.
    """
    configs = CONFIGS if configs is None else configs
    bounds = BOUNDS if bounds is None else bounds
    everything = {**configs, SMALL_NAME: SMALL}
    claim(out, everything)
    for name, config in everything.items():
        on_stage(f"training {name}")
        result = train_run(config, out / name, resume=True, checkpoint_every=CHECKPOINT_EVERY, progress=progress)
        if result.stopped == "interrupted":
            raise Interrupted(result.signal)
    on_stage("evaluating " + ", ".join(bounds))
    runs = [open_run(out / name) for name in configs]
    comparison = compare_runs(runs, bounds, rejection=rejection_of(runs[0]))
    on_stage("enumerating the posterior of the small network")
    close = enumerated_closeness(open_run(out / SMALL_NAME))
    write_json(out / CLOSENESS, {"images": NUM_ENUMERATED, "costs": close})
    on_stage("writing the report")
    write_report(
        comparison,
        out / REPORT,
        title="relbo demo: VRS, RLOO and VIMCO for the same number of proposals",
        more={"Closeness": closeness_section(close)},
    )
    return Demo(comparison, out / REPORT, len(runs[0].data.train) * (runs[0].config.num_draws or 0), close)


def enumerated_closeness(run: Run) -> list[dict[str, Any]]:
    """Of draws from q, r and importance resampling to the exact posterior of test images."""
    (width,) = run.config.layers
    images = jnp.asarray(run.data.test[:NUM_ENUMERATED], jnp.result_type(float))
    return closeness.measure(run.pair, images, (exact.binary_states(width).astype(images.dtype),))


def closeness_section(found: list[dict[str, Any]]) -> Html:
    """The same as a table for the page."""
    rows = [
        [
            f"{row['proposals']}",
            *(f"{row[n][d]:.3f}" for d in ("total_variation", "kl_nats") for n in ("rejection", "resampling")),
        ]
        for row in found
    ]
    head = ["proposals per draw", "variation: r", "importance resampling", "KL: r", "importance resampling"]
    caption = f"distance to the exact posterior, mean over {NUM_ENUMERATED} test images; lower is better"
    return render(
        table(head, rows, caption=caption, numeric=set(range(len(head)))),
        tag("p", CLOSENESS_NOTE, class_="note"),
    )


CLOSENESS_NOTE = (
    "A network of 10 units, whose 1,024 states are enumerated. The first row is q, the proposal as it is. Variation: "
    "total variation distance, from 0 to 1; KL in nats. r rejects at an acceptance rate of one over the proposals; "
    "importance resampling draws as many and chooses one by its weight."
)


def claim(out: Path, configs: dict[str, RunConfig]) -> None:
    """Makes the folder the demonstration's, or refuses it if what it would write is there already."""
    described: dict[str, Any] = {name: json.loads(json.dumps(dataclasses.asdict(c))) for name, c in configs.items()}
    marker = out / MARKER
    if marker.exists():
        try:
            found = json.loads(marker.read_text())
        except json.JSONDecodeError:
            found = None
        if found != {"relbo demo": described}:
            raise ValueError(
                f"{marker} is not that of this demo (another version's, or not relbo's): choose another --out, or "
                f"remove {out} if you do not need it."
            )
        return
    in_the_way = [out / name for name in (*configs, REPORT) if (out / name).exists()]
    if in_the_way:
        raise ValueError(f"{in_the_way[0]} exists and is not from a demo: choose another --out.")
    out.mkdir(parents=True, exist_ok=True)
    write_json(marker, {"relbo demo": described})
