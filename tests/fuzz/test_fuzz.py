"""A small seeded part of the fuzzer; `make fuzz` runs more of it."""

import subprocess
import sys
from pathlib import Path

import jax

ROOT = Path(__file__).parents[2]


def test_no_fault_in_a_few_cases():
    # in a process of its own: there checked types, which tests turn on, are off, as they are for users
    words = [sys.executable, "-m", "tests.fuzz", "--cases", "40", "--minutes", "3", "--seed", "0"]
    words += ["--cache", jax.config.jax_compilation_cache_dir]
    result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
