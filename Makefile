# Two commands on a fresh machine: `make demo` and `make test`. Both need only Python 3.11+ and make.
PYTHON ?= python3
# The newest JAX may need a newer Python than the oldest one that relbo supports: NEWEST_PYTHON=python3.13
NEWEST_PYTHON ?= $(PYTHON)
BIN := .venv/bin

.PHONY: demo test test-slow test-oldest test-newest fuzz bench docs package lock lint types format clean

demo: .venv/.runtime
	$(BIN)/relbo demo --out out/demo

test: lint types
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --durations=25 --durations-min=5

test-slow: .venv/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -q -m slow

fuzz: .venv/.dev
	$(BIN)/python -m tests.fuzz --minutes 5 --seed 0

# Both ends of the supported range, each in an environment of its own. The chosen files touch every part of the library.
RANGE_TESTS ?= tests/test_exact.py tests/test_view.py tests/test_posterior.py tests/test_evaluate.py \
	tests/calibration tests/train/test_fit.py tests/lab/test_compiled.py tests/numpyro/test_bridge_svi.py \
	tests/numpyro/test_bridge_resample.py

test-oldest: .venv-oldest/.ready
	.venv-oldest/bin/python -m pytest -q -p no:cacheprovider $(RANGE_TESTS)

test-newest: .venv-newest/.ready
	.venv-newest/bin/python -m pytest -q -p no:cacheprovider $(RANGE_TESTS)

docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs out/site
	$(BIN)/python tools/check_site.py out/site

package: .venv/.package
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tools/check_package.py dist

# Names and versions alone: a lock for any index.
lock: .venv/.dev .venv/.docs .venv/.package
	$(BIN)/python tools/write_lock.py requirements-dev.lock

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

.venv/.docs: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch $@

.venv/.package: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[package]'
	touch $@

.venv-oldest/.ready: pyproject.toml requirements-oldest.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c requirements-oldest.txt -e '.[dev]'
	touch $@

.venv-newest/.ready: pyproject.toml
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest out build dist docs/api
