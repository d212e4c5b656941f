# make demo and make test do all their set-up on a bare clone: Python 3.11+ and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-fast check docs docs-version clean

demo: $(VENV)/.installed
	$(BIN)/sgpmil demo --overwrite

# Tests run in so many processes, of which some wait; TEST_PROCESSES=0 runs them in one.
TEST_PROCESSES ?= 3
PYTEST := $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

test: $(VENV)/.installed-dev
	$(PYTEST)

test-fast: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

check: $(VENV)/.installed-dev
	$(BIN)/ruff check --no-cache src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict --quiet

# Adds this version's documentation to the branch gh-pages, which serves all versions side by side.
docs-version: $(VENV)/.installed-docs
	$(BIN)/mike deploy --update-aliases $$($(BIN)/python -c 'import sgpmil; print(".".join(sgpmil.__version__.split(".")[:2]))') latest
	$(BIN)/mike set-default latest

clean:
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("sgpmil needs Python 3.11 or newer, but found " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e ".[slides,encoders,viewer]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e ".[dev]"
	-$(BIN)/python src/sgpmil/viewer/vendor.py --axe tests/viewer/vendor
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	$(PIP) -e ".[docs]"
	touch $@
