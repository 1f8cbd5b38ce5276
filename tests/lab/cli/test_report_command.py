import pytest


def test_a_page_is_written(relbo, tiny_runs, tmp_path):
    out = tmp_path / "new" / "report.html"
    code, said, _ = relbo(
        "report", tiny_runs / "rloo", "--bound", "elbo", "--limit", 4, "--title", "Mine & yours", "--out", out
    )
    assert code == 0 and said == f"wrote {out}\n"
    page = out.read_text(encoding="utf-8")
    assert "<title>Mine &amp; yours</title>" in page and "elbo, test split, 4 images" in page


FAILURES = {
    "no run there": (("{runs}/none", "--out", "{tmp}/report.html"), "none is not a run of `relbo train`"),
    "a folder": (("{runs}/rloo", "--out", "{tmp}"), "--out must be the file to write, got the folder"),
    "unwritable": (("{runs}/rloo", "--out", "/dev/null/report.html"), "/dev/null"),
    "unknown bound": (("{runs}/rloo", "--bound", "x", "--out", "{tmp}/report.html"), "a bound must be elbo"),
    "unknown parameters": (("{runs}/rloo", "--parameters", "x", "--out", "{tmp}/r.html"), "must be best or last"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(relbo, tiny_runs, tmp_path, words, message):
    code, out, err = relbo("report", *(word.format(runs=tiny_runs, tmp=tmp_path) for word in words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("relbo: error: ") and message in err
    assert list(tmp_path.iterdir()) == [], "something was left behind"


def test_help_has_examples(relbo):
    code, out, _ = relbo("report", "--help")
    assert code == 0 and "Examples" in out and "relbo report runs/vrs --out report.html" in out
