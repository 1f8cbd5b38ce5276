"""Is my posterior right? Simulation-based calibration of any pair, discrete latents included."""

from relbo.calibration.result import Calibration as Calibration
from relbo.calibration.simulate import calibrate as calibrate
from relbo.calibration.uniformity import Band as Band
from relbo.calibration.uniformity import simultaneous_band as simultaneous_band
from relbo.calibration.uniformity import uniformity_p_value as uniformity_p_value
