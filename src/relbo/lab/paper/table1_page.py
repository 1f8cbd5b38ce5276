"""Table 1 as text: one sheet for each architecture, how to read it, and where the published numbers are from."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from relbo import bounds as bound_names
from relbo.lab.paper.table1_rows import ARCHITECTURES, ROWS


@dataclasses.dataclass(frozen=True)
class Sheet:
    """The table of one architecture, as text."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]


def sheets(results: dict[str, Any], bounds: Sequence[str], *, only_found: bool = False) -> list[Sheet]:
    """The table, an architecture at a time; with `only_found` without the cells that are not evaluated yet."""
    names = [str(bound_names.parse(bound)) for bound in bounds]
    columns = [("train", "elbo", "nll", "train ELBO")]
    for name in names:
        columns.append(("test", name, "nll", _heading(name)))
        if name.startswith("rs:"):
            columns.append(("test", name, "matched_is_mean", "IS at its cost"))
    made = []
    for arch in ARCHITECTURES:
        chosen = [
            cell
            for cell in results["cells"]
            if cell["architecture"] == arch and not (only_found and cell["evaluation"] is None)
        ]
        if not chosen:
            continue
        rows = []
        for cell in chosen:
            row, found = ROWS[cell["row"]], cell["evaluation"]
            rows.append(
                (
                    cell["row"],
                    row.label,
                    "; ".join(number.text() for number in row.published.get(arch, ())) or "-",
                    *(_number(found, field, split, name) for split, name, field, _ in columns),
                    _number(found, "proposals_per_datapoint"),
                    _number(found, "seconds"),
                )
            )
        layers = "-".join(str(width) for width in chosen[0]["layers"])
        headings = ("row", "method", "published", *(text for *_, text in columns), "proposals", "seconds")
        made.append(Sheet(arch if layers == arch else f"{arch} (ours: {layers})", headings, rows))
    return made


def _heading(name: str) -> str:
    return name.upper().replace(":", "-")


def _number(cell: dict[str, Any] | None, field: str, *place: str) -> str:
    found: Any = cell
    for key in (*place, field):
        found = None if found is None else found.get(key)
    if found is None:
        return "-"
    return f"{-found if field.endswith('mean') else found:.2f}"  # bounds are printed as negative log likelihoods


READING = (
    "Nats, lower is better. Published numbers with their true metric: those of the paper's Table 1, and in brackets "
    "others of the same models. The caption of Table 1 calls all of them test NLL; in fact its 1-sample ELBOs are on "
    "the training images. NLL: a likelihood from many samples, their number not verified.",
    "Ours: 1-sample ELBO on as many training images as there are test images; ELBO, IS-25 and RS-25 on the test "
    "images, parameters by validation. RS with the method's own thresholds, for others the 0.9 quantile; beside it IS "
    "with as many draws as RS proposes. Standard errors are in table1.json. Proposals: per datapoint and step, the "
    "mean, without the draws behind thresholds. Seconds: of training, with those draws.",
    "Methods are as in their files in relbo/estimators. The published MuProp and REBAR of Tucker et al. also had a "
    "baseline network of 100 units, which ours have not, their NVIL no division by the running deviation, and their "
    "Concrete Bernoulli masses at relaxed values in place of the relaxed density.",
)


def footnotes() -> list[str]:
    """Sources and reservations of the published numbers."""
    numbers = [number for row in ROWS.values() for entries in row.published.values() for number in entries]
    sources = dict.fromkeys(f"{n.split} {n.metric}: {n.source}" for n in numbers)
    starred = [f"* {n.number()}: {n.note}." for n in numbers if n.note]
    return ["Sources. " + "; ".join(sources) + ".", *starred]


def markdown(results: dict[str, Any], bounds: Sequence[str]) -> str:
    """The table as a page."""
    parts = [f"# Table 1, preset {results['preset']}", results["note"], *READING]
    for sheet in sheets(results, bounds):
        lines = [sheet.headings, ("---",) * len(sheet.headings), *sheet.rows]
        parts += [f"## {sheet.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
    return "\n\n".join([*parts, *footnotes()]) + "\n"
