"""The command line: one file for each command, put together in `app.py`."""

from relbo.lab.cli.app import main as main
