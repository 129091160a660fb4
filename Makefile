# Everything runs from .venv, which is made here from pinned versions; only make and Python 3.11+ must be present.
# Tests of the pipeline need Java 17+, which tools/need finds, or installs if it may.
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.stamp
MINUTES ?= 30
JOBS    ?= 3
CEPH_ROOT ?= .ceph
CEPH_PORT ?= 7480
AZURITE ?= .azurite
# Tests with a marker need a server that a target of its own starts.
ALL := not ceph and not azure
PARALLEL := $(BIN)/pytest -n $(JOBS)
# Tests start hundreds of processes; each would compile the whole package.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup lock demo test test-fast lint style types unit sim bench soak test-ceph test-azure docs clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# A moved folder breaks the scripts in .venv, so the stamp records where it was made.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(shell pwd -P))
.PHONY: $(STAMP)
endif
$(STAMP): pyproject.toml requirements.txt tools/setup
	@tools/setup $(VENV)

setup: $(STAMP)  ## make .venv from the pinned versions

lock:  ## write requirements.txt and requirements-bench.txt; ARGS="--upgrade" takes the newest versions
	@tools/lock $(or $(PYTHON),python3) $(ARGS)

demo: $(STAMP)  ## kill processes on a local store, and check that nothing is lost
	@tools/need java >/dev/null
	@$(BIN)/holdfast demo

test: lint unit  ## everything that must pass: lint, types, and all tests

lint: style types  ## ruff, import contracts, mypy

style: $(STAMP)  ## ruff and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)  ## mypy
	$(BIN)/mypy

# One process more than a small machine has cores: each waits now and then for a server or for a lease to expire.
unit: $(STAMP)  ## all tests, in random order, JOBS (default 3) at a time
	@tools/need java >/dev/null
	$(PARALLEL) -m "$(ALL) and not soak"

test-fast: $(STAMP)  ## stop at the first failure; ARGS selects tests
	@tools/need java >/dev/null
	$(BIN)/pytest -m "$(ALL) and not soak" -x -q $(ARGS)

sim: $(STAMP)  ## simulate every scenario for MINUTES (default 30), then ten million operations of Register and Lease
	$(BIN)/holdfast sim all --minutes $(MINUTES)
	@seed=$$(date +%s); for scenario in lease register-counter register-history; do \
	    $(BIN)/holdfast sim run $$scenario --seeds "$$seed..$$((seed + 79999))" --jobs 2 || exit 1; done

soak: $(STAMP)  ## fresh examples for every property, a long simulation under another hash seed
	@tools/need java >/dev/null
	HOLDFAST_HYPOTHESIS=soak $(PARALLEL) -m "$(ALL)" --timeout 3600
	$(BIN)/holdfast sim all --minutes $(MINUTES) --hash-seed $$(date +%s)

bench: $(STAMP)  ## every benchmark package beside its peers, which are installed first; results as JSON and a table
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r requirements-bench.txt
	@for main in bench/*/__main__.py; do package=$$(dirname $$main); echo "bench: $${package#bench/}"; \
	    $(BIN)/python -m bench.$${package#bench/} || exit 1; done

test-ceph: $(STAMP)  ## laws and races against a real Ceph gateway (root; installs it below CEPH_ROOT)
	@tools/ceph20.sh run "$(CEPH_ROOT)" "$(CEPH_PORT)" $(BIN)/pytest -m ceph

test-azure: $(STAMP)  ## laws, races and one test of each domain on Azurite, which npm installs below AZURITE
	@tools/with-azurite "$(AZURITE)" $(BIN)/pytest -m azure

docs: $(STAMP)  ## check links and run the examples in README and docs
	@tools/need java >/dev/null
	$(BIN)/pytest -q tests/test_docs.py tests/spark/test_spark_docs.py

clean:  ## remove what was generated
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
