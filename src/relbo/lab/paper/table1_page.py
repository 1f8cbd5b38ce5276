"""Table 1 as text, from the collected JSON alone: sheets for each architecture, and how to read them."""

import dataclasses
from typing import Any

from relbo.lab.paper.table1_figures import drawable, figure_name
from relbo.lab.paper.table1_rows import ARCHITECTURES, CLAIMS, Published

NOTHING = "-"
MISSING = "missing"


@dataclasses.dataclass(frozen=True)
class Sheet:
    """A table, as text."""

    title: str
    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    num_texts: int = 1
    """Columns from the left that hold words, not numbers."""


def sheets(results: dict[str, Any], *, only_found: bool = False) -> dict[str, list[Sheet]]:
    """The tables of each architecture; with `only_found` without the cells that are not evaluated yet."""
    made = {}
    for arch in ARCHITECTURES:
        cells = [cell for cell in results["cells"] if cell["architecture"] == arch]
        if only_found:
            cells = [cell for cell in cells if cell["evaluation"] is not None]
        if cells:
            made[arch] = [
                bounds_sheet(results, arch, cells),
                *differences_sheets(results, arch, cells),
                *seeds_sheets(results, arch),
                *comparison_sheets(results, arch),
            ]
    return made


def summary_sheets(results: dict[str, Any], *, only_found: bool = False) -> list[Sheet]:
    """All methods on all architectures by the longest IS bound, the nearest to a likelihood; none if there is no such.

    A row with several evaluated seeds has their mean and standard deviation.
    """
    name = max((name for name in results["bounds"] if name.startswith("is:")), key=_num_draws, default=None)
    cells = [cell for cell in results["cells"] if cell["evaluation"] is not None or not only_found]
    if name is None or not cells:
        return []
    texts: dict[tuple[str, str], str] = {}
    for cell in sorted(cells, key=lambda cell: (cell["evaluation"] is None, cell["seed"])):
        texts.setdefault((cell["row"], cell["architecture"]), _nll(cell, name) + _seed(cell))
    for group in results["seeds"]:
        if (number := group["test"].get(name)) is not None:
            texts[group["row"], group["architecture"]] = f"{_spread(number)} ({number['num_seeds']} seeds)"
    columns = [arch for arch in ARCHITECTURES if any(arch == cell["architecture"] for cell in cells)]
    labels = {cell["row"]: cell["label"] for cell in cells}
    rows = [(row, label, *(texts.get((row, arch), NOTHING) for arch in columns)) for row, label in labels.items()]
    return [Sheet(f"Test NLL by {heading(name)}", ("row", "method", *columns), rows, num_texts=2)]


def _num_draws(bound: str) -> int:
    return int(bound.partition(":")[2])


def _nll(cell: dict[str, Any], name: str) -> str:
    if cell["evaluation"] is None:
        return _state(cell)
    bound = cell["evaluation"]["test"].get(name)
    return NOTHING if bound is None else f"{bound['nll']:.2f}"


def bounds_sheet(results: dict[str, Any], arch: str, cells: list[dict[str, Any]]) -> Sheet:
    """Every cell: bounds with their errors, and what they cost."""
    columns = [("train", "elbo", "train ELBO")]
    for name in results["bounds"]:
        columns.append(("test", name, heading(name)))
        if name.startswith("rs:"):
            columns.append(("matched", name, "IS at its cost"))
    rows = []
    for cell in cells:
        numbers = [Published(**number) for number in cell["published"]]
        found = cell["evaluation"]
        rows.append(
            (
                cell["row"] + _seed(cell),
                cell["label"],
                "; ".join(number.text() for number in numbers) or NOTHING,
                *(_bound(cell, split, name) for split, name, _ in columns),
                _selected(cell),
                *(MISSING if found is None else _plain(found.get(field)) for field in COSTS),
            )
        )
    layers = "-".join(str(width) for width in cells[0]["layers"])
    title = arch if layers == arch else f"{arch} (ours: {layers})"
    headings = ("row", "method", "published", *(text for *_, text in columns), "validation", *COSTS.values())
    return Sheet(title, headings, rows, num_texts=3)


COSTS = {"proposals_per_datapoint": "proposals", "step": "steps", "cpu_seconds": "CPU seconds"}


def differences_sheets(results: dict[str, Any], arch: str, cells: list[dict[str, Any]]) -> list[Sheet]:
    """Paired differences to the reference of the same seed, if there are any."""
    rows = [
        (cell["row"] + _seed(cell), *(_with_errors(found.get(name)) for name in results["bounds"]))
        for cell in cells
        if (found := cell.get("difference_to_reference")) is not None
    ]
    title = f"{arch}: test NLL minus that of {results['reference']}, image by image"
    return [Sheet(title, ("row", *map(heading, results["bounds"])), rows)] if rows else []


def seeds_sheets(results: dict[str, Any], arch: str) -> list[Sheet]:
    """Means and standard deviations over seeds, if any row has several."""
    rows = []
    for group in results["seeds"]:
        if group["architecture"] != arch:
            continue
        for what, field in (("test NLL", "test"), (f"minus {results['reference']}", "difference_to_reference")):
            numbers = [group[field].get(name) for name in results["bounds"]]
            if any(number is not None for number in numbers):
                rows.append((group["row"], what, _listed(group["seeds"]), *(_spread(number) for number in numbers)))
    headings = ("row", "what", "seeds", *map(heading, results["bounds"]))
    title = f"{arch}: mean and standard deviation over seeds"
    return [Sheet(title, headings, rows, num_texts=3)] if rows else []


def comparison_sheets(results: dict[str, Any], arch: str) -> list[Sheet]:
    """VRS against the others (seed 0) as the paper compares, and by the same bound of the same images."""
    found = {
        cell["row"]: cell["evaluation"]
        for cell in results["cells"]
        if cell["architecture"] == arch and cell["seed"] == 0 and cell["evaluation"] is not None
    }
    unmatched = next((name for name in ("rs:25", "is:25") if name in results["bounds"]), None)
    rows = []
    for pair in results["comparisons"]:
        if pair["architecture"] != arch or pair["seed"] != 0:
            continue
        rows.append(
            (
                pair["row"],
                pair["against"],
                _unmatched(found[pair["row"]], found[pair["against"]], unmatched),
                *(_with_errors(pair["matched"].get(name)) for name in results["bounds"]),
            )
        )
    if not rows:
        return []
    as_paper = f"as the paper: test {heading(unmatched or 'rs:25')} minus train ELBO"
    headings = ("VRS", "against", as_paper, *(f"matched: {heading(name)}" for name in results["bounds"]))
    return [Sheet(f"{arch}: VRS minus others, as the paper compares and matched", headings, rows, num_texts=2)]


def heading(name: str) -> str:
    """A bound as a heading."""
    return name.upper().replace(":", "-")


def _bound(cell: dict[str, Any], split: str, name: str) -> str:
    found = cell["evaluation"]
    if found is None:
        return _state(cell)
    bound = found["test" if split == "matched" else split].get(name)
    if bound is None:
        return NOTHING
    return f"{-bound['matched_is_mean']:.2f}" if split == "matched" else _with_errors(bound)


def _state(cell: dict[str, Any]) -> str:
    progress = cell["progress"]
    return MISSING if progress is None else f"missing, at epoch {progress['epoch']:g} of {cell['epochs']}"


def _selected(cell: dict[str, Any]) -> str:
    # the best validation bound, by which the parameters were chosen
    if not cell["curve"]:
        return NOTHING if cell["evaluation"] is not None else MISSING
    best = max(cell["curve"], key=lambda point: point["valid_bound"])
    return f"{-best['valid_bound']:.2f} (epoch {best['epoch']:g})"


def _with_errors(bound: dict[str, Any] | None) -> str:
    if bound is None:
        return NOTHING
    error, chance = bound["standard_error"], bound["monte_carlo_error"]
    text = f"{bound['nll']:.2f}" if error is None else f"{bound['nll']:.2f} +- {error:.2f}"
    return text if chance is None else f"{text} ({chance:.2f})"


def _plain(number: float | int | None) -> str:
    if number is None:
        return NOTHING
    return str(number) if isinstance(number, int) else f"{number:.2f}"


def _spread(number: dict[str, Any] | None) -> str:
    return NOTHING if number is None else f"{number['mean']:.2f}, sd {number['sd']:.2f}"


def _listed(seeds: list[int]) -> str:
    return ", ".join(str(seed) for seed in seeds)


def _unmatched(vrs: dict[str, Any], other: dict[str, Any], bound: str | None) -> str:
    if bound is None or bound not in vrs["test"] or "elbo" not in other["train"]:
        return NOTHING
    return f"{vrs['test'][bound]['nll'] - other['train']['elbo']['nll']:.2f}"


def reading(results: dict[str, Any]) -> list[str]:
    """How to read the tables."""
    return [
        "Nats, lower is better. Published numbers with their true metric: those of the paper's Table 1, and in "
        "brackets others of the same models. The caption of Table 1 calls all of them test NLL; in fact its 1-sample "
        "ELBOs are on the training images. NLL: a likelihood from many samples, their number not verified.",
        "Ours: 1-sample ELBO on as many training images as there are test images; the other bounds on the test images, "
        "seed 0 unless another is named, parameters by validation; NLL +- standard error over images (Monte-Carlo "
        "error, where the evaluation was repeated). RS with the method's own thresholds, for others the 0.9 quantile; "
        "beside it IS with as many draws as RS proposes. Validation: the best "
        f"{heading(results['valid_bound'])}, by which the parameters were chosen. Proposals: per datapoint and step, "
        "the mean, without the draws behind thresholds. Seconds: of training, with those draws, without compilation "
        "and validation.",
        f"Differences are paired: both cells see the same images and the same random numbers. Below 0 is better than "
        f"{results['reference']}. A standard error over images says nothing about seeds: another seed of the same row "
        "differs by the standard deviation over seeds.",
        "Methods are as in their files in relbo/estimators. The published MuProp and REBAR of Tucker et al. also had a "
        "baseline network of 100 units, which ours have not, their NVIL no division by the running deviation, and "
        "their Concrete Bernoulli masses at relaxed values in place of the relaxed density.",
    ]


def footnotes(results: dict[str, Any]) -> list[str]:
    """Sources and reservations of the published numbers, and what the paper compares with what."""
    numbers = [Published(**number) for cell in results["cells"] if cell["seed"] == 0 for number in cell["published"]]
    sources = dict.fromkeys(f"{n.split} {n.metric}: {n.source}" for n in numbers)
    starred = dict.fromkeys(f"* {n.number()}: {n.note}." for n in numbers if n.note)
    claims = "; ".join(f"{arch}: {claim.text()}" for arch, claim in CLAIMS.items())
    return [
        f"The paper compares different metrics on one and two layers: {claims}.",
        *(["Sources. " + "; ".join(sources) + "."] if sources else []),
        *starred,
    ]


def missing(results: dict[str, Any]) -> str:
    """The sentence that says which cells are not evaluated."""
    lacking = [_name(cell) for cell in results["cells"] if cell["evaluation"] is None]
    total = len(results["cells"])
    if not lacking:
        return f"All {total} cells are evaluated."
    return f"{total - len(lacking)} of {total} cells are evaluated; missing: {', '.join(lacking)}."


def _name(cell: dict[str, Any]) -> str:
    return f"{cell['row']} on {cell['architecture']}{_seed(cell)}"


def _seed(cell: dict[str, Any]) -> str:
    return f", seed {cell['seed']}" if cell["seed"] else ""


def markdown(results: dict[str, Any]) -> str:
    """The table as a page, with the figures of `table1_figures` beside it."""
    parts = [f"# Table 1, preset {results['preset']}", results["note"], missing(results), *reading(results)]
    for sheet in summary_sheets(results):
        parts += [f"## {sheet.title}", _table(sheet)]
    pictures = drawable(results)
    for arch, made in sheets(results).items():
        for position, sheet in enumerate(made):
            parts += [f"##{'#' if position else ''} {sheet.title}", _table(sheet)]
        if arch in pictures:
            what = f"Validation bound against proposals and CPU seconds of training, {arch}"
            parts.append(f"![{what}]({figure_name(arch)})")
    return "\n\n".join([*parts, *footnotes(results)]) + "\n"


def _table(sheet: Sheet) -> str:
    lines = [sheet.headings, ("---",) * len(sheet.headings), *sheet.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
