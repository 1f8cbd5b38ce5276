"""The page in a real browser: it loads in silence, shows every plot and picture, and fits the screen."""

import html
import json
import re
import shutil
import subprocess

import matplotlib.image
import pytest

from relbo.lab.compare import compare_runs
from relbo.lab.report import write_report
from relbo.lab.report.page import POLICY
from relbo.lab.runs import open_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
)
WIDEST = 1200
FRAME = """<!DOCTYPE html><html><head><title>nothing</title></head><body style="margin: 0">
<script>addEventListener("message", (event) => (document.title = event.data));</script>
<iframe src="{name}" style="border: 0; width: {width}px; height: 2000px"></iframe></body></html>
"""
"""A screen of any width: a window of Chromium's is never narrower than 500 pixels."""
PROBE = """
<script>
const shown = (e) => e.getBoundingClientRect().width > 100 && e.getBoundingClientRect().height > 20;
addEventListener("load", () => parent.postMessage(JSON.stringify({
  plots: [...document.querySelectorAll("svg[role=img]")].filter(shown).length,
  lines: [...document.querySelectorAll("svg[role=img]")].filter(
    (e) => [...e.querySelectorAll("path[clip-path]")].some((p) => p.getBBox().width > 100)).length,
  pictures: [...document.images].filter((e) => e.complete && e.naturalWidth > 5 && shown(e)).length,
  width: window.innerWidth,
  content: document.documentElement.scrollWidth,
  cut: [...document.querySelectorAll(".scroll")].filter((e) => e.scrollWidth > e.clientWidth).length,
}), "*"));
</script>
"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian package chromium)")


@pytest.fixture(scope="module")
def page(tiny_runs, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    runs = [open_run(tiny_runs / name) for name in ("vrs", "rloo")]
    write_report(compare_runs(runs, ["elbo"]), path)
    return path


@pytest.fixture
def browse(tmp_path):
    def call(page, *flags):
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, page.as_uri()]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended

    return call


def framed(page, width):
    """A page that shows another one, beside it, on a screen of the given width."""
    path = page.with_name(f"{page.stem}-{width}.html")
    path.write_text(FRAME.format(name=page.name, width=width))
    return path


def console(text):
    return [line for line in text.splitlines() if ":CONSOLE" in line]


@pytest.mark.parametrize("width", [390, 1200])
def test_every_plot_is_shown_and_fits(page, browse, tmp_path, width):
    probed = tmp_path / "probed.html"
    text = page.read_text(encoding="utf-8")
    policy = html.escape(POLICY)
    assert policy in text
    text = text.replace(policy, policy + "; script-src 'unsafe-inline'").replace("</body>", PROBE + "</body>")
    probed.write_text(text, encoding="utf-8")
    ended = browse(framed(probed, width), f"--window-size={WIDEST},2000", "--virtual-time-budget=5000", "--dump-dom")
    found = json.loads(html.unescape(re.search(r"<title>(.*?)</title>", ended.stdout)[1]))
    assert console(ended.stderr) == []
    cut = found.pop("cut")  # tables that scroll sideways: a phone has such, a desk has none
    assert (cut == 0) == (width == WIDEST)
    assert found == {"plots": 9, "lines": 9, "pictures": 7, "width": width, "content": width}


@pytest.mark.parametrize("width", [390, 1200])
def test_it_loads_in_silence_and_draws(page, browse, tmp_path, width):
    shot = tmp_path / "shot.png"
    ended = browse(framed(page, width), f"--window-size={WIDEST},2000", f"--screenshot={shot}")
    assert console(ended.stderr) == []
    pixels = matplotlib.image.imread(shot)[:, :width]
    # the blue of the first run's line is on the page
    assert (abs(pixels[:, :, :3] - [0x2F / 255, 0x7F / 255, 0xC1 / 255]).max(axis=2) < 0.05).sum() > 100


def test_an_error_would_be_seen(page, browse, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text(encoding="utf-8").replace("</body>", "<script>x()</script></body>"))
    assert "Content Security Policy" in console(browse(broken, "--dump-dom").stderr)[0]
