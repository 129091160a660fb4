# Everything runs from .venv, which is made here from pinned versions; only make and Python 3.11+ must be present.
# Tests of the pipeline need Java 17+, which tools/need finds, installs where it may, or asks for.
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.stamp
EXTRAS  := agent,server,spark,dev
MINUTES ?= 30
JOBS    ?= 3
CEPH_ROOT ?= .ceph
CEPH_PORT ?= 7480
AZURITE   ?= .azurite
# Tests start hundreds of processes, each of which would compile the whole package for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast lint style types unit sim bench soak test-ceph test-azure docs clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# A moved folder breaks the scripts in .venv, so the stamp records where it was made.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(shell pwd -P))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml constraints.txt tools/setup Makefile
	@tools/setup $(VENV) $(EXTRAS)

setup: $(STAMP)  ## make .venv from the pinned versions

demo: $(STAMP)  ## see Holdfast work, from agents to answers, on a local store
	@tools/need java >/dev/null
	@$(BIN)/holdfast demo

test: style  ## everything that must pass: lint, and all tests
	@tools/beside "$(MAKE) --no-print-directory types" "$(MAKE) --no-print-directory unit"

lint: style types  ## ruff, import contracts, mypy

style: $(STAMP)  ## ruff and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)  ## mypy
	$(BIN)/mypy

# One more than a small machine has cores: now and then each waits for a process, a server, or a lease that runs out.
unit: $(STAMP)  ## all tests, in random order, three at a time
	@tools/need java >/dev/null
	$(BIN)/pytest -m "not ceph and not azure" -n $(JOBS)

test-fast: $(STAMP)  ## stop at the first failure; ARGS selects tests
	@tools/need java >/dev/null
	$(BIN)/pytest -m "not ceph and not azure" -x -q $(ARGS)

sim: $(STAMP)  ## simulate every scenario for MINUTES (default 30), then ten million operations of Register and Lease
	$(BIN)/holdfast sim all --minutes $(MINUTES)
	@tools/ten-million $(BIN)/holdfast

soak: $(STAMP)  ## fresh examples for every property, an agent beside /proc, a long simulation under another hash seed
	@tools/need java >/dev/null
	HOLDFAST_HYPOTHESIS=soak $(BIN)/pytest -m "not ceph and not azure" -n $(JOBS) --timeout 3600
	$(BIN)/python -m tests.integration.proc_witness 5
	$(BIN)/holdfast sim all --minutes $(MINUTES) --hash-seed $$(date +%s)

bench: $(STAMP)  ## every benchmark package beside its peers, which are installed first; results as JSON and a table
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --no-build-isolation --editable ".[$(EXTRAS),bench]"
	@tools/each-bench $(BIN)/python

test-ceph: $(STAMP)  ## laws and races against a real Ceph gateway (root; installs it below CEPH_ROOT)
	@tools/with-ceph "$(CEPH_ROOT)" "$(CEPH_PORT)" $(BIN)/pytest -m ceph

test-azure: $(STAMP)  ## laws, races and one test of each domain on Azurite, which npm installs below AZURITE
	@tools/with-azurite "$(AZURITE)" $(BIN)/pytest -m azure

docs: $(STAMP)  ## check links and run the examples in README and docs
	@tools/need java >/dev/null
	$(BIN)/pytest -q tests/test_docs.py tests/spark/test_spark_docs.py

clean:  ## remove what was generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
