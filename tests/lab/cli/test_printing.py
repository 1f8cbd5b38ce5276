"""What is printed is what was meant, whatever the folders are called and the terminal can show."""

import io
import shlex
import sys

import jax
import pytest

from relbo._disk import command
from relbo.lab.cli.app import COMMANDS

TINY = ["--layers", 4, "--estimator", "rloo", "--num-samples", 2, "--epochs", 1, "--batch-size", 64, "--quiet"]
NAME = "-q[/red] p[bold]x :key: *'é"


@pytest.fixture(autouse=True)
def standard_promotion():
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def run(relbo, place, monkeypatch):
    """A run in a folder of a name that no shell and no markup likes."""
    monkeypatch.chdir(place)
    if not (place / NAME).exists():
        code, _, said = relbo("train", *TINY, "--valid-bound", "is:2", f"--out={NAME}")
        assert code == 0, said
        (place / "said").write_text(said)
    return (place / "said").read_text()


def test_a_printed_command_can_be_pasted(relbo, run):
    program, *words = shlex.split(run.partition("Evaluate with: ")[2])
    code, out, said = relbo(*words, "--limit", 5, "--bound", "elbo")
    assert program == "relbo" and code == 0, said
    assert NAME in out


def test_tables_and_messages_show_names_as_they_are(relbo, run):
    code, out, said = relbo("compare", f"./{NAME}", f"./{NAME}", "--bound", "elbo", "--limit", 5)
    assert code == 0 and NAME in out, said
    code, _, said = relbo("evaluate", "no [/red] :key:")
    assert code == 2 and "no [/red] :key: is not a run" in " ".join(said.split())


def test_a_path_is_no_option():
    from pathlib import Path

    assert command("evaluate", Path("-x y")) == "relbo evaluate './-x y'"


def ascii_only(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    return stream


@pytest.mark.parametrize("word", COMMANDS)
def test_help_where_there_is_only_ascii(relbo, monkeypatch, word):
    stream = ascii_only(monkeypatch)
    assert relbo(word, "--help")[0] == 0
    assert word in stream.buffer.getvalue().decode("ascii")


@pytest.mark.parametrize("words", [["list"], ["data", "list"], ["evaluate", f"./{NAME}", "--limit", "5"]])
def test_tables_where_there_is_only_ascii(relbo, run, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "40")
    stream = ascii_only(monkeypatch)
    code, _, said = relbo(*words)
    assert code == 0, said
    assert len(stream.buffer.getvalue()) > 500


@pytest.fixture
def narrow(monkeypatch):
    """A terminal of 40 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["data", "list"],
        ["evaluate", f"./{NAME}", "--limit", "5"],
        ["compare", *2 * [f"./{NAME}"], "--limit", 5],
    ],
)
def test_a_narrow_terminal_cuts_no_table(relbo, run, narrow, words):
    code, out, said = relbo(*words)
    assert code == 0 and len(out) > 500 and "…" not in out, said


@pytest.mark.parametrize("word", COMMANDS)
def test_a_narrow_terminal_cuts_no_help(relbo, narrow, word):
    code, out, _ = relbo(word, "--help")
    assert code == 0 and "…" not in out


@pytest.mark.parametrize("words", [["evaluate", f"./{NAME}"], ["compare", *2 * [f"./{NAME}"]]])
def test_what_was_found_is_shown_though_its_file_cannot_be_written(relbo, run, place, monkeypatch, words):
    def full(path, text):
        raise OSError(f"{path} cannot be written: No space left on device.")

    monkeypatch.setattr("relbo.train.sealed.write_text", full)
    code, out, said = relbo(*words, "--bound", "elbo", "--limit", 5, "--out", place / "new" / "x")
    assert code == 2 and "No space left" in said and "elbo" in out
