# Two commands on a fresh machine: `make demo` and `make test`. Both need only Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow fuzz bench lint types format clean

demo: .venv/.runtime
	$(BIN)/relbo demo --out out/demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -q -m slow

fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz --minutes 5 --seed 0

bench: .venv/.dev
	$(BIN)/relbo bench --out out/bench

lint: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/.dev
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "relbo needs Python 3.11 or newer, got " + sys.version.split()[0] + "; pass PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv

.venv/.runtime: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@ .venv/.runtime

clean:
	rm -rf .venv out build dist
