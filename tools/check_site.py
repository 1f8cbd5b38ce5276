"""Checks a built site offline: every link leads somewhere, and no page loads anything from elsewhere.

Nor may a page show what Sphinx takes for text without a warning: the name of a figure where its picture should be, a
row that a table lost. The entries of the side bar must differ, or nobody knows which is which.

python tools/check_site.py out/site
"""

import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself; it must be in the site."""
UNLOADED_LINKS = {"canonical", "search", "index", "next", "prev", "author", "copyright"}
FIGURE = re.compile(r"<Figure size [^>]*>")
"""What a notebook prints of a figure that it cannot show."""
ROW = re.compile(r"^\s*\| .+ \|.*", flags=re.MULTILINE)
"""A line of a paragraph that was meant as a row of a table."""


class Page(HTMLParser):
    """Anchors and links of one page, its text, that of each paragraph, and of each link of the side bar."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.text = ""
        self.paragraphs: list[str] = []
        self.entries: list[str] = []
        self._is_side_bar = False
        self._begin = {"a": 0, "p": 0}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects ids, links and what is loaded."""
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag == "nav":
            self._is_side_bar = "bd-links" in (values.get("class") or "").split()
        if tag in self._begin:
            self._begin[tag] = len(self.text)
        if tag in LOADED and values.get(LOADED[tag]):
            if tag == "link" and set((values.get("rel") or "").split()) & UNLOADED_LINKS:
                return
            self.loaded.append(values[LOADED[tag]])

    def handle_data(self, data: str) -> None:
        """Collects text."""
        self.text += data

    def handle_endtag(self, tag: str) -> None:
        """Collects what a paragraph or an entry of the side bar says."""
        if tag == "nav":
            self._is_side_bar = False
        if tag == "p":
            self.paragraphs.append(self.text[self._begin["p"] :])
        if tag == "a" and self._is_side_bar:
            self.entries.append(self.text[self._begin["a"] :].strip())


def pages_of(site: Path) -> list[Path]:
    """All pages; what the theme keeps among its static files is none."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts)


def check(site: Path) -> tuple[int, list[str]]:
    """How many links were followed, and what is wrong."""
    pages = {path: Page(path) for path in pages_of(site)}
    entries = Counter(pages[site / "index.html"].entries)  # those of all pages
    followed, faults = 0, [f"the side bar has {n} entries {name!r}" for name, n in entries.items() if n > 1]
    if not entries:
        faults.append("index.html: no side bar was found; the theme may name it anew, then so must this tool")
    for path, page in pages.items():
        where = path.relative_to(site)
        faults += [f"{where}: text instead of a picture: {name}" for name in FIGURE.findall(page.text)]
        faults += [f"{where}: a row of no table: {row}" for text in page.paragraphs for row in ROW.findall(text)]
        for target in page.loaded:
            if urlsplit(target).scheme in ("http", "https") or target.startswith("//"):
                faults.append(f"{where}: loads {target} from elsewhere")
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or target.startswith("//"):
                continue
            followed += 1
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                faults.append(f"{where}: {target} is not there")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                faults.append(f"{where}: {target} has no such place")
    return followed, faults


def main() -> None:
    """Prints what is wrong, and ends with 1 if anything is."""
    site = Path(sys.argv[1]).resolve()
    if not (site / "index.html").is_file():
        sys.exit(f"{site} must be a built site with an index.html; build it with `make docs`.")
    followed, faults = check(site)
    for fault in faults:
        print(fault)
    print(f"{len(pages_of(site))} pages, {followed} links followed, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
