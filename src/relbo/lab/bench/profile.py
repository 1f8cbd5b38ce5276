"""Where the time of a step goes, instruction by instruction, from XLA's own trace of the compiled program.

Every instruction of the trainer's loop is timed while it runs. Its part of the step is the `jax.named_scope` that it
was written in, a fusion's that of its last operation; its kind is a matrix product or not.
"""

import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from relbo.lab.bench.steps import Setting, Step, following, images, network, online, solved, train_step, vrs

SCOPES = {
    "propose": "draws of the first round: random bits, units",
    "score": "log-likelihoods of the first round, and their slopes",
    "pull_back": "gradient of the first round",
    "late_rounds": "late rounds",
    "late_gradient": "gradient of late draws",
    "thresholds": "thresholds: look up and keep",
    "optimizer": "Adam",
    "faults": "checks that all is finite",
}
"""Scopes of the step by their names in the program."""
OTHER = "the rest: batch, accept tests, weights, report"
NUM_LONGEST = 16


class Instruction(NamedTuple):
    """An instruction of the compiled loop."""

    part: str
    is_product: bool
    shape: str


def profile(layers: tuple[int, ...], *, steps: int, batch_size: int = Setting().batch_size) -> dict[str, Any]:
    """Traces steps of VRS with a budget, and of the same with thresholds that are followed online.

    Args:
        layers: the network.
        steps: how many steps are traced.
        batch_size: images in a step.

    Returns:
        What `profile.json` holds: milliseconds per step by part, and of the longest instructions.
    """
    setting, data = Setting(layers, batch_size), images()
    pair = network(setting, data)
    step = train_step(pair, vrs(setting), data, batch_size, solved(pair, setting, data))
    parts, longest = _traced(step, steps)
    shares = {}
    for name, threshold in online(setting).items():
        of_all = _traced(following(pair, setting, threshold, data), steps)[0]
        spent = of_all[SCOPES["thresholds"]]["milliseconds"]
        shares[name] = spent / sum(part["milliseconds"] for part in of_all.values())
    return {
        "network": "-".join(map(str, layers)),
        "batch_size": batch_size,
        "steps": steps,
        "instructions_in_the_loop": num_instructions(step.text),
        "flops": step.flops,
        "bytes": step.bytes_accessed,
        "parts": parts,
        "longest": longest[:NUM_LONGEST],
        "following_share_of_time": shares,
    }


def _traced(step: Step, steps: int) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Milliseconds of a step by part, and instruction by instruction, longest first."""
    step.run(steps)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step.run(steps)
        [found] = Path(folder).glob("**/*.xplane.pb")
        times = instruction_times(jax.profiler.ProfileData.from_file(str(found)))
    known = instructions(step.text)
    parts: dict[str, dict[str, float]] = {}
    longest: list[dict[str, Any]] = []
    for name, (seconds, count) in times.items():
        # loops and branches contain what is timed anyway; what runs but once is not of the loop
        if name not in known or count < steps / 2 and known[name].part == OTHER:
            continue
        what = known[name]
        part = parts.setdefault(what.part, {"milliseconds": 0.0, "products": 0.0, "instructions": 0})
        milliseconds = 1e3 * seconds / steps
        part["milliseconds"] += milliseconds
        part["products"] += milliseconds * what.is_product
        part["instructions"] += 1
        longest.append({"instruction": name, "milliseconds": milliseconds, "part": what.part, "shape": what.shape})
    longest.sort(key=lambda one: -one["milliseconds"])
    return dict(sorted(parts.items(), key=lambda item: -item[1]["milliseconds"])), longest


def instruction_times(trace: Any) -> dict[str, tuple[float, int]]:
    """Seconds and number of runs of every instruction in a trace."""
    seconds: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for plane in trace.planes:
        for line in plane.lines:
            for event in line.events:
                if any(name == "hlo_op" for name, _ in event.stats):
                    seconds[event.name] += 1e-9 * event.duration_ns
                    count[event.name] += 1
    return {name: (seconds[name], count[name]) for name in seconds}


def instructions(text: str) -> dict[str, Instruction]:
    """All instructions of a compiled program that do work of their own, by name."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\s*(?:ROOT )?%(\S+) = (\(?\w+\[[\d,]*\])\S* ([\w-]+)\(", line)
        if match is None or match[3] in ("while", "conditional", "call", "tuple", "get-tuple-element", "parameter"):
            continue
        op_name = re.search(r'op_name="([^"]*)"', line)
        words = re.split(r"[/()]", op_name[1] if op_name else "")
        part = next((SCOPES[word] for word in words if word in SCOPES), OTHER)
        is_product = match[3] == "dot" or ("dot_general" in words[-1:] and "kCustom" in line)
        found[match[1]] = Instruction(part, is_product, match[2].strip("("))
    return found


def num_instructions(text: str) -> int:
    """Instructions in the body of the trainer's loop, the longest computation that is called by a loop."""
    bodies = set(re.findall(r"body=%([\w.-]+)", text))
    sizes = []
    for computation in re.split(r"\n(?=%|ENTRY)", text):
        name = re.match(r"%([\w.-]+)", computation)
        if name and name[1] in bodies:
            sizes.append(len(re.findall(r"^\s+(?:ROOT )?%\S+ = ", computation, re.MULTILINE)))
    return max(sizes)
