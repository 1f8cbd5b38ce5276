"""The README's Python runs as it stands, in a fresh interpreter with JAX's own defaults, as a reader would run it."""

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
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    bound, rate = re.search(r"R-ELBO (\S+) nats at an acceptance rate of (\S+)", done.stdout).groups()
    # 16 fair coins are worth -11.09 nats; a batch of 50 rows strays by a few tenths
    assert -11.5 < float(bound) < -8
    assert 0.35 < float(rate) < 0.65


def test_links_and_pictures_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert target.startswith("http") or (README.parent / target).exists(), target
