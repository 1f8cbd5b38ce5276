"""The pages' Python runs as it stands: all blocks of a page in order, in one namespace."""

import contextlib
import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
WRITTEN = ("", "start", "howto")  # docs/tutorials: tests/test_tutorials.py; docs/api is made when the site is built
PAGES = [ROOT / "CONTRIBUTING.md", *(page for part in WRITTEN for page in sorted((ROOT / "docs" / part).glob("*.md")))]
RUN_ELSEWHERE = {"runs.md"}  # by tests/lab/cli/test_model_option.py, with the commands between its blocks


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


SLOW = {"numpyro.md", "estimators.md", "five_minutes.md", "own_model.md", "calibrate.md", "several_devices.md"}
WITH_CODE = [page for page in PAGES if blocks(page) and page.name not in RUN_ELSEWHERE]


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW else [], id=page.name) for page in WITH_CODE],
)
def test_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    namespace = {"__name__": "__main__"}
    # a reader has JAX's defaults but for what the page itself changes
    defaults = (jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"))
    in_32_bits = [jax.enable_x64(False)] if page.parent.name in ("start", "howto") else []
    with contextlib.ExitStack() as stack:
        for setting in (*defaults, *in_32_bits):
            stack.enter_context(setting)
        for block in blocks(page):
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, str(page), "exec"), namespace)  # errors name the page's line


def test_the_pages_that_teach_have_code():
    assert {"CONTRIBUTING.md", "estimators.md", "numpyro.md"} <= {page.name for page in WITH_CODE}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        made = "/api/" in target  # from docstrings, when the site is built, which checks these links
        assert made or target.startswith("http") or (page.parent / target).exists(), target
