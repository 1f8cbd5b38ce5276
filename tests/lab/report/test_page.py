import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from relbo.evaluate import Estimate
from relbo.lab.compare import Comparison, compare_runs
from relbo.lab.report import build_page, write_report
from relbo.lab.report.page import POLICY, bounds_section, configuration_section, rejection_section
from relbo.lab.runs import open_run

HOSTILE = """<img src=x onerror=alert(1)> "&' $x$ _run"""
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Collects elements and checks that each one that opens is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(page)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in VOID:
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        self.text.append(data)

    def all(self, name):
        return [attributes for found, attributes in self.elements if found == name]


@pytest.fixture(scope="module")
def comparison(tiny_runs):
    vrs, rloo = (open_run(tiny_runs / name) for name in ("vrs", "rloo"))
    rloo = dataclasses.replace(rloo, path=rloo.path.with_name(HOSTILE))
    return compare_runs([vrs, rloo], ["elbo", "is:3"])


@pytest.fixture(scope="module")
def page(comparison):
    return build_page(comparison, title=HOSTILE, seed=0)


def test_every_section_is_there(page):
    reader = Reader(page)
    sections = [attributes["id"] for attributes in reader.all("section")]
    assert sections == ["bounds", "curves", "rejection", "samples", "reconstructions", "configuration"]
    assert {attributes["href"] for attributes in reader.all("a")} == {f"#{name}" for name in sections}
    plots = [attributes for attributes in reader.all("svg") if attributes.get("role") == "img"]
    assert len(plots) == 9, "2 bounds x 3 axes, acceptance, threshold and age"
    assert len(reader.all("img")) == 2 + 3 + 2, (
        "samples of two runs, images and draws of q and r, images and draws of q"
    )
    assert len(reader.all("table")) == 3


def test_what_users_typed_is_only_text(page):
    reader = Reader(page)
    assert all(attributes.get("src", "").startswith("data:") for attributes in reader.all("img"))
    assert not any("onerror" in attributes for _, attributes in reader.elements)
    assert "".join(reader.text).count(HOSTILE) > 5, "the name is shown as it is"


def test_nothing_is_loaded_from_elsewhere_or_run(page):
    reader = Reader(page)
    assert reader.all("script") == [] and reader.all("link") == []
    for _, attributes in reader.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("data:image/png;base64,", "#")), value
    assert not re.search(r"@import|url\((?!#)", page)
    assert {"http-equiv": "Content-Security-Policy", "content": POLICY} in reader.all("meta")


def test_phones_and_readers_of_the_screen_are_served(page):
    reader = Reader(page)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in reader.all("meta")
    assert "prefers-color-scheme: dark" in page and "currentColor" in page and "#010203" not in page
    assert all(attributes["alt"] for attributes in reader.all("img"))
    assert all(a.get("aria-label") or a.get("aria-hidden") == "true" for a in reader.all("svg"))
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), "ids must be unique on a page"
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page))
    assert {a or b for a, b in used} <= set(ids), "something refers to an id that is not there"


@pytest.mark.slow
def test_bounds_are_those_of_the_comparison(comparison):
    text = "|".join(Reader(bounds_section(comparison)).text)
    for bound in ("elbo", "is:3"):
        assert f"{comparison.estimates[bound][1].mean:.3f}" in text
        assert f"{comparison.difference(bound, 1).mean:+.3f}" in text
        assert f"{comparison.difference(bound, 1).standard_error:.3f}" in text
    assert "160" in text


def test_resampled_bounds_stand_beside_is_at_the_same_cost(comparison):
    extra = {"acceptance_rate": 0.25, "matched_is_samples": 12, "matched_is_mean": -4.5}
    estimates = {"rs:3": tuple(Estimate("rs:3", np.full((2, 12), -4.0), extra) for _ in range(2))}
    section = bounds_section(dataclasses.replace(comparison, estimates=estimates))
    assert "acceptance 0.250; for as many proposals is:12 gives -4.500 nats" in section


def test_a_run_without_rejection_has_no_section_on_it(comparison):
    rloo = comparison.runs[1]
    assert rejection_section([rloo]) is None
    assert configuration_section([rloo], ["rloo"]).count("not used") == 6


def test_a_run_without_records_and_data_without_shape_have_a_page(comparison):
    rloo = comparison.runs[1]
    bare = dataclasses.replace(rloo, metrics=[], data=dataclasses.replace(rloo.data, image_shape=None))
    estimates = {name: values[1:] for name, values in comparison.estimates.items()}
    page = build_page(Comparison((bare,), ("bare",), "test", 12, 2, estimates), title="bare", seed=0)
    reader = Reader(page)
    assert reader.all("svg") == [] and reader.all("img") == []
    assert "difference" not in "".join(
        Reader(bounds_section(Comparison((bare,), ("b",), "test", 12, 2, estimates))).text
    )


def test_an_earlier_file_is_replaced(comparison, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(comparison, path)
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>") and list(tmp_path.iterdir()) == [path]
