r"""Docstrings are written for a reader of the source; this makes them fit for the site.

The house writes `name` for code, formulas in indented blocks, and Google's sections. reStructuredText wants double
backticks, a double colon before a block that is to stay as it is, and takes `*`, `|` and a trailing `_` for markup.
"""

import re

SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples|References|Reference|Note|Attributes):\s*$")
CODE = re.compile(r"(`+)(.+?)\1")
MARKUP = re.compile(r"([\\*|]|(?<=\w)_(?=\W|$))")


def _inline(line: str) -> str:
    """One line of prose: code in double backticks, and nothing else that means anything."""
    out, last = [], 0
    for match in CODE.finditer(line):
        out += [MARKUP.sub(r"\\\1", line[last : match.start()]), f"``{match[2]}``"]
        last = match.end()
    return "".join([*out, MARKUP.sub(r"\\\1", line[last:])])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def convert(lines: list[str]) -> list[str]:
    """The lines of a docstring, ready for napoleon."""
    out: list[str] = []
    section, literal, doctest, previous_blank = "", None, False, True
    for line in lines:
        if not line.strip():
            out.append("")
            previous_blank, doctest = True, False
            continue
        depth = _indent(line)
        if literal is not None and depth < literal:
            literal = None
        if depth == 0:
            section = match[1] if (match := SECTION.match(line)) else ""
        if line.lstrip().startswith(">>>"):
            doctest = True
        if literal is None and not doctest and not section and depth > 0 and previous_blank:
            out += ["::", ""]
            literal = depth
        is_header = bool(SECTION.match(line)) and depth == 0
        out.append(line if literal is not None or doctest or is_header else _inline(line))
        previous_blank = False
    return out


def process(app, what, name, obj, options, lines):
    """Sphinx's event: changes the lines in place."""
    lines[:] = convert(lines)


def shorten(app, what, name, obj, options, signature, returns):
    """Sphinx's event: arrays by the name that everybody knows them by."""

    def short(text):
        return re.sub(r"(jax\.)?jaxlib\._jax\.|jaxtyping\.|collections\.abc\.|typing\.", "", text) if text else text

    return short(signature), short(returns)


def setup(app):
    """Before napoleon, which listens at the usual priority."""
    app.connect("autodoc-process-docstring", process, priority=400)
    app.connect("autodoc-process-signature", shorten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
