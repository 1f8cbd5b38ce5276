"""Rows that run out of proposals: from when on to say so, and from when on to stop."""

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


def watch(share: float, num_steps: int, starved: int, *, warned: bool) -> tuple[bool, int]:
    """Warns once when more than 1% of the rows run out, and stops when most do for a thousand steps.

    Args:
        share: mean share of rows that ran out over the latest steps.
        num_steps: how many steps.
        starved: steps before them, without a break, in which most rows ran out.
        warned: whether the user was told before.

    Returns:
        `warned` and `starved` after these steps.
    """
    if share > WORTH_A_WARNING and not warned:
        LOGGER.warning(starving_message(share))
        warned = True
    starved = starved + num_steps if share > 0.5 else 0
    if starved >= TOO_LONG:
        raise TrainingError(
            f"training stopped because {share:.0%} of the rows ran out of proposals for {starved} steps: raise the "
            "target rate (or T, or gamma) so that more is accepted, reject later (warmup), or increase max_rounds."
        )
    return warned, starved
