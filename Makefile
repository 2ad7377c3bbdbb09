# Everything a developer or CI runs. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STAMP_ALL := $(VENV)/.installed-all
PIP_INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := $(BIN)/python -m pytest
# Tests at a time; those of one server wait more than they work, and those that measure pauses run alone.
JOBS ?= 2
SERVICE_JOBS ?= 3
comma := ,
# Tests of one file share servers: they stay together and in order.
BY_FILE := --numprocesses $(JOBS) --dist loadfile
# Those of whole runs and chaos share little: dealt out one by one, so that a long one at the end keeps nobody waiting.
BY_TEST := --numprocesses $(JOBS) --dist worksteal

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-all train test lint format type proto proto-check unit service chaos e2e e2e-long bench bench-replay bench-learn metrics-doc config-doc dashboards tools deploy wheelhouse test-docker clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with what training and development need

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: shoal needs Python 3.11 or newer and '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	       "name another one: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@echo "setup: installing into $(VENV), this takes a minute or two ..."
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: '$(PYTHON) -m venv' failed; on Debian and Ubuntu install python3-venv" >&2; exit 2; }
	@$(PIP_INSTALL) --editable '.[learner,inference,docker,dev]'
	@touch $@
	@echo "setup: done"

setup-all: $(STAMP_ALL) ## Add every kind of environment, export and video; the tests need them

$(STAMP_ALL): $(STAMP)
	@echo "setup: installing environments of every kind, 1.5 GB on disk ..."
	@$(PIP_INSTALL) --editable '.[all]'
	@touch $@
	@echo "setup: done"

train: setup ## Train CartPole to a mean return of 475 with all four services
	$(BIN)/shoal train cartpole --until-return 475

test: setup-all ## Lint, types, proto check, unit, service, deploy, chaos and e2e tests
	@start=$$(date +%s); \
	for step in lint type proto-check unit service deploy chaos e2e; do \
	  echo "== $$step"; \
	  $(MAKE) --no-print-directory $$step || { echo "make test: FAILED in '$$step'" >&2; exit 1; }; \
	done; \
	echo "make test: all passed in $$(( $$(date +%s) - start )) s"

lint: setup ## Style of all Python files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet . || { echo "error: not formatted; run: make format" >&2; exit 1; }

format: setup ## Rewrite all Python files in the house format
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

type: setup-all ## Static types of shoal and services
	$(BIN)/mypy

proto: setup ## Regenerate shoal/v1 from proto/
	$(BIN)/python scripts/proto.py

proto-check: setup ## Fail if shoal/v1 is not what proto/ generates
	$(BIN)/python scripts/proto.py --check

unit: setup-all ## Tests without sockets
	$(PYTEST) -q $(BY_FILE) tests/unit

service: setup-all ## Tests of one real server with its real client
	$(PYTEST) -q $(BY_FILE) --numprocesses $(SERVICE_JOBS) tests/service

tools: setup ## Prometheus and promtool for the tests, in .venv/tools; no root, no service
	@$(BIN)/python scripts/tools.py

deploy: setup-all tools ## Tests of manifests, rules and dashboards, with a real Prometheus
	$(PYTEST) -q --timeout=300 $(BY_FILE) tests/deploy

chaos: setup-all ## Tests that kill shards, damage their files and fill their disks
	$(PYTEST) -q --timeout=300 $(BY_TEST) --ignore tests/chaos/test_pauses.py tests/chaos
	$(PYTEST) -q --timeout=300 tests/chaos/test_pauses.py

e2e: setup-all ## Tests of whole runs with real processes
	$(PYTEST) -q --timeout=300 $(BY_TEST) -m "not long" tests/e2e

e2e-long: setup-all ## Tests of whole runs that `make test` has no time for
	$(PYTEST) -q --timeout=600 $(BY_TEST) -m long tests/e2e

test-docker: setup tools ## Build the images and run the compose project for real; installs and starts Docker if need be
	scripts/with_docker.sh $(PYTEST) -q --timeout=900 tests/docker

wheelhouse: setup ## Fill deploy/docker/wheelhouse with the wheels of all images, for builds without an index
	@echo "wheelhouse: downloading wheels for Python 3.11 ..."
	@$(BIN)/python -m pip download --quiet --quiet --disable-pip-version-check --constraint constraints.txt \
	  --only-binary :all: --python-version 3.11 --dest deploy/docker/wheelhouse \
	  '.[learner,inference$(if $(EXTRAS),$(comma)$(EXTRAS))]' 'setuptools>=77'

bench: setup-all ## Print the performance figures, with the machine
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

bench-replay: setup-all ## Print the figures of the replay, with Reverb beside it where that installs
	$(BIN)/python -m benchmarks.replay $(BENCH_ARGS)

bench-learn: setup-all ## Train the rows of docs/results/learning.md with defaults; days, resumable, BENCH_ARGS="--only acrobot-v1"
	$(BIN)/python -m benchmarks.learn $(BENCH_ARGS)

metrics-doc: setup ## Rewrite the tables of docs/metrics.md from the code
	$(BIN)/python scripts/metrics_doc.py

dashboards: setup ## Rewrite Grafana's dashboards and Kubernetes' rules from the code
	$(BIN)/python scripts/dashboards.py

config-doc: setup ## Rewrite the tables of docs/configuration.md from the code
	$(BIN)/python scripts/config_doc.py

clean: ## Remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .bench
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
