"""Compiled programs in a directory that processes share: none of them ever reads half of one."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from relbo.lab.compiled import WholeEntries, keep_compiled

# for each directory on standard input: how many programs were found there, and how many were written
PROGRAM = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from relbo.lab.compiled import keep_compiled
seen = []
jax.monitoring.register_event_listener(lambda name, **_: seen.append(name.rpartition("/")[2]))
for line in sys.stdin:
    jax.clear_caches()
    keep_compiled(Path(line.strip()), min_seconds=0.0)
    seen.clear()
    for k in range(3):
        assert abs(jax.jit(lambda x: jnp.sin(x) + k)(0.0) - k) < 1e-6
    print(seen.count("cache_hits"), seen.count("cache_misses"), flush=True)
"""


@pytest.fixture
def ask():
    """Has two processes fill or use a directory at the same moment; returns what each found and wrote."""
    words, pipes = [sys.executable, "-W", "error", "-c", PROGRAM], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    both = [subprocess.Popen(words, **pipes, stderr=subprocess.PIPE, text=True) for _ in range(2)]

    def answers(directory):
        for process in both:
            process.stdin.write(f"{directory}\n")
            process.stdin.flush()
        return [tuple(map(int, process.stdout.readline().split())) for process in both]

    yield answers
    said = [process.communicate(timeout=60)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said  # -W error: so JAX warned of no entry


def test_two_processes_share_a_directory(ask, tmp_path):
    for start in range(4):
        for found, written in ask(tmp_path / str(start)):
            assert found + written >= 3
        programs = len(list((tmp_path / str(start)).iterdir()))
        assert ask(tmp_path / str(start)) == [(programs, 0)] * 2


def test_a_broken_entry_is_compiled_once_more_without_a_word(ask, tmp_path):
    ask(tmp_path)
    entries = sorted(tmp_path.iterdir())
    whole = [entry.read_bytes() for entry in entries]
    for damaged in (lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:10]):
        for entry, content in zip(entries, whole, strict=True):
            entry.write_bytes(damaged(content))
        assert all(written for _, written in ask(tmp_path))
        assert ask(tmp_path) == [(len(entries), 0)] * 2
    assert sorted(tmp_path.iterdir()) == entries  # and nothing lies beside them


def test_a_directory_that_takes_nothing_is_named_once(tmp_path):
    entries = WholeEntries(tmp_path / "gone")
    with pytest.warns(UserWarning, match=r"compiled programs are not kept: .*gone: No such file or directory\."):
        entries.put("key", b"program")
    entries.put("key", b"program")
    assert entries.get("key") is None


def test_what_is_no_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"kept in a directory, got .*/file: File exists\."):
        keep_compiled(tmp_path / "file")
    with pytest.raises(OSError, match=r"got .*/file/below: Not a directory\."):
        keep_compiled(tmp_path / "file" / "below")


def test_a_limit_is_refused(tmp_path):
    jax.config.update("jax_compilation_cache_max_size", 10)
    try:
        with pytest.raises(ValueError, match="unset JAX_COMPILATION_CACHE_MAX_SIZE, got 10"):
            keep_compiled(tmp_path)
    finally:
        jax.config.update("jax_compilation_cache_max_size", -1)


def test_a_jax_that_keeps_programs_in_another_way_is_named(monkeypatch, tmp_path):
    before = Path(jax.config.jax_compilation_cache_dir)
    with monkeypatch.context() as another, pytest.warns(UserWarning, match=r"JAX .* in its own way"):
        another.delattr("jax._src.compilation_cache.get_file_cache")
        keep_compiled(tmp_path)
    keep_compiled(before, min_seconds=0.0)
