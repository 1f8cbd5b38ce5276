import json

import pytest

from relbo.estimators import REGISTRY
from relbo.lab.cli import main


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        captured = capsys.readouterr()
        assert (ended.value.code or 0, captured.err) == (0, "")
        return captured.out

    return call


def bound_of(cls):
    label = cls().bound.label
    return "IS-K" if label.startswith("IS-") else label


def test_table_has_one_whole_line_for_each_estimator(run):
    header, *lines = run("list").splitlines()
    assert header.split() == ["estimator", "class", "bound", "unbiased", "needs", "paper"]
    assert len(lines) == len(REGISTRY)
    for line, (name, cls) in zip(lines, REGISTRY.items(), strict=True):
        assert line.split()[:4] == [name, cls.__name__, bound_of(cls), "yes" if cls.unbiased else "no"]
        assert line.rstrip().endswith(cls.paper)


def test_json(run):
    rows = json.loads(run("list", "--json"))
    assert [row["estimator"] for row in rows] == list(REGISTRY)
    assert rows[0] == {
        "estimator": "reinforce",
        "class": "REINFORCE",
        "bound": "ELBO",
        "unbiased": True,
        "needs": "any proposal",
        "paper": "Williams 1992",
    }
