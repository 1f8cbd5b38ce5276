"""The tutorials run as they stand, and are what the site says they are."""

import re
from pathlib import Path

import jax
import pytest

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(path for path in FOLDER.glob("*.md") if path.name != "index.md")
CELL = re.compile(r"^```\{code-cell\} python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_cells_run(page, tmp_path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    if "IPython" in page.read_text(encoding="utf-8"):
        pytest.importorskip("IPython")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    text, namespace = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    # as a reader has them: JAX's defaults
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for cell in CELL.findall(text):
            line = text[: text.index(cell)].count("\n")
            exec(compile("\n" * line + cell, str(page), "exec"), namespace)
    matplotlib.pyplot.close("all")


def test_every_tutorial_is_listed_and_has_a_picture():
    listed = (FOLDER / "index.md").read_text(encoding="utf-8").split("\n\n")[-1]
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        assert re.search(rf"^{page.stem}$", listed, flags=re.MULTILINE), page.stem
        assert "plt." in text or ".figure()" in text or "Image(" in text
        assert text.startswith("---\nfile_format: mystnb\n") and len(CELL.findall(text)) >= 3
