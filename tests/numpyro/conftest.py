import jax
import pytest

pytest.importorskip("numpyro")


@pytest.fixture(autouse=True)
def numpyro_promotes():
    """NumPyro's own code relies on implicit promotion, which the rest of the suite forbids."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
