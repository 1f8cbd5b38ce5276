"""The pages' Python runs as it stands: all blocks of a page in order, in one namespace."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_ELSEWHERE = {"runs.md"}  # by tests/lab/cli/test_model_option.py, with the commands between its blocks


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


SLOW = {"numpyro.md", "estimators.md"}
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
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in blocks(page):
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, str(page), "exec"), namespace)  # errors name the page's line


def test_the_pages_that_teach_have_code():
    assert {"CONTRIBUTING.md", "estimators.md", "numpyro.md"} <= {page.name for page in WITH_CODE}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target
