"""Estimators: each file one method under the contract of `base.py`."""

from relbo.estimators.arm import ARM as ARM
from relbo.estimators.base import AbstractEstimator as AbstractEstimator
from relbo.estimators.base import check_num_samples as check_num_samples
from relbo.estimators.base import plain_info as plain_info
from relbo.estimators.base import remember_nothing as remember_nothing
from relbo.estimators.concrete import Concrete as Concrete
from relbo.estimators.disarm import DisARM as DisARM
from relbo.estimators.dreg import DReG as DReG
from relbo.estimators.iwae import IWAE as IWAE
from relbo.estimators.muprop import MuProp as MuProp
from relbo.estimators.nvil import NVIL as NVIL
from relbo.estimators.path import AbstractPathEstimator as AbstractPathEstimator
from relbo.estimators.pathwise import Pathwise as Pathwise
from relbo.estimators.rebar import REBAR as REBAR
from relbo.estimators.records import Parts as Parts
from relbo.estimators.records import Tally as Tally
from relbo.estimators.records import VRSInfo as VRSInfo
from relbo.estimators.records import VRSState as VRSState
from relbo.estimators.reinforce import REINFORCE as REINFORCE
from relbo.estimators.relax import RELAX as RELAX
from relbo.estimators.rloo import RLOO as RLOO
from relbo.estimators.rws import RWS as RWS
from relbo.estimators.score import AbstractScoreEstimator as AbstractScoreEstimator
from relbo.estimators.score import draw_from_q as draw_from_q
from relbo.estimators.score import independent_draws as independent_draws
from relbo.estimators.score import leave_one_out as leave_one_out
from relbo.estimators.straight_through import StraightThrough as StraightThrough
from relbo.estimators.vimco import VIMCO as VIMCO
from relbo.estimators.vrs import VRS as VRS
from relbo.estimators.vrs import AbstractVRS as AbstractVRS
from relbo.estimators.vrs_all import VRSAll as VRSAll
from relbo.estimators.vrs_path import VRSPath as VRSPath
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
    "vrs-path": VRSPath,
    "muprop": MuProp,
    "straight-through": StraightThrough,
    "concrete": Concrete,
    "rebar": REBAR,
    "relax": RELAX,
    "arm": ARM,
    "disarm": DisARM,
    "pathwise": Pathwise,
    "dreg": DReG,
}
"""Every estimator by the name that the command line uses."""
