# The front door. Every target sets up what it needs by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.bench-ready
PYTEST := $(BIN)/pytest -n logical --maxprocesses 4  # a process for each core

.PHONY: help setup demo serve test soak check bench docs screenshots lock clean

help:              ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 13

setup: $(READY)    ## the virtual environment with the locked dependencies

demo: $(READY)     ## the main job, end to end, in a new demo-workspace
	@rm -rf demo-workspace
	@$(BIN)/penstock demo --keep demo-workspace --serve-with 'make serve'

serve: $(READY) demo-workspace  ## the service and its page, on the demo's workspace
	@$(BIN)/penstock serve --dev --workspace demo-workspace/lake

test: $(READY)     ## everything, sized for CI
	@tools/system-packages
	@$(PYTEST)

soak: $(READY)     ## the same checks with the full numbers
	@tools/system-packages
	@PENSTOCK_SOAK=1 $(PYTEST)

check: $(READY)    ## style, types, who imports whom, generated docs
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.docs --check
	@$(BIN)/python -m tools.proto --check

bench: $(BENCH)    ## measure, beside others, in one run
	@$(BIN)/python bench/commit.py
	@$(BIN)/python bench/scan.py
	@$(BIN)/python bench/merge.py
	@$(BIN)/python bench/merge_spark.py
	@$(BIN)/python bench/pipeline.py
	@$(BIN)/python bench/registry.py
	@$(BIN)/python bench/queries.py
	@$(BIN)/python bench/flight.py

docs: $(READY)     ## write the generated pages
	@$(BIN)/python -m tools.docs

screenshots: $(READY) ## a picture of every page (build/screenshots); the README shows three
	@tools/system-packages
	@$(BIN)/python -m tools.screenshots

LOCK := uv pip compile -q --generate-hashes --universal --no-header --no-annotate --no-emit-index-url --python-version 3.11
lock:              ## choose versions anew (needs uv)
	$(LOCK) --all-extras --group dev pyproject.toml -o requirements.lock
	$(LOCK) --all-extras -c requirements.lock pyproject.toml -o requirements-run.lock
	$(LOCK) --group pyproject.toml:build -c requirements.lock -o requirements-build.lock
	$(LOCK) --all-extras --group bench -c requirements.lock pyproject.toml -o bench/requirements.lock

clean:             ## forget the environment and the demo
	rm -rf $(VENV) demo-workspace .demo-workspace-* .mypy_cache .ruff_cache .pytest_cache .hypothesis

demo-workspace:
	@$(BIN)/penstock demo --keep $@ --serve-with 'make serve'

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer; name one with make PYTHON=…")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once)" >&2
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH): $(READY) bench/requirements.lock
	@$(BIN)/pip install -q --disable-pip-version-check --require-hashes -r bench/requirements.lock
	@touch $@
