import json

import pytest

QUICK = ("--num-simulations", 100, "--num-samples", 9, "--num-draws", 50)


@pytest.mark.slow
def test_a_run(relbo, tiny_runs, tmp_path):
    code, out, err = relbo("calibrate", tiny_runs / "vrs", *QUICK, "--rate", 0.2, "--out", tmp_path)
    assert code == 0 and "calibration.json" in err
    first, *lines, last = out.splitlines()
    assert [line.split()[0] for line in lines] == ["q", "r", "exact"] and "100 simulations" in last
    found = json.loads((tmp_path / "calibration.json").read_text())
    assert list(found["sources"]) == ["q", "r at 0.2", "exact posterior"]
    assert found["point"]["step"] == 8 and found["num_samples"] == 9
    exact = found["sources"]["exact posterior"]
    assert exact["p_value"] > 1e-5 and len(exact["ranks"]["log p(x, z)"]) == 100
    assert (tmp_path / "calibration.png").read_bytes().startswith(b"\x89PNG")


FAILURES = {
    "not a run": (("{runs}/none",), "is not a run of `relbo train`"),
    "unknown parameters": (("{runs}/vrs", "--parameters", "worst"), "best or last"),
    "unwritable": (("{runs}/vrs", "--out", "/dev/null/x"), "--out must be a directory"),
    "rate": (("{runs}/vrs", "--rate", "1.5", *map(str, QUICK)), "rates must be a number in (0, 1), got 1.5"),
}


@pytest.mark.parametrize(("words", "message"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_one_line_and_exit_code_2(relbo, tiny_runs, words, message):
    code, out, err = relbo("calibrate", *(word.format(runs=tiny_runs) for word in words))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1 and err.startswith("relbo: error: ") and message in err


def test_help_has_examples(relbo):
    code, out, _ = relbo("calibrate", "--help")
    assert code == 0 and "Examples" in out and "relbo calibrate runs/vrs" in out
