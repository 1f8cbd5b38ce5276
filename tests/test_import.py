"""What `import relbo` does to the program that imports it."""

import subprocess
import sys
from importlib import resources

SCRIPT = """
import logging, sys
absl = logging.getLogger("absl")
before = absl.level
import relbo
heavy = {"orbax", "tensorstore", "rich", "typer", "matplotlib", "pooch", "numpyro", "arviz", "torch", "scipy"}
print(sorted(heavy & set(sys.modules)), [name for name in sys.modules if name.startswith("relbo.lab")])
assert absl.level == before, absl.level
relbo.variance.gradient_noise
"""


def test_importing_is_light_and_silences_nobody():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "[] []\n"), result.stderr


def test_the_package_is_typed():
    assert resources.files("relbo").joinpath("py.typed").is_file()
