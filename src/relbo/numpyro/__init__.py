"""relbo's estimators and its resampled posterior for any NumPyro model and guide.

Supports NumPyro 0.22 and 0.21. Install it with the extra `relbo[numpyro]`.
"""

try:
    import numpyro as _numpyro
except ImportError as error:
    error.add_note("relbo.numpyro needs NumPyro: install it with `pip install 'relbo[numpyro]'`.")
    raise

from relbo.numpyro.calibrate import calibrate as calibrate
from relbo.numpyro.losses import RLOO as RLOO
from relbo.numpyro.losses import RWS as RWS
from relbo.numpyro.losses import VIMCO as VIMCO
from relbo.numpyro.losses import ResampledELBO as ResampledELBO
from relbo.numpyro.objective import EstimatorELBO as EstimatorELBO
from relbo.numpyro.resample import resample as resample
from relbo.numpyro.svi import SVI as SVI
