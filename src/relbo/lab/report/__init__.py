"""Reports: one self-contained HTML page about one or several runs.

`html.py` builds escaped HTML, `page.py` lays the page out (its looks are in `style.css`), `plots.py` draws curves
and `pictures.py` draws samples and reconstructions.
"""

from relbo.lab.report.page import build_page as build_page
from relbo.lab.report.page import write_report as write_report
