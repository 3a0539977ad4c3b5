# `make train` and `make test` set up what they need; `make help` lists the rest.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.headrace-setup
RECIPE ?= recipes/quickstart.yaml
export OMP_NUM_THREADS ?= 1
# A failed pip must fail the target although its output is filtered.
SHELL := bash
.SHELLFLAGS := -eo pipefail -c

.PHONY: help setup train test check lint bench clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) ## .venv with pinned dependencies and headrace itself

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up .venv (once; some minutes)"
	@$(PYTHON) -m venv .venv
	@echo "  torch"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt torch 2>&1 | { grep -v 'is ignored: it is neither' || true; }
	@echo "  everything else"
	@$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]' 2>&1 | { grep -v 'is ignored: it is neither' || true; }
	@$(BIN)/python -c 'import headrace, ray, torch, gymnasium'
	@touch $(STAMP)
	@echo "  ready"

train: setup ## train the quickstart (RECIPE=… for another)
	@$(BIN)/headrace train $(RECIPE)

test: setup ## the whole test suite
	@$(BIN)/python -m pytest -q

lint: setup ## style, types, doors between rooms
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@$(BIN)/lint-imports

check: lint ## lint, and the tests that need neither Ray nor patience
	@$(BIN)/python -m pytest -q -m "not ray and not slow"

bench: setup ## every benchmark, then benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks

clean: ## remove the environment and caches; runs stay
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
