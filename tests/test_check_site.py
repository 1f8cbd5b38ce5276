"""What the build of the site must not let through; `make docs` runs the tool on all pages."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "check_site.py"
PAGE = '<nav class="bd-links"><a href="#">relbo</a><a href="other.html">{name}</a></nav><table><td>|</td></table>{body}'


@pytest.mark.parametrize(
    "name, body, faults",
    [
        ("Runs", "<p>|x| and log p(x | z)</p><a href='other.html'>relbo</a>", []),
        ("Runs", "<a href='gone.html'>x</a>", ["gone.html is not there"]),
        ("relbo", "", ["the side bar has 2 entries 'relbo'"]),
        ("Runs", "<pre>&lt;Figure size 9x9 with 8 Axes&gt;</pre>", ["text instead of a picture: <Figure size 9x9"]),
        ("Runs", "<p>| <code>.lock</code> | <a href='#'>held</a> |</p>", ["a row of no table: | .lock | held |"]),
        ("Runs", "<p>before\n| a | b |\n</p>", ["a row of no table: | a | b |"]),
    ],
)
def test_faults_are_named(name, body, faults, tmp_path):
    tool = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("check_site", TOOL))
    spec.loader.exec_module(tool)
    (tmp_path / "index.html").write_text(PAGE.format(name=name, body=body))
    (tmp_path / "other.html").write_text("<p>nothing</p>")
    found = tool.check(tmp_path)[1]
    assert len(found) == len(faults) and all(words in fault for words, fault in zip(faults, found, strict=True)), found
