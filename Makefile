# Every target sets up what it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
BENCH  := $(VENV)/.bench-ready
PYTEST := $(BIN)/pytest -n logical --maxprocesses 4  # one process per core

# Tests start many processes: without stored bytecode each one compiles Penstock, and each pytest process all tests.
unexport PYTHONDONTWRITEBYTECODE

QUICK  := not (spark or cluster or postgres or browser or container or s3 or slow)
T      ?= tests

.PHONY: help setup demo serve quick test soak check bench docs screenshots release-check lock clean

help:              ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 15

setup: $(READY)    ## create .venv with the locked dependencies

demo: $(READY)     ## run the demo end to end in a new demo-workspace
	@rm -rf demo-workspace
	@$(BIN)/penstock demo --keep demo-workspace --serve-with 'make serve'

serve: $(READY) demo-workspace  ## serve the demo's workspace with its web page
	@$(BIN)/penstock serve --dev --workspace demo-workspace/lake

quick: $(READY)    ## run the tests that need no Spark, PostgreSQL, S3 server, browser or container
	@PENSTOCK_QUICK=1 $(PYTEST) -q -m '$(QUICK)' $(T)

test: $(READY)     ## run all tests, or some: make test T=tests/rest
	@tools/system-packages
	@$(PYTEST) $(T)

soak: $(READY)     ## run the random, fault and load tests with their full numbers
	@tools/system-packages
	@PENSTOCK_SOAK=1 $(PYTEST) -m soak $(T)

check: $(READY)    ## check style, types, words, imports and generated pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.words
	@$(BIN)/python -m tools.docs --check
	@$(BIN)/python -m tools.proto --check

bench: $(BENCH)    ## measure Penstock beside other tools, in one run
	@$(BIN)/python bench/commit.py
	@$(BIN)/python bench/scan.py
	@$(BIN)/python bench/edits.py
	@$(BIN)/python bench/merge.py
	@$(BIN)/python bench/merge_spark.py
	@$(BIN)/python bench/pipeline.py
	@$(BIN)/python bench/registry.py
	@$(BIN)/python bench/serve.py
	@$(BIN)/python bench/queries.py
	@$(BIN)/python bench/flight.py
	@$(BIN)/python bench/overload.py

docs: $(READY)     ## write the generated pages
	@$(BIN)/python -m tools.docs

screenshots: $(READY) ## take a screenshot of every page (build/screenshots)
	@tools/system-packages
	@$(BIN)/python -m tools.screenshots

release-check: check test  ## check that the tree can be released: changelog, version, wheel, clean tree
	@$(BIN)/python -m tools.release

LOCK := uv pip compile -q --generate-hashes --universal --no-header --no-annotate --no-emit-index-url --python-version 3.11
lock:              ## resolve the dependencies again (needs uv)
	$(LOCK) --all-extras --group dev pyproject.toml -o requirements.lock
	$(LOCK) --all-extras -c requirements.lock pyproject.toml -o requirements-run.lock
	$(LOCK) --group pyproject.toml:build -c requirements.lock -o requirements-build.lock
	$(LOCK) --all-extras --group bench -c requirements.lock pyproject.toml -o bench/requirements.lock

clean:             ## remove the environment and the demo
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
