r"""Thresholds T(x): how much compute each datapoint's posterior is worth.

T enters through u = log p - log q + T, so a larger T accepts more. The T used in a step never depends on that
step's own draws: rows are refreshed from separate draws before the step, or follow the draws after it. T is a
constant under differentiation (docs/errata.md, E15).

- `Fixed`: one number.
- `Quantile`: the paper's heuristic, a quantile of log q - log p that is refreshed now and then, or followed online.
- `Rate`: a target acceptance rate, followed online at no cost.
- `OnceSettled`: any of them, once the guide has found its place.
"""

from relbo.thresholds.base import AbstractThreshold as AbstractThreshold
from relbo.thresholds.base import Reading as Reading
from relbo.thresholds.base import look_up as look_up
from relbo.thresholds.fixed import Fixed as Fixed
from relbo.thresholds.fixed import FixedState as FixedState
from relbo.thresholds.follow import FollowState as FollowState
from relbo.thresholds.follow import Gains as Gains
from relbo.thresholds.quantile import Quantile as Quantile
from relbo.thresholds.quantile import QuantileState as QuantileState
from relbo.thresholds.rate import Rate as Rate
from relbo.thresholds.rate import solve_rate as solve_rate
from relbo.thresholds.settled import OnceSettled as OnceSettled
from relbo.thresholds.settled import SettledState as SettledState
from relbo.thresholds.words import as_threshold as as_threshold
from relbo.thresholds.words import parse as parse
