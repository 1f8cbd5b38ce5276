"""The command line: one file for each command, put together in `app.py`."""

from relbo.cli.app import main as main
