"""Estimators: each file one method under the contract of `base.py`."""

from relbo.estimators.base import AbstractEstimator as AbstractEstimator
from relbo.estimators.rloo import RLOO as RLOO
from relbo.estimators.rws import RWS as RWS
from relbo.estimators.vimco import VIMCO as VIMCO
from relbo.estimators.vrs import VRS as VRS

REGISTRY: dict[str, type[AbstractEstimator]] = {
    "rloo": RLOO,
    "rws": RWS,
    "vimco": VIMCO,
    "vrs": VRS,
}
"""Every estimator by the name that the command line uses."""
