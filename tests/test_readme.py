"""The README's Python runs as it stands, in a fresh interpreter with JAX's own defaults, as a reader would run it."""

import os
import pathlib
import re
import subprocess
import sys

README = pathlib.Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_there_is_an_example():
    assert BLOCKS


def test_blocks_run(tmp_path):
    script = tmp_path / "readme.py"
    script.write_text("\n".join(BLOCKS), encoding="utf-8")
    words, env = [sys.executable, "-W", "error", script], {**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    bound = float(re.search(r"is:25 +(\S+) \+-", done.stdout)[1])
    rate = float(re.search(r"acceptance rate +(\S+)", done.stdout)[1])
    after, before = map(float, re.search(r"effective sample size +(\S+), before (\S+)", done.stdout).groups())
    # independent pixels are worth -25.2 nats on these digits, and 20 epochs give some 5 nats more
    assert -22 < bound < -18
    assert 0.08 < rate < 0.12
    assert after > 2 * before  # what rejection is for


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target
