"""Formulas as MathML, which browsers draw by themselves: no script, no font, no network."""

import html

from latex2mathml.converter import convert
from sphinx.util.docutils import SphinxTranslator


def _math(translator: SphinxTranslator, latex: str, display: str) -> str:
    return convert(html.unescape(latex), display=display)


def inline(translator, node):
    """A formula within a line."""
    translator.body.append(_math(translator, node.astext(), "inline"))
    from docutils import nodes

    raise nodes.SkipNode


def block(translator, node):
    """A formula of its own."""
    from docutils import nodes

    translator.body.append(f'<div class="math">{_math(translator, node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Registers the renderer; conf.py chooses it."""
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
