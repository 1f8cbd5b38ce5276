r"""Thresholds T(x): how much compute each datapoint's posterior is worth.

T enters through u = log p - log q + T, so a larger T accepts more. The T used in a step never depends on that
step's own draws: rows are refreshed from separate draws before the step, or follow the draws after it. T is a
constant under differentiation (docs/errata.md, E15).

- `Fixed`: one number.
- `Quantile`: the paper's heuristic, a quantile of log q - log p that is refreshed now and then.
- `Rate`: a target acceptance rate, followed online at no cost.
"""

from relbo.thresholds.base import AbstractThreshold as AbstractThreshold
from relbo.thresholds.base import solve_where as solve_where
from relbo.thresholds.fixed import Fixed as Fixed
from relbo.thresholds.fixed import FixedState as FixedState
from relbo.thresholds.quantile import Quantile as Quantile
from relbo.thresholds.quantile import QuantileState as QuantileState
from relbo.thresholds.rate import Rate as Rate
from relbo.thresholds.rate import RateState as RateState
from relbo.thresholds.rate import solve_rate as solve_rate
