# Everything a person or a pipeline does with this repository. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)/tests/support

.PHONY: help setup demo test test-heavy test-fast test-long fuzz lint verify crds lock native test-native bench-sidecar bench-operator soak apiserver node parts clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

# pyvenv.cfg, not the folder: an interrupted run leaves a folder without it.
$(VENV)/pyvenv.cfg:
	@echo "setup: making the virtual environment $(VENV) (about 5 s)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kvquota needs Python 3.11 or newer: call make with PYTHON=python3.11")'
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.dev: requirements/dev.lock requirements/build.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "setup: fetching the locked packages for development (about 40 s the first time)"
	@$(PIP) install --require-hashes -r requirements/build.lock -r requirements/dev.lock
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $(VENV)/.dev $(VENV)/.demo

$(VENV)/.demo: requirements/demo.lock requirements/build.lock pyproject.toml | $(VENV)/pyvenv.cfg
	@echo "setup: fetching the locked packages for the demo (about 25 s the first time)"
	@$(PIP) install --require-hashes -r requirements/build.lock -r requirements/demo.lock
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $(VENV)/.demo

setup: $(VENV)/.dev ## make the development environment from the locked packages

demo: $(VENV)/.demo ## two tenants, one floods: what the quota does, in under a minute (ARGS=... are passed on)
	@$(BIN)/kvquota demo $(ARGS)

parts: setup ## fetch and build the real parts that the tests run against (once per machine)
	@$(BIN)/python -m testcluster.assets
	@$(BIN)/python -m testcluster.node setup
	@$(BIN)/python -m testengine.environment

# Most tests wait more than they compute: three workers keep two cores busy.
WORKERS ?= 3
test: parts ## every test on all real parts but the heavy ones (WORKERS=3 at once, ARGS=... are passed on)
	@$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadgroup -m "not heavy" $(ARGS)

test-heavy: parts ## those that take minutes each: engines of several processes or started again and again, images built (one at a time)
	@$(BIN)/python -m pytest -m heavy -rP $(ARGS)

# The gate is of the whole: where ARGS choose among the tests, or do anything else, it would say nothing true.
test-fast: setup ## unit and property tests with the coverage gate (none with ARGS=...): no network, no real parts
ifeq ($(strip $(ARGS)),)
	@$(BIN)/python -m pytest --numprocesses 2 tests/unit tests/properties --cov --cov-report=
	@$(BIN)/python -m coverage report --fail-under=100 --include="$(PURE)"
else
	@$(BIN)/python -m pytest --numprocesses 2 tests/unit tests/properties $(ARGS)
	@echo "test-fast: no coverage gate, since ARGS were given"
endif

test-long: setup native ## the property tests on many more and new examples, on the compiled sidecar (hours; ARGS='-k ledger -rP': some of them, and what they met)
	@KVQUOTA_PROFILE=long PYTHONPATH=$(CURDIR)/build/native:$(PYTHONPATH) $(BIN)/python -m pytest --numprocesses 2 -m "not interpreted" tests/properties $(ARGS)

native: build/native/.built ## the compiled sidecar, in build/native (two minutes; hatch_build.py)

build/native/.built: $(VENV)/.dev hatch_build.py $(shell find crds/kvquota_api sidecar/kvquota_sidecar -name '*.py')
	@echo "native: compiling the sidecar into build/native (about two minutes)"
	@$(BIN)/python hatch_build.py
	@touch $@

# Of those tests that need no real parts, all that name the sidecar or what its own tests stand on.
SIDECAR_TESTS = $(shell grep -rlE --include='test_*.py' 'kvquota_sidecar|sidecar_|ledger_|admission_cases' $(addprefix tests/,unit properties conformance integration native))
test-native: setup native ## the sidecar's tests without real parts, on the compiled sidecar
	@PYTHONPATH=$(CURDIR)/build/native:$(PYTHONPATH) $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup -m "not (interpreted or apiserver or node or engine)" $(SIDECAR_TESTS) $(ARGS)

# Packages that decide and do nothing else: every branch is tested.
PURE = crds/kvquota_api/*,operator/kvquota_operator/injection/*,operator/kvquota_operator/leading.py,operator/kvquota_operator/reconcile/*,operator/kvquota_operator/planning/*,operator/kvquota_operator/reading/*,sidecar/kvquota_sidecar/ledger/*,sidecar/kvquota_sidecar/admission/*,sidecar/kvquota_sidecar/estimate/*,sidecar/kvquota_sidecar/refusals/*

# Rounds with new inputs each until FOR seconds are over. A seed brings a round again, so a red run can be looked into
# although the next one tries something else. A round that hangs is a fault too.
FOR ?= 60
fuzz: setup ## the parsers that read what strangers send, on new inputs for a minute (FOR=3600 seconds, SEED=... a round again)
	@case "$(FOR):$${SEED:-0}" in :*|*[!0-9:]*) echo "fuzz: FOR and SEED are whole numbers, as in FOR=60 and SEED=1" >&2; exit 2;; esac; \
	end=$$((SECONDS + $(FOR))); \
	while seed=$${SEED:-$$((RANDOM * 32768 + RANDOM))}; do \
		echo "fuzz: make fuzz SEED=$$seed brings this round again"; \
		KVQUOTA_PROFILE=fuzz timeout 300 $(BIN)/python -m pytest --quiet --numprocesses 2 --hypothesis-seed=$$seed tests/properties -k fuzz $(ARGS); \
		[ -z "$${SEED:-}" ] && [ $$SECONDS -lt $$end ] || break; \
	done

lint: setup ## style, types, and who may import whom
	@$(BIN)/ruff check --no-cache . && $(BIN)/ruff format --check .
	@$(BIN)/mypy && $(BIN)/mypy hatch_build.py tests/support/*.py tests/bench/*.py && $(BIN)/mypy tests/bench/operatorbench/*.py
	@$(BIN)/lint-imports

crds: setup ## write crds/*.yaml, the chart's copies and docs/reference.md from the models
	@$(BIN)/python -m kvquota_api.crdgen --reference docs/reference.md crds charts/kvquota/crds

verify: lint ## lint, and refuse generated files that are not what the models say
	@$(BIN)/python -m kvquota_api.crdgen --check --reference docs/reference.md crds charts/kvquota/crds

LOCK = uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate --python-version 3.11
OF_ENGINES = --python-platform x86_64-manylinux_2_36 --only-binary :all:
lock: ## write the lock files again (needs uv on PATH)
	@$(LOCK) pyproject.toml --extra cli -o requirements/demo.lock
	@$(LOCK) pyproject.toml --extra dev -c requirements/demo.lock -o requirements/dev.lock
	@$(LOCK) pyproject.toml --extra operator -c requirements/demo.lock -o requirements/operator.lock
	@$(LOCK) pyproject.toml --extra sidecar -c requirements/demo.lock -o requirements/sidecar.lock
	@$(LOCK) requirements/build.in -o requirements/build.lock
	@$(LOCK) requirements/native.in pyproject.toml --extra sidecar -c requirements/dev.lock -o requirements/native.lock
	@$(LOCK) requirements/engine.in --override requirements/engine.override $(OF_ENGINES) -o requirements/engine.lock
	@$(LOCK) requirements/llamacpp.in $(OF_ENGINES) -o requirements/llamacpp.lock

apiserver: setup ## a real kube-apiserver and etcd on this machine, until Ctrl-C
	@$(BIN)/python -m testcluster.apiserver

node: setup ## a whole single-node Kubernetes in namespaces of its own, until Ctrl-C (root)
	@$(BIN)/python -m testcluster.node

bench-sidecar: setup native ## the sidecar beside known proxies, in build/bench/sidecar.json (ARGS='--rounds 1', 25 min without)
	@$(BIN)/python tests/bench $(ARGS)

bench-operator: setup ## the operator with 5,000 pods on a real API server, in build/bench/operator.json (ARGS='--pods 500 --quotas 20 --pools 2 --seconds 20', 10 min without)
	@$(BIN)/python tests/bench/operatorbench $(ARGS)

soak: setup native ## the sidecar under a mixed load for FOR=86400 seconds (60 without): what it takes, and whether it gives it back (ARGS='--rate 20')
	@$(BIN)/python tests/bench/soak.py --seconds "$(FOR)" $(ARGS)

clean: ## remove what the targets above made in this folder
	@rm -rf $(VENV) .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build && find crds operator sidecar tests -name __pycache__ -prune -exec rm -rf {} +
