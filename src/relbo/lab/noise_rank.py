"""From measured noise to an order and a sentence: which estimator to take.

Estimators are ranked by the signal-to-noise ratio of the gradient of the proposal (of the model, where the proposal has
no parameters), for the same number of proposals and for the same time. Only those that are unbiased for their bound are
recommended: a biased one may have the best ratio for a gradient that is not that of the bound.
"""

import math
from typing import Any

TELLABLE = 2.0
"""Standard errors of the difference from which on two ratios are told apart."""


def ranked(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with their ratios for equal time, the best for equal proposals first; without a ratio, last."""
    fastest = min(row["seconds"] for row in rows)
    for row in rows:
        for part in ("theta", "phi"):
            found = row[part]
            scale = math.sqrt(row["mean_num_proposals"] / row["num_proposals_scaled_to"] * fastest / row["seconds"])
            for name in ("signal_to_noise", "signal_to_noise_standard_error"):
                value = found[name]
                found[name.replace("noise", "noise_equal_time", 1)] = None if value is None else value * scale
    part = deciding_part(rows)
    return sorted(rows, key=lambda row: -(row[part]["signal_to_noise"] or 0.0))


def deciding_part(rows: list[dict[str, Any]]) -> str:
    """Phi, unless no estimator has any noise there: the proposal has no parameters."""
    return "phi" if any(row["phi"]["variance"] > 0 for row in rows) else "theta"


def recommend(rows: list[dict[str, Any]], budget: int) -> str:
    """One sentence: what to take."""
    part = deciding_part(rows)
    whose = "proposal" if part == "phi" else "model"
    candidates = [row for row in rows if row["unbiased"] and (row[part]["signal_to_noise"] or 0) > 0]
    if not candidates:
        return (
            f"No unbiased estimator shows a signal for the {whose} here: raise --proposals or --estimates, or measure "
            "earlier in training."
        )
    per_proposal = best(candidates, part, "signal_to_noise")
    per_second = best(candidates, part, "signal_to_noise_equal_time")
    first = per_proposal[0]
    ratio = f"signal-to-noise {first[part]['signal_to_noise']:.2g} at {budget} proposals"
    shared = [name for name in names(per_proposal) if name in names(per_second)]
    if shared:
        chosen = shared[0]
        others = [name for name in shared if name != chosen]
        same = f" (as are {both(others)}, within the errors)" if others else ""
        return (
            f"Take {chosen}{same}: of the unbiased estimators it has the least noisy gradient of the {whose}, for the "
            f"same number of proposals and for the same time ({ratio})."
        )
    return (
        f"Take {both(names(per_proposal))} if a draw is what costs you ({ratio}), and {both(names(per_second))} if it "
        f"is time: these have the least noisy gradient of the {whose} among the unbiased estimators."
    )


def best(rows: list[dict[str, Any]], part: str, figure: str) -> list[dict[str, Any]]:
    """The row with the largest figure, and those that cannot be told from it."""
    top = max(rows, key=lambda row: row[part][figure])

    def is_level(row: dict[str, Any]) -> bool:
        error = (
            f"{figure}_standard_error" if figure == "signal_to_noise" else "signal_to_noise_equal_time_standard_error"
        )
        spread = math.hypot(row[part][error], top[part][error])
        return top[part][figure] - row[part][figure] <= TELLABLE * spread

    rest = sorted((row for row in rows if row is not top and is_level(row)), key=lambda row: -row[part][figure])
    return [top, *rest]


def names(rows: list[dict[str, Any]]) -> list[str]:
    """Of the estimators."""
    return [row["estimator"] for row in rows]


def both(words: list[str]) -> str:
    """A, B and C."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
