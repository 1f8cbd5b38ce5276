"""relbo's estimators and its resampled posterior for any NumPyro model and guide.

Supports NumPyro 0.22 and 0.21. Install it with the extra `relbo[numpyro]`.
"""

try:
    import numpyro as _numpyro
except ImportError as error:
    error.add_note("relbo.interop.numpyro needs NumPyro: install it with `pip install 'relbo[numpyro]'`.")
    raise

from relbo.interop.numpyro._losses import RLOO as RLOO
from relbo.interop.numpyro._losses import RWS as RWS
from relbo.interop.numpyro._losses import VIMCO as VIMCO
from relbo.interop.numpyro._losses import ResampledELBO as ResampledELBO
from relbo.interop.numpyro._objective import EstimatorELBO as EstimatorELBO
from relbo.interop.numpyro._resample import Resampled as Resampled
from relbo.interop.numpyro._resample import resample as resample
from relbo.interop.numpyro._svi import SVI as SVI
