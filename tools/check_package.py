"""Installs a built wheel in a clean environment and runs it from another directory.

python tools/check_package.py dist [--demo]

Checks that the wheel holds the package with `py.typed`, its data and its licence and nothing else, that it imports from
outside the repository, and that the command line answers; with `--demo`, that the whole demonstration runs.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

NEEDED = ("relbo/py.typed", "relbo/data/digits.npz", "relbo/lab/report/style.css", "relbo/calibration/__init__.py")


def contents(wheel: Path) -> list[str]:
    """Files of the wheel, or an exit that says what is wrong with them."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in NEEDED if name not in names]
    foreign = [name for name in names if not name.startswith(("relbo/", "relbo-"))]
    if missing or foreign:
        sys.exit(f"{wheel.name} must hold the package alone, with its data: missing {missing}, foreign {foreign}.")
    return names


def main() -> None:
    """Checks the newest wheel of the folder."""
    folder = Path(sys.argv[1])
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    names = contents(wheel)
    print(
        f"{wheel.name}: {len(names)} files, {wheel.stat().st_size // 1000} kB; sdist {sdist.stat().st_size // 1000} kB"
    )
    with tempfile.TemporaryDirectory() as place:
        venv.create(Path(place) / "env", with_pip=True)
        bin_ = Path(place) / "env" / ("Scripts" if sys.platform == "win32" else "bin")
        install = [bin_ / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel.resolve()]
        subprocess.run(install, check=True)
        say = "import relbo; print(relbo.__version__, relbo.__file__)"
        found = subprocess.run([bin_ / "python", "-c", say], cwd=place, check=True, capture_output=True, text=True)
        if str(Path(place).resolve()) not in str(Path(found.stdout.split()[1]).resolve()):
            sys.exit(f"relbo must be imported from the clean environment, got {found.stdout}.")
        subprocess.run([bin_ / "relbo", "list"], cwd=place, check=True, stdout=subprocess.DEVNULL)
        if "--demo" in sys.argv:
            subprocess.run([bin_ / "relbo", "demo", "--out", "demo"], cwd=place, check=True)
    print("installs in a clean environment and runs")


if __name__ == "__main__":
    main()
