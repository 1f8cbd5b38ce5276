r"""Comparison of runs: the same images, the same random numbers, paired differences.

With b_i^r the bound of image i under run r, the difference to the first run is mean_i (b_i^r - b_i^1). Both terms use
the same image and the same key (common random numbers), so what makes an image hard, or a draw lucky, cancels:

    s.e. (images)         sd_i(b_i^r - b_i^1) / sqrt(n)      other test images would move the difference by as much
    s.e. (Monte Carlo)    over repeats, images held fixed    another --seed would move it by as much

The first contains the second, as far as one evaluation can.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from relbo import acceptance as acceptances
from relbo import bounds as bound_names
from relbo import thresholds
from relbo._check import root_key
from relbo.acceptance import AbstractAcceptance, Soft
from relbo.evaluate import FRESH_DRAWS, Estimate, evaluate
from relbo.evaluate import num_draws as draws_of
from relbo.lab.runs import Run
from relbo.thresholds import AbstractThreshold, Quantile

CURVE_FIELDS = ("step", "num_proposals", "seconds", "bound", "valid_bound")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Bounds of several runs on the same images."""

    runs: tuple[Run, ...]
    labels: tuple[str, ...]
    """A short name for each run, no two alike unless the runs are."""
    split: str
    num_images: int
    repeats: int
    estimates: dict[str, tuple[Estimate, ...]]
    """For each bound, one estimate for each run."""

    def difference(self, bound: str, position: int) -> Estimate:
        """Bound of the run at `position` minus that of the first run, image by image."""
        first, other = self.estimates[bound][0], self.estimates[bound][position]
        return Estimate(bound, other.values - first.values)

    def summary(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {
            "split": self.split,
            "num_images": self.num_images,
            "repeats": self.repeats,
            "random_numbers": "common to all runs",
            "runs": [
                {
                    "run": str(run.path),
                    "label": label,
                    "estimator": run.config.estimator,
                    "step": run.step,
                    "num_proposals": run.record["num_proposals"],
                    "seconds": run.record["seconds"],
                    "bounds": [self._bound_summary(bound, position) for bound in self.estimates],
                    "curve": [{name: record.get(name) for name in CURVE_FIELDS} for record in run.metrics],
                }
                for position, (run, label) in enumerate(zip(self.runs, self.labels, strict=True))
            ],
        }

    def _bound_summary(self, bound: str, position: int) -> dict[str, Any]:
        difference = self.difference(bound, position)
        return {
            **self.estimates[bound][position].summary(),
            "difference_to_first": difference.mean,
            "difference_standard_error": difference.standard_error,
            "difference_monte_carlo_error": difference.monte_carlo_error,
        }


def compare_runs(
    runs: Sequence[Run],
    bounds: Sequence[str] = ("is:25",),
    *,
    seed: int = 0,
    split: str = "test",
    limit: int | None = None,
    repeats: int = 2,
    rejection: tuple[AbstractThreshold, AbstractAcceptance] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Comparison:
    """Evaluates runs on the same images with the same random numbers.

    Args:
        runs: opened runs, trained on the same data; differences are to the first.
        bounds: any of `elbo`, `is:K`, `rs:K`.
        seed: randomness of the evaluation, the same for every run.
        split: `train`, `valid` or `test`.
        limit: only the first so many images.
        repeats: independent evaluations, >= 2 for a Monte-Carlo error.
        rejection: threshold and acceptance behind RS; by default each run's own, see `rejection_of`.
        on_progress: called with the number of draws done since the last call.

    Returns:
        A `Comparison`.

    Raises:
        ValueError: for no run, runs on different data, or images without fixed binary values.
    """
    if not runs:
        raise ValueError("compare_runs: expected at least one run, got none.")
    refuse_different_data(runs)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be an integer >= 1, got {limit}.")
    rows = runs[0].data.split(split)[:limit]
    if split == "train" and runs[0].data.kind == "gray":
        raise ValueError("the gray training images have no fixed binary values: compare on valid or test.")
    names = list(dict.fromkeys(str(bound_names.parse(bound)) for bound in bounds))
    estimates: dict[str, list[Estimate]] = {name: [] for name in names}
    for run in runs:
        threshold, acceptance = rejection or rejection_of(run)
        found = evaluate(
            run.pair,
            rows,
            names,
            key=root_key(seed),
            repeats=repeats,
            threshold=threshold,
            acceptance=acceptance,
            on_progress=on_progress,
        )
        for name in names:
            estimates[name].append(found[name])
    return Comparison(
        runs=tuple(runs),
        labels=labels_of(runs),
        split=split,
        num_images=len(rows),
        repeats=repeats,
        estimates={name: tuple(values) for name, values in estimates.items()},
    )


def num_draws(bounds: Sequence[str], num_images: int, repeats: int, num_runs: int) -> int:
    """Draws that `compare_runs` reports to `on_progress` in all, apart from those of IS at matched cost beside RS."""
    return draws_of(list(set(bounds)), repeats) * num_images * num_runs


def refuse_different_data(runs: Sequence[Run]) -> None:
    """Raises `ValueError` unless all runs have data of the same fingerprint."""
    first = runs[0]
    for run in runs[1:]:
        if run.data.fingerprint != first.data.fingerprint:
            raise ValueError(
                f"runs must be on the same data to be compared, got {first.data.name} "
                f"({first.data.fingerprint[:12]}) in {first.path} and {run.data.name} ({run.data.fingerprint[:12]}) "
                f"in {run.path}."
            )


def rejects(run: Run) -> bool:
    """Whether the run's estimator draws from r, by rejection, rather than from q."""
    return isinstance(getattr(run.estimator, "threshold", None), AbstractThreshold)


def rejection_of(run: Run) -> tuple[AbstractThreshold, AbstractAcceptance]:
    """Threshold and acceptance for held-out images: as in training, T from 1,000 fresh draws for each image.

    A run without rejection gets the paper's, `Quantile(0.9)` and `Soft()`: RS needs no training.
    """
    if not rejects(run):
        return Quantile(0.9, FRESH_DRAWS), Soft()
    return thresholds.parse(run.config.threshold, num_draws=FRESH_DRAWS), acceptances.parse(run.config.acceptance)


def labels_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """The folder's name of each run where these differ, else its whole path."""
    names = [run.path.resolve().name for run in runs]
    return tuple(names if len(set(names)) == len(names) else [str(run.path) for run in runs])


def curve(run: Run, x: str, y: str, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Points (x, y) of a run's records that have both; long runs as the means of at most `most` blocks."""
    points = [(record[x], record[y]) for record in run.metrics if record.get(x) is not None and _is_number(record, y)]
    if not points:
        return np.empty(0), np.empty(0)
    blocks = np.array_split(np.asarray(points, float), min(most, len(points)))
    return np.array([block[-1, 0] for block in blocks]), np.array([block[:, 1].mean() for block in blocks])


def _is_number(record: dict[str, Any], name: str) -> bool:
    return isinstance(record.get(name), int | float)


def comparable_curve(runs: Sequence[Run]) -> tuple[str, str]:
    """The field of the records to plot when runs are compared, and what to call it.

    Training bounds of different estimators are bounds of different kinds. The validation bound is the same for all,
    so it is used wherever every run has it.
    """
    kinds = {run.config.valid_bound for run in runs}
    if len(kinds) == 1 and all(len(curve(run, "step", "valid_bound")[0]) > 0 for run in runs):
        return "valid_bound", f"validation bound, {kinds.pop()} (nats)"
    return "bound", "training bound, each estimator's own (nats)"
