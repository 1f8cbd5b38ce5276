"""Pages of source code: their links back to the documentation that lead nowhere are taken out.

Sphinx's viewcode believes that all names of a module are documented under one name of it; here `relbo.bounds` is
also known as `relbo`.
"""

import re
from pathlib import Path

BACK = re.compile(r'<a class="viewcode-back" href="([^"#]*)#([^"]*)">\[docs\]</a>')


def mend(app, exception):
    """After the build: looks every such link up."""
    anchors: dict[Path, str] = {}
    for page in Path(app.outdir, "_modules").rglob("*.html") if exception is None else ():
        text = page.read_text(encoding="utf-8")

        def keep(match, page=page):
            target = (page.parent / match[1]).resolve()
            if target not in anchors:
                anchors[target] = target.read_text(encoding="utf-8") if target.exists() else ""
            return match[0] if f'id="{match[2]}"' in anchors[target] else ""

        mended = BACK.sub(keep, text)
        if mended != text:
            page.write_text(mended, encoding="utf-8")


def setup(app):
    """Listens."""
    app.connect("build-finished", mend)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
