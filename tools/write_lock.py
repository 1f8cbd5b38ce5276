"""Writes the installed versions as `name==version` lines: no address of an index, no path, no hash of a host.

python tools/write_lock.py requirements-dev.lock
"""

import importlib.metadata
import re
import sys
from pathlib import Path

OWN = "relbo"
SKIPPED = {OWN, "pip", "setuptools", "wheel"}
HEADER = """# The versions that the developers use, written by `make lock`.
# Install them with `pip install -r requirements-dev.lock -e . --no-deps` into a fresh environment.
"""


def main() -> None:
    """Writes the file."""
    found = {}
    for distribution in importlib.metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if name not in SKIPPED:
            found[name] = distribution.version.partition("+")[0]
    lines = [f"{name}=={version}" for name, version in sorted(found.items())]
    wrong = [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[A-Za-z0-9.!]+", line)]
    if wrong:
        sys.exit(f"a line of the lock must be name==version, got {wrong[0]!r}.")
    Path(sys.argv[1]).write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{sys.argv[1]}: {len(lines)} packages")


if __name__ == "__main__":
    main()
