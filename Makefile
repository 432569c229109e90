# Commands a newcomer needs: `make demo`, `make quick` while changing something, `make test` before sending it. All set up
# .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo quick test lint types unit thorough docs fuzz chaos bench clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(READY)  ## create .venv and install the package with all its extras

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "l0tre needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[all,dev]"
	@touch $(READY)

demo: $(READY)  ## evaluate the bundled network on real digits and write runs/demo/report.html
	rm -rf runs/demo
	$(BIN)/l0tre evaluate sdnn mnist5k --resize --shuffle --limit 20 --max-t 2 --time-budget 90 --out runs/demo

quick: lint types  ## under a minute: lint, types, one case of each test that is not slow
	$(BIN)/python -m pytest -n auto --dist loadgroup --quick --ignore=tests/zoo --ignore=tests/studies --ignore=tests/adapters

test: lint types unit  ## lint, type-check, run the tests

lint: $(READY)  ## ruff, and the layers of packages (import-linter)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)  ## mypy --strict
	$(BIN)/mypy

unit: $(READY)  ## pytest
	$(BIN)/python -m pytest -n auto --dist loadgroup

thorough: $(READY)  ## all cases of all tests; twice as long as make unit
	$(BIN)/python -m pytest -n auto --dist loadgroup --thorough

docs: $(VENV)/.docs  ## the documents and the Python reference as a site, site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

$(VENV)/.docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[docs]"
	@touch $@

SECONDS ?= 600
fuzz: $(READY)  ## look for wrong proofs on random networks, make fuzz SECONDS=600
	$(BIN)/python -m fuzz --seconds $(SECONDS)

chaos: $(READY)  ## kills, flipped bits, full disks, two processes at once for run folders; 30 clusters that lose workers, make chaos SECONDS=600
	$(BIN)/python -m chaos --seconds $(SECONDS) --cluster 30

bench: $(READY)  ## the benchmark: forward passes per second, seconds per image, proofs
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.certify sdnn mnist5k --resize --radius 1 --images 10

clean:  ## remove what the other targets made
	rm -rf $(VENV) runs site .pytest_cache .mypy_cache .ruff_cache
