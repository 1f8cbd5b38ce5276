"""The lab: what a researcher runs, not what a library imports.

Run directories and their configuration, the command line, comparison of runs, reports, benchmarks and the paper's
experiments. Nothing outside of it imports it, but `relbo.load`, which opens run directories of the command line.
"""
