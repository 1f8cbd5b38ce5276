"""Estimators: each file one method under the contract of `base.py`."""

from relbo.estimators.base import AbstractEstimator as AbstractEstimator
from relbo.estimators.iwae import IWAE as IWAE
from relbo.estimators.nvil import NVIL as NVIL
from relbo.estimators.reinforce import REINFORCE as REINFORCE
from relbo.estimators.rloo import RLOO as RLOO
from relbo.estimators.rws import RWS as RWS
from relbo.estimators.vimco import VIMCO as VIMCO
from relbo.estimators.vrs import VRS as VRS
from relbo.estimators.vrs_all import VRSAll as VRSAll
from relbo.estimators.vrs_raw import VRSRaw as VRSRaw
from relbo.estimators.vrs_wake import VRSWake as VRSWake
from relbo.estimators.wake_sleep import WakeSleep as WakeSleep

REGISTRY: dict[str, type[AbstractEstimator]] = {
    "reinforce": REINFORCE,
    "rloo": RLOO,
    "nvil": NVIL,
    "iwae": IWAE,
    "vimco": VIMCO,
    "rws": RWS,
    "wake-sleep": WakeSleep,
    "vrs": VRS,
    "vrs-wake": VRSWake,
    "vrs-raw": VRSRaw,
    "vrs-all": VRSAll,
}
"""Every estimator by the name that the command line uses."""
