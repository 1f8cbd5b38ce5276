"""Results as notebooks and terminals show them: names and figures, one to a line."""

import html
from collections.abc import Mapping


def text_table(figures: Mapping[str, str]) -> str:
    """Aligned lines."""
    return "\n".join(f"{name:24}{value}" for name, value in figures.items())


def html_table(figures: Mapping[str, str]) -> str:
    """A table of two columns."""
    left = 'style="text-align:left"'
    rows = [
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>"
        for name, value in figures.items()
    ]
    return f"<table>{''.join(rows)}</table>"
