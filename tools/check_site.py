"""Checks a built site offline: every link leads somewhere, and no page loads anything from elsewhere.

python tools/check_site.py out/site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""What a browser fetches by itself; it must be in the site."""
UNLOADED_LINKS = {"canonical", "search", "index", "next", "prev", "author", "copyright"}


class Page(HTMLParser):
    """Anchors and links of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects ids, links and what is loaded."""
        values = dict(attrs)
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        if tag in LOADED and values.get(LOADED[tag]):
            if tag == "link" and set((values.get("rel") or "").split()) & UNLOADED_LINKS:
                return
            self.loaded.append(values[LOADED[tag]])


def pages_of(site: Path) -> list[Path]:
    """All pages; what the theme keeps among its static files is none."""
    return sorted(path for path in site.rglob("*.html") if "_static" not in path.relative_to(site).parts)


def check(site: Path) -> tuple[int, list[str]]:
    """How many links were followed, and what is wrong."""
    pages = {path: Page(path) for path in pages_of(site)}
    followed, faults = 0, []
    for path, page in pages.items():
        where = path.relative_to(site)
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
