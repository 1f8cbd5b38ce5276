"""The oracle: what a case may do, and what it is called when it does something else."""

import collections
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

from tests.fuzz import damage as damages
from tests.fuzz import python_calls
from tests.fuzz.world import RUNS, Outcome, World, contents

SLOW = 60.0
"""Seconds of the processor after which a case counts as hanging; the slowest good ones, which compile, take a few."""
FAULTS = ("traceback", "internal error", "hang", "silent change", "other files changed", "not one sentence")


@dataclasses.dataclass
class Tally:
    """Counts by kind of case and outcome, and the cases that failed."""

    counts: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    failures: list[str] = dataclasses.field(default_factory=list)
    seconds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def add(self, kind: str, verdict: str, case: Any, details: str = "") -> None:
        """Counts one case."""
        self.counts[kind, verdict] += 1
        if verdict in FAULTS:
            self.failures.append(f"{kind}: {verdict}: {case!r}\n    {details[-1500:]}")

    def total(self) -> int:
        """Cases so far."""
        return sum(self.counts.values())


def verdict_of(outcome: Outcome) -> str | None:
    """What is wrong with how a command ended; None if nothing is."""
    if outcome.seconds > SLOW:
        return "hang"
    if "Traceback" in outcome.err or "Traceback" in outcome.out:
        return "traceback"
    if "internal error" in outcome.err:
        return "internal error"
    if outcome.code == 0:
        return None
    # notes, and the stages of long commands, may stand before it
    lines = [line for line in outcome.err.splitlines() if line.strip() and not line.startswith(("relbo: note: ", "["))]
    is_sentence = len(lines) == 1 and lines[0].startswith("relbo: error: ") and len(lines[0]) < 2_000
    return None if is_sentence else "not one sentence"


def read_damaged(world: World, kind: str, case: tuple[str, str, float, damages.Damage], tally: Tally) -> None:
    """Damages one file of a run and reads the run: it must be refused, or give what the whole one gives."""
    name, reader, share, damage = case
    run = world.copy(name)
    file = damages.chosen(run, share, by_size=kind == "bit flips")
    content = damage.of(file.read_bytes())
    file.unlink() if content is None else file.write_bytes(content)
    _judge_reader(world, kind, name, reader, run, (*case, str(file.relative_to(run))), tally)


def read_swapped(world: World, kind: str, case: tuple[str, str, float, float, str], tally: Tally) -> None:
    """Puts a file of the other run, or another file of the same, in the place of one."""
    name, reader, share, other_share, whose = case
    run = world.copy(name)
    file = damages.chosen(run, share, by_size=False)
    other = world.root / RUNS[1 - RUNS.index(name)]
    there = other / file.relative_to(run)
    if whose == "same name" and there.is_file():
        file.write_bytes(there.read_bytes())
    else:
        folder = other if whose == "other run" else run
        file.write_bytes(damages.chosen(folder, other_share, by_size=False).read_bytes())
    _judge_reader(world, kind, name, reader, run, (*case, str(file.relative_to(run))), tally)


def read_forged(world: World, kind: str, case: tuple[str, str, str, Any], tally: Tally) -> None:
    """Changes a value in a sealed file and forges the seal: only how it ends is judged."""
    name, reader, place, value = case
    run = world.copy(name)
    file, key = place.split("/")

    def change(content: dict[str, Any]) -> None:
        content["settings" if file == "config.json" and key != "run" else "identity"] = (
            {**content["settings"], key: value} if file == "config.json" and key != "run" else value
        )

    damages.resealed(run / file, change if file == "config.json" else lambda content: content.update({key: value}))
    outcome = world.reader(reader, run, world.root / RUNS[1 - RUNS.index(name)])
    _finish(world, kind, case, outcome, verdict_of(outcome), tally)


def _judge_reader(world: World, kind: str, name: str, reader: str, run: Path, case: Any, tally: Tally) -> None:
    outcome = world.reader(reader, run, world.root / RUNS[1 - RUNS.index(name)])
    verdict = verdict_of(outcome)
    if verdict is None and outcome.code == 0 and world.comparable(reader, run, outcome) != world.expected[reader, name]:
        verdict = "silent change"
    _finish(world, kind, case, outcome, verdict, tally)


def check_data(world: World, kind: str, case: Any, content: bytes, *, same: bool, tally: Tally) -> None:
    """Checks a data file; if `same`, what is not refused must be what the whole file holds."""
    world.scratch.mkdir(exist_ok=True)
    (world.scratch / "tiny.npz").write_bytes(content)
    outcome = world.command("data", "check", "scratch/tiny.npz")
    verdict = verdict_of(outcome)
    if same and verdict is None and outcome.code == 0 and outcome.out.replace("scratch/", "") != world.fingerprint:
        verdict = "silent change"
    _finish(world, kind, case, outcome, verdict, tally)


def run_line(world: World, kind: str, words: list[str], tally: Tally) -> None:
    """Runs a command line: what is refused must have left nothing."""
    shutil.rmtree(world.scratch, ignore_errors=True)
    outcome = world.command(*words)
    verdict = verdict_of(outcome)
    owned = owned_by(words)
    if outcome.code == 0 and (words[0] != "train" or not world.had(owned)):
        world.restore(owned)
    if verdict is None and outcome.code == 2 and world.scratch.exists() and contents(world.scratch):
        verdict = "other files changed"
    _finish(world, kind, words, outcome, verdict, tally)


def owned_by(words: list[str]) -> str | None:
    """The file or folder that a command was told to write; one that was there is replaced, as the command says."""
    said, left = None, list(words)
    while left:
        word = left.pop(0)
        if word == "--out" and left:
            said = left.pop(0)  # whatever it is: also "--", or the name of another option
        elif word.startswith("--out="):
            said = word.removeprefix("--out=")
    return said


def call_python(world: World, kind: str, case: tuple[str, dict[str, int]], tally: Tally) -> None:
    """Makes a Python call: it must work, or raise one sentence of the kinds that are documented."""
    from relbo.train.errors import TrainingError

    said = {name: python_calls.ODD[number] for name, number in case[1].items()}
    there = set(os.listdir(world.root))
    outcome = Outcome(0, "", "", 0.0)
    verdict = None
    try:
        python_calls.run(*case)
    except (ValueError, OSError, TrainingError) as error:
        text = str(error)
        is_sentence = text.strip() and "\n" not in text and len(text) < 2_000
        verdict = None if is_sentence else "not one sentence"
        outcome = Outcome(2, "", f"{type(error).__name__}: {text}", 0.0)
    except Exception as error:
        verdict = "traceback"
        outcome = Outcome(1, "", f"{type(error).__name__}: {error}", 0.0)
    if isinstance(owned := said.get("out"), str) and owned and owned not in there:
        shutil.rmtree(world.root / owned, ignore_errors=True)
    _finish(world, kind, (case[0], said), outcome, verdict, tally)


def _finish(world: World, kind: str, case: Any, outcome: Outcome, verdict: str | None, tally: Tally) -> None:
    if verdict is None and (changed := world.changed()):
        verdict = "other files changed"
        outcome = outcome._replace(err=f"{outcome.err} {changed}")
        world.before = contents(world.root)
    if verdict is None:
        verdict = "refused" if outcome.code else "same"
    tally.add(kind, verdict, case, outcome.err)
