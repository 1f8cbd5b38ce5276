"""relbo: variational inference that buys posterior accuracy with compute."""

from relbo import bounds as bounds
from relbo import data as data
from relbo import estimators as estimators
from relbo import exact as exact
from relbo import rejection as rejection
from relbo._types import Batch as Batch
from relbo._types import Bound as Bound
from relbo._types import Info as Info
from relbo._types import Pair as Pair
from relbo.acceptance import AbstractAcceptance as AbstractAcceptance
from relbo.acceptance import Always as Always
from relbo.acceptance import Hard as Hard
from relbo.acceptance import Soft as Soft
from relbo.estimators import RLOO as RLOO
from relbo.estimators import VIMCO as VIMCO
from relbo.estimators import VRS as VRS
from relbo.estimators import AbstractEstimator as AbstractEstimator
from relbo.evaluate import evaluate as evaluate
from relbo.models.base import AbstractBernoulliProposal as AbstractBernoulliProposal
from relbo.models.base import AbstractModel as AbstractModel
from relbo.models.base import AbstractProposal as AbstractProposal
from relbo.models.sbn import sbn as sbn
from relbo.thresholds import AbstractThreshold as AbstractThreshold
from relbo.thresholds import Fixed as Fixed
from relbo.thresholds import Quantile as Quantile
from relbo.thresholds import Rate as Rate
from relbo.train.fit import FitResult as FitResult
from relbo.train.fit import fit as fit

__version__ = "0.1.0"
