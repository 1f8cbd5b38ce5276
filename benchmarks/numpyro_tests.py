"""Does `relbo.numpyro.SVI` do all that NumPyro's does? Runs NumPyro's own tests with it in place.

    python benchmarks/numpyro_tests.py --numpyro PATH

PATH is a checkout of NumPyro's repository at the version that is installed. What fails is run again with NumPyro's own
`SVI`: a test that fails with both is not ours.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = ("test/infer/test_svi.py", "test/infer/test_autoguide.py")


def pytest_configure() -> None:
    """As a pytest plugin: puts relbo's `SVI` in the place of NumPyro's before any test is imported."""
    import numpyro.infer
    import numpyro.infer.svi

    import relbo.numpyro

    numpyro.infer.SVI = numpyro.infer.svi.SVI = relbo.numpyro.SVI


def run(checkout: Path, tests: list[str], *, ours: bool, more: list[str]) -> dict[str, str]:
    """Outcome of each test by its name: passed, skipped or failed."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        plugin = ["-p", Path(__file__).stem] if ours else []
        start = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); "
        start += "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
        words = ["-q", "--junitxml", str(report), "-p", "no:cacheprovider", *plugin, *more, *tests]
        command = [sys.executable, "-c", start, *words]
        subprocess.run(command, cwd=checkout, check=False)
        cases = ElementTree.parse(report).iter("testcase")
        outcomes = {}
        for case in cases:
            kinds = {child.tag for child in case}
            failed = bool(kinds & {"failure", "error"})
            file = case.get("classname", "").replace(".", "/") + ".py"
            outcomes[f"{file}::{case.get('name')}"] = (
                "failed" if failed else "skipped" if "skipped" in kinds else "passed"
            )
        return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numpyro", type=Path, required=True, help="a checkout of NumPyro's repository")
    parser.add_argument("--files", nargs="*", default=list(FILES))
    parser.add_argument("more", nargs="*", help="further arguments of pytest, after --")
    options = parser.parse_args()
    found = run(options.numpyro, options.files, ours=True, more=options.more)
    failed = [name for name, outcome in found.items() if outcome == "failed"]
    theirs = run(options.numpyro, failed, ours=False, more=[]) if failed else {}
    counts = {kind: sum(outcome == kind for outcome in found.values()) for kind in ("passed", "skipped", "failed")}
    print(f"with relbo's SVI: {counts}")
    for name in failed:
        print(f"failed: {name} ({'passes' if theirs.get(name) == 'passed' else 'fails too'} with NumPyro's own SVI)")


if __name__ == "__main__":
    main()
