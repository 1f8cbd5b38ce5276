"""Rows that run out of proposals, or are left out: from when on to say so, and from when on to stop."""

import logging

from relbo.train.errors import TrainingError

LOGGER = logging.getLogger("relbo")
WORTH_A_WARNING = 0.01
"""Share of rows that run out above which the user is told."""
TOO_LONG = 1_000
"""Steps in which most rows run out after which training stops."""


def starving_message(share: float) -> str:
    """What to tell the user."""
    return (
        f"{share:.1%} of the rows ran out of proposals and took their step at T = +inf, that is, without rejection. "
        "Raise the target rate (or T, or gamma), reject later (warmup), or increase max_rounds."
    )


def left_out_message(num_rows: int, step: int) -> str:
    """What to tell the user of rows that are not valid."""
    return (
        f"{num_rows} rows were left out of the gradient in the steps up to {step}: the model holds draws of theirs to "
        "be impossible, log p = -inf, so their bound is -inf, and the gradient is that of the others alone. Choose a "
        "proposal that stays inside the support of the model, VRS, which rejects such draws, or a bound of several "
        "draws (VIMCO), of which one has to be possible."
    )


def edge_message() -> str:
    """What to tell the user of a run along the path that has seen an impossible proposal."""
    return (
        "log p is -inf at some proposals: p has an edge inside the support of q, where the gradient along the path of "
        "z is biased, so the gradient in phi is that of VRS, by score functions, from here on. A proposal with the "
        "support of p, such as a transformed one, would keep the path."
    )


def watch(share: float, num_steps: int, starved: int, *, warned: bool, all_left_out: bool = False) -> tuple[bool, int]:
    """Warns once when more than 1% of the rows run out, and stops when most do for a thousand steps.

    Args:
        share: mean share of rows that ran out over the latest steps.
        num_steps: how many steps.
        starved: steps before them, without a break, in which most rows ran out.
        warned: whether the user was told before.
        all_left_out: whether no row had a part in the gradient of these steps.

    Returns:
        `warned` and `starved` after these steps.
    """
    if share > WORTH_A_WARNING and not warned:
        LOGGER.warning(starving_message(share))
        warned = True
    starved = starved + num_steps if share > 0.5 or all_left_out else 0
    if starved >= TOO_LONG and all_left_out:
        raise TrainingError(
            f"training stopped because every row was left out for {starved} steps: the model holds their draws to be "
            "impossible, log p = -inf; choose a proposal that draws inside the support of the model."
        )
    if starved >= TOO_LONG:
        raise TrainingError(
            f"training stopped because {share:.0%} of the rows ran out of proposals for {starved} steps: raise the "
            "target rate (or T, or gamma) so that more is accepted, reject later (warmup), or increase max_rounds."
        )
    return warned, starved
