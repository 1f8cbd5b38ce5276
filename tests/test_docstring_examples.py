"""Every public name has an example in its docstring, and the examples do what they say."""

import doctest
import importlib
import sys
from pathlib import Path

import jax
import pytest

EXTENSIONS = Path(__file__).parents[1] / "docs" / "_ext"
MODULES = ("relbo.estimators", "relbo.thresholds", "relbo.bounds", "relbo.acceptance")
FAST = {"binary_states", "tuples", "leave_one_out", "parse", "Hard", "Needs", "Tally", "uniformity_p_value", "Band"}
"""Run in the fast suite: they compile nothing."""


def public():
    sys.path.insert(0, str(EXTENSIONS))
    try:
        api_pages = importlib.import_module("api_pages")
    finally:
        sys.path.remove(str(EXTENSIONS))
    found = {}
    for module in ("relbo", *MODULES, *api_pages.MODULES):
        for value in api_pages.public_names(module).values():
            found[f"{value.__module__}.{value.__name__}"] = value
    return found


PUBLIC = public()


def test_every_public_name_has_an_example():
    assert len(PUBLIC) > 100
    assert not [name for name, value in PUBLIC.items() if ">>>" not in (value.__doc__ or "")]


def marks(name):
    return [] if name.rpartition(".")[2] in FAST else pytest.mark.slow


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in PUBLIC])
def test_examples(name):
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        spec = importlib.util.spec_from_file_location("standing_names", EXTENSIONS / "standing_names.py")
        standing = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(standing)
        value = PUBLIC[name]
        module = sys.modules[value.__module__]
        names = {k: getattr(standing, k) for k in standing.__all__}
        importlib.import_module("relbo.models.toy")
        test = doctest.DocTestParser().get_doctest(value.__doc__, {**vars(module), **names}, name, None, 0)
        assert test.examples
        report = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(test, out=report.append)
        assert runner.summarize(verbose=False).failed == 0, "".join(report)
