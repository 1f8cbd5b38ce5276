import pytest

pytest.importorskip("numpyro")
