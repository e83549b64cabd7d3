# `make` lists the targets. PYTHON names the interpreter that .venv is made from.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
IMAGE ?= paddlewheel
PY := $(VENV)/bin/python
SERVING := $(VENV)/.serving-installed
DEV := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help setup serve test check bench docker protos lock clean

help:  ## List the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1|/' | awk -F'|' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(SERVING)  ## Make .venv and install the locked serving environment
	@echo "$(VENV) holds the serving environment"

serve: $(SERVING)  ## Train and convert the demo model once, then serve it on 18082 (HTTP) and 8088 (gRPC)
	$(PY) -m convert demo
	@exec $(PY) web_service.py

test: check  ## Linters, types, import rules, demo model, all tests
	$(PY) -m convert demo
	$(PY) -m pytest

check: $(DEV)  ## Linters, types and import rules only
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports

bench: $(DEV)  ## Measure the service beside the bare predictor and a bare ASGI app (needs wrk and h2load)
	$(PY) -m convert demo
	$(PY) -m bench.service

docker:  ## Build the CPU image
	docker build -f docker/Dockerfile -t $(IMAGE) .

protos: $(DEV)  ## Generate the gRPC messages again from client/protos/*.proto
	$(PY) client/protos/generate.py

lock: $(SERVING)  ## Choose versions again and write requirements/*.txt
	$(PY) requirements/lock.py

clean:  ## Remove .venv, models and caches
	rm -rf $(VENV) models build *.egg-info compat/build compat/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

$(SERVING): requirements/serving.txt pyproject.toml compat/pyproject.toml docker/install.sh
	@echo "Installing the serving environment into $(VENV) (about 1 GB; a few minutes the first time)"
	@docker/install.sh venv $(VENV) $(PYTHON)
	@docker/install.sh serving $(VENV)
	@docker/install.sh project $(VENV)
	@touch $@

$(DEV): $(SERVING) requirements/dev.txt
	@docker/install.sh dev $(VENV)
	@touch $@
