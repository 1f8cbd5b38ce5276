import os
from pathlib import Path

# before JAX starts: two test workers share two cores
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import pytest

REAL_DATA = os.environ.get("RELBO_DATA")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


@pytest.fixture
def key():
    return jax.random.key(0)


@pytest.fixture
def real_data():
    """The directory with a real data file, from `$RELBO_DATA` or beside the repository; skips where it is absent."""

    def directory(file):
        place = Path(REAL_DATA) if REAL_DATA else Path(__file__).parents[2] / "shared" / "data"
        if not (place / file).is_file():
            pytest.skip(f"needs {file}, which is not in {place}; name its directory with RELBO_DATA")
        return place

    return directory


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    """Neither `$RELBO_DATA` nor the user's cache; returns the empty directory that stands for the cache."""
    cache = tmp_path / "cache"
    monkeypatch.delenv("RELBO_DATA", raising=False)
    monkeypatch.setattr("relbo.data.locate.cache_dir", lambda: cache)
    return cache
