PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test lint bench clean

# The stamp is newer than the files that say what to install, so that a second run costs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

quickstart: $(VENV)/.installed
	$(BIN)/beir-cocodr quickstart --resume $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy beir_cocodr plugins

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/idro.py
	$(BIN)/python benchmarks/gradient_cache.py

clean:
	rm -rf $(VENV) build *.egg-info
