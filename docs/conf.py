"""How the site is built: `make docs`. Nothing is fetched while it is built, nor while it is read."""

import importlib.metadata
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

project = "relbo"
author = "The relbo authors"
copyright = "the relbo authors, Apache-2.0"
version = release = importlib.metadata.version("relbo")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "api_pages",
    "docstrings",
    "mathml",
    "root_pages",
    "source_pages",
]
exclude_patterns = ["_build", "_ext", "README.md"]

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Tutorials are run when the site is built; those that did not change are taken from the cache.
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS.parent / "out" / "tutorials")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = "remove"  # such as that tqdm finds no widgets; what a page should show, it prints

toc_object_entries = False  # headings name them already
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_use_legacy_class_based = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 88

html_theme = "sphinx_book_theme"
html_title = f"relbo {release}"
html_static_path = ["_static"]
html_css_files = ["relbo.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
# where nobody has chosen, the page follows the reader's system: light or dark
html_context = {"default_mode": "auto"}
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "navbar_persistent": [],  # the search field is in the side bar
    "pygments_light_style": "a11y-light",
    "pygments_dark_style": "a11y-dark",
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
