import dataclasses

import data_pages as pages
import numpy as np
import pytest

from relbo.data import SOURCES
from relbo.lab.cli import main


@pytest.fixture
def run(no_data, monkeypatch, capsys):
    """Runs the command line; returns (exit code, standard output, standard error)."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return call


def test_list_says_where_each_file_is(run, tmp_path):
    (tmp_path / "mnist_gray.npz").write_bytes(b"")
    code, out, err = run("data", "list", "--data-dir", tmp_path)
    assert (code, err) == (0, "")
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "1297/250/250" in rows["digits"] and "8x8" in rows["digits"] and "in the package" in rows["digits"]
    assert "relbo data fetch binarized-mnist" in rows["binarized-mnist"]
    assert str(tmp_path / "mnist_gray.npz") in rows["mnist"] and "gray" in rows["mnist"]
    assert "by hand" in rows["omniglot28"] and "21911/2434/8115" in rows["omniglot28"]


def test_check_of_a_name(run):
    code, out, err = run("data", "check", "digits")
    assert (code, err) == (0, "")
    assert SOURCES["digits"].fingerprint in out and "0.323258" in out and "25.165" in out
    assert "ok: the content is that of digits" in out


def test_check_of_a_file(run, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, train=np.eye(4), valid=np.zeros((1, 4)), test=np.ones((2, 4), bool))
    code, out, err = run("data", "check", path)
    assert (code, err) == (0, "")
    assert "0.250000" in out and "1.000000" in out and f"ok: {path}" in out


def test_check_of_binarized_mnist_verifies_the_loader(run, real_data, monkeypatch):
    place = real_data("binarized_mnist.npz")
    code, out, err = run("data", "check", "binarized-mnist", "--data-dir", place)
    assert (code, err) == (0, "")
    assert "205.987 / 206.322 / 205.793" in out and "0.130562" in out
    wrong = dataclasses.replace(SOURCES["binarized-mnist"], independent_nats=(205.987, 206.322, 205.700))
    monkeypatch.setitem(SOURCES, "binarized-mnist", wrong)
    code, _, err = run("data", "check", "binarized-mnist", "--data-dir", place)
    assert code == 2 and "must give 205.987 / 206.322 / 205.700 nats per image, got 205.987" in err


def test_fetch_then_check(run, tmp_path, monkeypatch):
    source, served, _ = pages.small_mnist()
    monkeypatch.setitem(SOURCES, "mnist", source)
    with pages.server(served) as (url, _):
        code, out, err = run("data", "fetch", "mnist", "--data-dir", tmp_path, "--url", url)
        assert (code, out) == (0, "") and f"wrote {tmp_path / 'mnist_gray.npz'}" in err
        code, _, err = run("data", "fetch", "mnist", "--data-dir", tmp_path, "--url", url)
        assert code == 0 and "is there and good" in err
        code, _, err = run("data", "fetch", "mnist", "--data-dir", tmp_path, "--url", url, "--force")
        assert code == 0 and "downloading" in err
    code, out, _ = run("data", "check", "mnist", "--data-dir", tmp_path)
    assert code == 0 and "0..255" in out and source.fingerprint in out


def test_convert_then_check(run, tmp_path):
    code, out, err = run("data", "convert", "digits", tmp_path / "rows", "--rows-per-file", "500", "--no-packed")
    assert (code, err) == (0, "") and "1,297 / 250 / 250 rows of 64 pixels" in out
    assert SOURCES["digits"].fingerprint in out and np.load(tmp_path / "rows" / "train-00002.npy").shape == (297, 64)
    code, out, err = run("data", "convert", tmp_path / "rows", tmp_path / "packed")
    assert code == 0 and np.load(tmp_path / "packed" / "train-00000.npy").shape == (1297, 8)
    code, out, err = run("data", "check", tmp_path / "packed")
    assert (code, err) == (0, "")
    assert (
        SOURCES["digits"].fingerprint in out
        and "0.323258" in out
        and "25.165" in out
        and "and every file has its hash" in out
    )
    code, _, err = run("data", "convert", "digits", tmp_path / "rows")
    assert code == 2 and "must be new or empty, got a folder with 'dataset.json' in it" in err
    file = tmp_path / "packed" / "train-00000.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    code, out, err = run("data", "check", tmp_path / "packed")
    assert (code, out) == (2, "") and "train-00000.npy was changed or damaged after it was written" in err


FAILURES = {
    "convert nothing": (("convert", "no/such.npz", "rows"), "no/such.npz does not exist"),
    "convert to rows of none": (("convert", "digits", "rows", "--rows-per-file", "0"), "rows_per_file must be"),
    "unknown name": (("check", "wine"), "data must be one of digits"),
    "missing file": (("check", "mnist"), "mnist_gray.npz (the mnist data) is in none of the places searched"),
    "missing path": (("check", "no/such.npz"), "no/such.npz does not exist"),
    "no page": (("fetch", "omniglot28"), "no public page has it"),
    "unwritable": (("fetch", "mnist", "--data-dir", "/dev/null/x"), "/dev/null"),
    "unreachable": (
        ("fetch", "mnist", "--url", "http://127.0.0.1:1/", "--data-dir", "."),
        "mnist could not be fetched",
    ),
    "bad address": (("fetch", "mnist", "--url", "nowhere", "--data-dir", "."), "mnist could not be fetched"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(run, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("data", *words)
    assert (code, out) == (2, "")
    lines = [line for line in err.splitlines() if not line.startswith("downloading ")]
    assert len(lines) == 1 and lines[0].startswith("relbo: error: ") and message in lines[0]
    assert list(tmp_path.iterdir()) == [], "something was left behind"


@pytest.mark.parametrize("words", [("list",), ("check", "digits"), ("convert", "digits"), ("fetch", "mnist")])
def test_help_has_examples(run, words):
    code, out, _ = run("data", words[0], "--help")
    assert code == 0 and "Examples" in out and f"relbo data {words[0]}" in out
