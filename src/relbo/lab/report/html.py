"""HTML from Python calls; whatever is not already HTML is escaped."""

import html

Attribute = str | int | bool


class Html(str):
    """Text that is HTML already; every other string is plain text."""


def render(*children: str) -> Html:
    """Joins pieces, escaping those that are plain text."""
    return Html("".join(child if isinstance(child, Html) else html.escape(str(child)) for child in children))


def tag(name: str, /, *children: str, **attributes: Attribute) -> Html:
    """An element; `class_` is the class, other underscores in attribute names stand for hyphens."""
    words = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        words.append(f'{key}="{html.escape(str(value))}"')
    opening = Html(f"<{' '.join(words)}>")
    if name in ("img", "meta", "br"):
        return opening
    return render(opening, *children, Html(f"</{name}>"))


def table(head: list[str], rows: list[list[str]], *, caption: str, numeric: set[int]) -> Html:
    """A table in a box that scrolls sideways when the screen is narrow; the first cell of a row is its heading.

    Args:
        head: headings of the columns.
        rows: cells, row by row.
        caption: what the table shows.
        numeric: columns to be aligned right.
    """

    def kind(column: int) -> str:
        return "number" if column in numeric else "text"

    titles = [tag("th", text, scope="col", class_=kind(i)) for i, text in enumerate(head)]
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row", class_=kind(0)),
            *(tag("td", cell, class_=kind(i)) for i, cell in enumerate(row[1:], start=1)),
        )
        for row in rows
    ]
    content = tag("table", tag("caption", caption), tag("thead", tag("tr", *titles)), tag("tbody", *body))
    # a region that can be focused can be scrolled with the keyboard
    return tag("div", content, class_="scroll", tabindex=0, role="region", aria_label=caption)
