"""The page: which sections it has and what stands in them."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from relbo._disk import write_text
from relbo.lab.compare import Comparison, rejects
from relbo.lab.report import pictures, plots
from relbo.lab.report.html import Html, render, table, tag
from relbo.lab.runs import Run

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""What the browser may load: nothing but what the page holds itself."""
NUM_SAMPLES, NUM_RECONSTRUCTIONS = 50, 20
COLUMNS = 10

TRACES = {
    "acceptance": "mean acceptance probability",
    "threshold": "mean threshold T (nats)",
    "age": "mean age of thresholds (steps)",
}
"""What a run with rejection records about it."""


def write_report(
    comparison: Comparison,
    path: Path,
    *,
    title: str = "relbo report",
    seed: int = 0,
    more: Mapping[str, Html] | None = None,
) -> None:
    """Writes the page in one piece: readers see the old file or the new one."""
    page = build_page(comparison, title=title, seed=seed, more=more)
    write_text(path, page)


def build_page(comparison: Comparison, *, title: str, seed: int, more: Mapping[str, Html] | None = None) -> str:
    """The whole page.

    Args:
        comparison: runs and their bounds.
        title: its heading.
        seed: randomness of samples and reconstructions.
        more: sections of the caller's own, after the bounds.
    """
    runs, labels = comparison.runs, comparison.labels
    sections = {
        "Bounds": bounds_section(comparison),
        **(more or {}),
        "Curves": curves_section(runs),
        "Rejection": rejection_section(runs),
        "Samples": samples_section(runs, labels, seed),
        "Reconstructions": reconstructions_section(runs, labels, comparison.split, seed),
        "Configuration": configuration_section(runs, labels),
    }
    shown = {name: content for name, content in sections.items() if content is not None}
    links = [tag("li", tag("a", name, href=f"#{name.lower()}")) for name in shown]
    data = runs[0].data
    facts = f"{len(runs)} run{'s' * (len(runs) > 1)} on {data.name}, {len(data.train)} training images."
    body = tag(
        "body",
        tag("header", tag("h1", title), tag("p", facts), tag("nav", tag("ul", *links), aria_label="Sections")),
        tag(
            "main",
            *(tag("section", tag("h2", name), content, id=name.lower()) for name, content in shown.items()),
        ),
    )
    style = resources.files("relbo.lab.report").joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(style)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"


def bounds_section(comparison: Comparison) -> Html:
    """A table of each bound and how the runs differ in it."""
    first = comparison.labels[0]
    head = ["run", "estimator", "nats", "s.e. (images)", "s.e. (Monte Carlo)"]
    several = len(comparison.runs) > 1
    head += [f"difference to {first}", "s.e. (images)", "s.e. (Monte Carlo)"] if several else []
    head += ["proposals", "seconds"]
    tables = []
    for bound, estimates in comparison.estimates.items():
        rows = []
        for position, (run, label) in enumerate(zip(comparison.runs, comparison.labels, strict=True)):
            estimate, difference = estimates[position], comparison.difference(bound, position)
            cells = [label, run.config.estimator]
            cells += [f"{estimate.mean:.3f}", f"{estimate.standard_error:.3f}", f"{estimate.monte_carlo_error:.3f}"]
            if several:
                numbers = (difference.standard_error, difference.monte_carlo_error)
                cells += [f"{difference.mean:+.3f}", *(f"{n:.3f}" for n in numbers)] if position else ["", "", ""]
            cells += [f"{run.record['num_proposals']:,.0f}", f"{run.record['seconds']:.1f}"]
            rows.append(cells)
        caption = f"{bound}, {comparison.split} split, {comparison.num_images} images; higher is better"
        tables.append(table(head, rows, caption=caption, numeric=set(range(2, len(head)))))
        tables.extend(tag("p", note, class_="note") for note in resampling_notes(comparison, bound))
    note = (
        "Lower bounds on log p(x) in nats. The first error is what other images would change, the second what other "
        "random numbers would. Proposals are those of training, without the draws behind thresholds; seconds include "
        "these, but neither compilation nor validation."
    )
    if several:
        note += " All runs see the same images and random numbers, so differences are paired."
    return render(*tables, tag("p", note, class_="note"))


def resampling_notes(comparison: Comparison, bound: str) -> list[str]:
    """For RS: what its draws cost, and what IS gives for as many proposals."""
    notes = []
    for label, estimate in zip(comparison.labels, comparison.estimates[bound], strict=True):
        if "acceptance_rate" in estimate.extra:
            extra = estimate.extra
            notes.append(
                f"{label}: acceptance {extra['acceptance_rate']:.3f}; for as many proposals "
                f"is:{extra['matched_is_samples']} gives {extra['matched_is_mean']:.3f} nats."
            )
    return notes


def curves_section(runs: Sequence[Run]) -> Html:
    """Validation and training bounds against steps, proposals and seconds."""
    kinds = sorted({run.config.valid_bound for run in runs})
    groups = {
        "valid_bound": f"validation bound, {' or '.join(kinds)} (nats)",
        "bound": "training bound, each estimator's own (nats)",
    }
    parts = [plots.legend(runs, "bound")]
    for field, what in groups.items():
        panels = [plots.panel(runs, x, field, what=what, name=f"{field}-{x}") for x in plots.AXES]
        drawn = [panel for panel in panels if panel is not None]
        if drawn:
            parts.append(tag("h3", what[0].upper() + what[1:]))
            parts.append(tag("div", *drawn, class_="grid"))
    note = (
        "The start of a run may lie below the frame. Training bounds of different estimators are bounds of different "
        "kinds (ELBO, k-sample, resampled) and are not to be compared with one another."
    )
    return render(*parts, tag("p", note, class_="note"))


def rejection_section(runs: Sequence[Run]) -> Html | None:
    """Acceptance, thresholds and their ages over time; None where no run rejects."""
    panels = [plots.panel(runs, "step", field, what=what, name=field) for field, what in TRACES.items()]
    drawn = [panel for panel in panels if panel is not None]
    if not drawn:
        return None
    note = (
        "Means over the rows of a batch. A threshold is not drawn while it is infinite, that is, before any rejection."
    )
    return render(
        plots.legend(runs, next(iter(TRACES))), tag("div", *drawn, class_="grid"), tag("p", note, class_="note")
    )


def samples_section(runs: Sequence[Run], labels: Sequence[str], seed: int) -> Html | None:
    """Samples from each model; None where no run has pictures."""
    figures = []
    for run, label in zip(runs, labels, strict=True):
        if (shape := pictures.image_shape(run)) is None:
            continue
        canvas = pictures.tile(pictures.model_samples(run, NUM_SAMPLES, seed), shape, COLUMNS)
        alt = f"{NUM_SAMPLES} samples from the model of {label}, in gray levels, {COLUMNS} to a row"
        figures.append(tag("figure", pictures.png(canvas, alt), tag("figcaption", label)))
    if not figures:
        return None
    note = "E[x | h] with h drawn from the model's prior."
    return render(tag("div", *figures, class_="grid"), tag("p", note, class_="note"))


def reconstructions_section(runs: Sequence[Run], labels: Sequence[str], split: str, seed: int) -> Html | None:
    """Held-out images beside their reconstructions; None where no run has pictures."""
    split = "test" if split == "train" else split
    figures = []
    for run, label in zip(runs, labels, strict=True):
        if (shape := pictures.image_shape(run)) is None:
            continue
        found = pictures.reconstructions(run, NUM_RECONSTRUCTIONS, split, seed)
        kinds = {f"{split} images": found.images, "E[x | h], h ~ q": found.from_q}
        if found.from_r is not None:
            kinds["E[x | h], h ~ r"] = found.from_r
        parts = []
        for what, images in kinds.items():
            canvas = pictures.tile(images, shape, COLUMNS)
            parts += [tag("figcaption", what), pictures.png(canvas, f"{label}: {what}, {len(images)} images")]
        figures.append(tag("div", tag("h3", label), tag("figure", *parts)))
    if not figures:
        return None
    note = "One draw of h for each image."
    if any(rejects(run) and pictures.image_shape(run) for run in runs):
        note += (
            " q and r are drawn from the same stream of proposals: r keeps the first that is accepted, so a "
            "reconstruction that is the same in both is one whose first proposal was accepted."
        )
    return render(tag("div", *figures, class_="grid"), tag("p", note, class_="note"))


def configuration_section(runs: Sequence[Run], labels: Sequence[str]) -> Html:
    """Every setting of every run."""
    rows = [["run directory", *(str(run.path) for run in runs)]]
    rows.append(["step", *(str(run.step) for run in runs)])
    rows.append(["data fingerprint", *(run.data.fingerprint[:12] for run in runs)])
    if any(run.notes for run in runs):
        rows.append(["notes", *(" ".join(run.notes) for run in runs)])
    for field in dataclasses.fields(runs[0].config):
        rows.append([field.name, *(_setting(run, field.name) for run in runs)])
    return table(["setting", *labels], rows, caption="What each run was told", numeric=set())


def _setting(run: Run, name: str) -> str:
    if name in ("threshold", "num_draws", "refresh_epochs", "acceptance") and not rejects(run):
        return "not used"
    if name in (("model", "model_sha256") if run.config.model is None else ("layers", "num_hidden")):
        return "not used"
    value = getattr(run.config, name)
    return value if isinstance(value, str) else json.dumps(value)
