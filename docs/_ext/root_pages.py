"""Links to the files beside docs/ that the site has as pages of its own lead to these pages."""

PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "README.md": "index.md"}


def rewrite(app, docname, source):
    """Sphinx's event: a page's text, before it is parsed."""
    up = "../" * docname.count("/")
    for file, page in PAGES.items():
        source[0] = source[0].replace(f"](../{up}{file}", f"]({up}{page}")


def setup(app):
    """Listens."""
    app.connect("source-read", rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
