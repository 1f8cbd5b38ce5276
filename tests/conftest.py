import gc
import os
import warnings
from importlib.metadata import version
from pathlib import Path

# Before JAX starts. Two test workers share two cores, and the suite compiles far more than it computes: the older
# emitters take a third of the time to compile for a third more to run. XLA stops at flags that it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false"
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * version("jaxlib").startswith("0.10."),
)

import jax
import pytest
import typer

# typer hands commands the base class of the context that it has them ask for, which checked types refuse
typer.Context = typer.Context.__mro__[1]

# Tracing makes many objects that live: Python looks for cycles among them so often that it takes a tenth of the time.
gc.set_threshold(200_000, 20, 100)

REAL_DATA = os.environ.get("RELBO_DATA")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_traceback_filtering", "off")  # an error is as clear with all its frames, and pytest hides most
jax.config.update("jax_traceback_in_locations_limit", 0)  # nobody looks at the lines that a compiled program comes from
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")


LONG = (
    "test_two_processes_are_one_run",
    "test_killed_and_interrupted_runs_go_on",
    "test_blocks_run",
    "test_no_fault_in_a_few_cases",
)
"""Cases that take long by themselves: they come first, so that no worker waits for them at the end."""


def pytest_configure(config):
    """Lets ArviZ note the day of its first import before workers do so, who would write the same file at once."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz  # noqa: F401


def pytest_sessionstart(session):
    """What one worker has compiled serves the other, and the next run."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None):
        from relbo.lab.compiled import keep_compiled

        # out of the environment: processes that tests start would write there in JAX's own way, which breaks entries
        said = os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        keep_compiled(Path(said or Path(__file__).parents[1] / ".pytest_cache" / "xla"), min_seconds=0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.name not in LONG)


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


@pytest.fixture(scope="session")
def tiny_runs(tmp_path_factory):
    """A folder with runs `vrs` and `rloo` of two epochs on the 2x3 images of `tiny.npz`; look, do not touch."""
    import numpy as np

    from relbo.lab.config import RunConfig
    from relbo.lab.runs import train_run

    place = tmp_path_factory.mktemp("runs")
    rows = np.random.default_rng(0).random((60, 6)) < np.array([0.9, 0.1, 0.8, 0.2, 0.7, 0.5])
    np.savez(place / "tiny.npz", train=rows[:40], valid=rows[40:48], test=rows[48:], image_shape=np.array([2, 3]))
    common = {"data": str(place / "tiny.npz"), "layers": (3,), "batch_size": 10, "epochs": 2, "lr": 0.05}
    for name in ("vrs", "rloo"):
        config = RunConfig(estimator=name, num_samples=2, threshold="rate:0.5", num_draws=10, **common)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to integer powers
            train_run(config, place / name, log_every=2)
    return place
