import numpy as np
import pytest

from relbo.lab.bench import growth


def test_fits_recover_a_line_and_a_power():
    sizes = np.array([1.0, 2.0, 5.0, 10.0])
    line = growth.fits(sizes, 1.5 + 0.4 * sizes)
    assert (line["fixed"], line["per_unit"]) == pytest.approx((1.5, 0.4))
    assert 0 < line["exponent"] < 1
    assert growth.fits(sizes, 3 * sizes**1.7)["exponent"] == pytest.approx(1.7)


def test_picture(tmp_path):
    sizes = np.array([25.0, 50.0, 100.0])
    curve = {"sizes": sizes.tolist(), "milliseconds": (1 + sizes).tolist(), **growth.fits(sizes, 1 + sizes)}
    found = {"curves": {"batch size": curve, "S": curve}}
    assert growth.plot(found, tmp_path / "growth.png").stat().st_size > 10_000
