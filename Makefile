# run    serve the live page on http://127.0.0.1:7860
# test   the whole test suite
# lint   ruff and mypy
# soak   100,000 random steps without a model, a few minutes
# docs   build the site into site/
# Each sets up what it needs in .venv first, and only when pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TYPINGS := typings/pagelens

.PHONY: run test lint soak docs
.DELETE_ON_ERROR:

run: $(VENV)/.run
	$(BIN)/pagelens app $(ARGS)

test: $(VENV)/.dev
	$(BIN)/pytest $(ARGS)

lint: $(VENV)/.dev $(TYPINGS)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(VENV)/.run
	$(BIN)/python benchmarks/soak.py $(ARGS)

docs: $(VENV)/.docs $(TYPINGS)
	$(BIN)/mkdocs build --strict

$(VENV)/.run $(VENV)/.dev $(VENV)/.docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Pagelens needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e .$(EXTRA)
	touch $@

$(VENV)/.dev: EXTRA = [dev]
$(VENV)/.docs: EXTRA = [docs]

# Type checkers and mkdocstrings find pagelens.engine as typings/pagelens/engine; not committed, Windows has no symlinks.
$(TYPINGS):
	mkdir -p typings
	ln -s .. $(TYPINGS)
