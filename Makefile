PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin

.PHONY: quickstart test test-oldest extras faults lint docs release-check bench clean

# The stamp is newer than the files that say what to install, so that a second run costs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

quickstart: $(VENV)/.installed
	$(BIN)/beir-cocodr quickstart --resume $(ARGS)

# Tiny models gain nothing from a second thread; files of tests on all cores do, and on one more, as some tests wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 5 \
		--dist loadfile --no-loadscope-reorder $(ARGS)

# All tests with the lowest versions that pyproject.toml allows, in an environment of their own; PYTHON says which Python.
test-oldest: $(VENV)/.uv
	$(BIN)/python benchmarks/versions.py oldest --python $(PYTHON) $(ARGS)

# Each extra alone: installed, checked, and imported.
extras: $(VENV)/.uv
	$(BIN)/python benchmarks/versions.py extras --python $(PYTHON) $(ARGS)

$(VENV)/.uv: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	touch $@

# Some of each kind of case of the campaign of broken inputs, kills, full disks and races: two minutes of one core.
faults: $(VENV)/.installed
	$(BIN)/python benchmarks/faults --sample $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy beir_cocodr plugins examples

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	touch $@

# Into site/, offline; a warning or a page that loads something from the network is an error.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; to search in it: $(BIN)/python -m http.server --directory site"

# Sdist and wheel, checked, and the wheel used where there are no extras: half a minute of one core.
release-check: $(VENV)/.installed
	$(BIN)/python .ci/release_check.py

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/idro.py
	$(BIN)/python benchmarks/gradient_cache.py

clean:
	rm -rf $(VENV) build site *.egg-info
