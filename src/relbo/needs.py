"""What an estimator needs of a pair, and what a pair can do."""

import enum
from typing import Any

from relbo.models.base import AbstractBatchPair, AbstractBernoulliProposal, AbstractReparameterizedProposal
from relbo.types import AnyPair, Pair


class Needs(enum.Enum):
    """What an estimator needs of a proposal.

    Example:
        >>> relbo.REBAR.needs is relbo.Needs.BITS, relbo.VRS.needs is relbo.Needs.DRAWS
        (True, True)
    """

    DRAWS = "any proposal"
    PATH = "reparameterised z"
    BITS = "Bernoulli layers"


def offers(pair: AnyPair) -> set[Needs]:
    """What a pair can do."""
    if isinstance(pair, AbstractBatchPair):
        return {Needs.DRAWS, Needs.PATH} if pair.has_path else {Needs.DRAWS}
    kinds = {Needs.PATH: AbstractReparameterizedProposal, Needs.BITS: AbstractBernoulliProposal}
    return {Needs.DRAWS} | {need for need, kind in kinds.items() if isinstance(pair.proposal, kind)}


def check_needs(estimator: Any, pair: AnyPair) -> None:
    """Refuses a pair that cannot do what the estimator needs."""
    if estimator.needs not in offers(pair):
        has = type(pair.proposal if isinstance(pair, Pair) else pair).__name__
        raise ValueError(
            f"{type(estimator).__name__} needs {estimator.needs.value}, got {has}. Derive the proposal from "
            "AbstractReparameterizedProposal or AbstractBernoulliProposal, or choose an estimator that needs less "
            "(`relbo list` shows what each needs)."
        )


def num_features(pair: AnyPair) -> int:
    """How many numbers `features` makes of one x."""
    return pair.num_features if isinstance(pair, AbstractBatchPair) else pair.model.num_features()
