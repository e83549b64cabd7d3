# `make` lists the targets. PYTHON names the interpreter that .venv is made from.
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
VENV ?= .venv
IMAGE ?= paddlewheel
PY := $(VENV)/bin/python
SERVING := $(VENV)/.serving-installed
DEV := $(VENV)/.dev-installed
PAGE := $(VENV)/.page-installed
RAY := $(VENV)/.ray-installed
SYSTEM := $(VENV)/.system-installed
MUTANTS := $(VENV)/.mutants-installed
CONVERT_VENV := .venv-convert
CONVERT := $(CONVERT_VENV)/.convert-installed
TORCH := $(CONVERT_VENV)/.torch-installed
MODELS := $(CONVERT_VENV)/.models-installed
PDMODEL := $(CONVERT_VENV)/.pdmodel-installed
TORCH_VENV := .venv-torch
TORCH_SERVING := $(TORCH_VENV)/.torch-installed
# Tests mostly wait for services to start: more processes than cores.
TEST_PROCESSES ?= 3
# The files and cases without http in their names call the gRPC port, but for these files.
HTTP_ALONE = $(addprefix tests/dialects/test_v2_, generate.py replay_control.py replay_large.py replay_queue.py tensors.py)
GRPC_TESTS = $(filter-out $(HTTP_ALONE), $(wildcard tests/dialects/test_v2_*.py)) $(addprefix tests/front/test_, \
	api_keys.py connections.py endpoints.py rpc_endpoint.py tls.py tls_renewal.py tls_strangers.py) \
	$(addprefix tests/promises/test_, admission.py arriving_messages.py bounds.py few_files.py \
	hangup.py hostile_errors.py untaken_answers.py)
GRPC_CASES = not http or http_2 or rpc_port
# Of `make simulate`; about 40 of them take a second of a core.
SEEDS ?= 10000
# Of `make mutants`; 5 runs every fifth mutant of each function.
EVERY ?= 1
# Where PyTorch comes from: empty leaves it out, `pip` is pip's own index, else the address of another.
TORCH_INDEX ?=
# The base image of `make docker` with its digest; empty leaves the tag of the Dockerfile.
BASE ?=
BASE_ARGUMENT = $(if $(BASE),--build-arg BASE=$(BASE))
# Each process of a service would compile the project's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-plain-grpc test-page test-torch test-ray test-system coverage check convert-env pdmodel-env test-convert fuzz simulate mutants chaos bench bench-sequences docker docker-onnx protos lock sbom clean

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(SERVING)  ## Make .venv and install the locked serving environment
	@echo "$(VENV) holds the serving environment"

serve: $(SERVING)  ## Convert the demo model once, then serve it on 18082 (HTTP) and 8088 (gRPC)
	$(PY) -m convert demo
	@exec $(PY) web_service.py

test: check  ## Linters, types, import rules, demo model, all tests
	$(PY) -m convert demo
	$(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile

test-page: $(PAGE)  ## Tests of the page /docs in a headless Chromium, installed first where there is none
	browser=$$(docker/install.sh browser) && CHROMIUM="$$browser" $(PY) -m pytest tests/page

test-plain-grpc: $(DEV)  ## Tests of the gRPC ports on grpc.aio alone, as after an upgrade of grpcio
	$(PY) -m convert demo
	PYTHONPATH=$(CURDIR)/tests/support/plain_grpc $(PY) -m pytest -n $(TEST_PROCESSES) --dist loadfile -k "$(GRPC_CASES)" $(GRPC_TESTS)

test-torch: $(TORCH_SERVING)  ## Tests of the PyTorch engine, in .venv-torch (TORCH_INDEX=... names where PyTorch comes from)
	$(TORCH_VENV)/bin/python -m pytest -n 2 --dist loadfile tests/torch

test-ray: $(RAY)  ## Tests of `paddlewheel ray up` on a Ray cluster of several nodes on this machine
	$(PY) -m pytest tests/ray

test-system: $(SYSTEM)  ## Generated requests for every operation; nginx, HAProxy, Prometheus, Redis; models in S3; spoken digits; manifests; perf_analyzer, Model Analyzer
	$(PY) -m convert demo
	docker/install.sh espeak
	docker/install.sh iproute
	nginx=$$(docker/install.sh nginx) && haproxy=$$(docker/install.sh haproxy) && \
		prometheus=$$(docker/install.sh prometheus) && redis=$$(docker/install.sh redis) && \
		NGINX="$$nginx" HAPROXY="$$haproxy" PROMETHEUS="$$prometheus" REDIS_SERVER="$$redis" $(PY) -m pytest tests/system

coverage: $(DEV)  ## All tests, with the lines of ours that they and the processes they start have run
	$(PY) -m convert demo
	$(PY) -m coverage erase
	@status=0; \
	$(PY) -m coverage run -m pytest -n $(TEST_PROCESSES) --dist loadfile || status=$$?; \
	$(PY) -m coverage combine --quiet; $(PY) -m coverage report; \
	exit $$status

check: $(DEV)  ## Linters, types, import rules, words and the audit of pinned versions
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) -m tests.wording
	$(PY) requirements/audit.py

convert-env: $(CONVERT) $(if $(TORCH_INDEX),$(TORCH))  ## Make .venv-convert for converters (TORCH_INDEX=... adds PyTorch)
	@echo "$(CONVERT_VENV) holds the conversion environment"

pdmodel-env: $(PDMODEL)  ## Add an older Paddle that writes .pdmodel programs, for TensorRT (187 MB to fetch)
	@echo "$(CONVERT_VENV)/pdmodel holds the Paddle of --format pdmodel"

test-convert: $(DEV) $(CONVERT) $(TORCH) $(MODELS) $(PDMODEL)  ## Tests of the conversions that need .venv-convert
	$(PY) -m convert demo
	$(PY) -m pytest -n 2 --dist loadfile tests/convert

fuzz: $(DEV)  ## Send mutated messages to every codec and endpoint, and hostile feeds and hooks to the worker (minutes)
	$(PY) -m tests.fuzz
	MODEL_MACHINE_EXAMPLES=50 $(PY) -m pytest tests/triton/test_model_machine.py -o timeout=1800

simulate: $(DEV)  ## Run the scheduler and the pool in virtual time: SEEDS schedules of faults, and planted bugs
	$(PY) -m tests.simulation --seeds $(SEEDS)
	$(PY) -m tests.simulation --seeds 1000 --sequences
	$(PY) -m tests.simulation --planted

mutants: $(MUTANTS)  ## Change expressions of the core one by one; unit tests have to notice (half an hour; EVERY=5)
	$(PY) -m tests.mutants --every $(EVERY)

chaos: $(DEV)  ## Kill, hang, flood and restart a service under load for a minute, and judge its answers
	$(PY) -m convert demo
	$(PY) -m tests.chaos

bench: $(DEV)  ## Measure the service beside the bare predictor and a bare ASGI app (needs wrk and h2load)
	$(PY) -m convert demo
	$(PY) -m bench.service

bench-sequences: $(DEV)  ## Send a million sequences with declared state under faults, and compare each answer with the model alone
	$(PY) -m bench.sequences

docker:  ## Build the CPU image (BASE=python:3.11-slim@sha256:... replaces its base)
	docker build -f docker/Dockerfile $(BASE_ARGUMENT) -t $(IMAGE) .

docker-onnx:  ## Build the image for services of ONNX models
	docker build -f docker/Dockerfile.onnx $(BASE_ARGUMENT) -t $(IMAGE)-onnx .

protos: $(DEV)  ## Generate the gRPC messages again from client/protos/*.proto
	$(PY) client/protos/generate.py

lock: $(SERVING)  ## Choose versions again and write requirements/*.txt
	$(PY) requirements/lock.py

sbom: $(SERVING)  ## Write build/sbom.json: the packages of the serving environment, as CycloneDX
	@mkdir -p build
	$(PY) requirements/sbom.py > build/sbom.json

clean:  ## Remove all environments, models and caches
	rm -rf $(VENV) $(CONVERT_VENV) $(TORCH_VENV) models build mutants *.egg-info compat/build compat/*.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

$(SERVING): requirements/serving.txt requirements/to-onnx.txt pyproject.toml compat/pyproject.toml compat/setup.py docker/install.sh
	@echo "Installing the serving environment into $(VENV) (about 1 GB; a few minutes the first time)"
	@docker/install.sh venv $(VENV) $(PYTHON)
	@docker/install.sh serving $(VENV)
	@docker/install.sh to-onnx $(VENV)
	@docker/install.sh project $(VENV)
	@touch $@

$(DEV): $(SERVING) requirements/dev.txt requirements/old_clients.txt requirements/perf_analyzer.txt docker/libb64.c
	@docker/install.sh dev $(VENV)
	@touch $@

$(PAGE): requirements/page.txt $(DEV)
	@docker/install.sh page $(VENV)
	@touch $@

$(SYSTEM): requirements/system.txt requirements/kubernetes.txt requirements/model_analyzer.txt $(DEV)
	@docker/install.sh system $(VENV)
	@touch $@

$(RAY): requirements/ray.txt $(DEV)
	@docker/install.sh ray $(VENV)
	@touch $@

$(MUTANTS): requirements/mutants.txt $(DEV)
	@docker/install.sh mutants $(VENV)
	@touch $@

$(CONVERT): requirements/convert.txt pyproject.toml docker/install.sh
	@echo "Installing the conversion environment into $(CONVERT_VENV) (2.3 GB; a few minutes the first time)"
	@docker/install.sh venv $(CONVERT_VENV) $(PYTHON)
	@docker/install.sh convert $(CONVERT_VENV)
	@touch $@

$(MODELS): requirements/models.txt requirements/old_sklearn.txt $(CONVERT)
	@docker/install.sh models $(CONVERT_VENV)
	@touch $@

$(PDMODEL): requirements/pdmodel.txt $(CONVERT)
	@docker/install.sh pdmodel $(CONVERT_VENV)
	@touch $@

$(TORCH): requirements/torch.txt $(CONVERT)
	@docker/install.sh torch $(CONVERT_VENV) $(or $(TORCH_INDEX),pip)
	@touch $@

$(TORCH_SERVING): requirements/torch.txt $(DEV)
	@echo "Installing PyTorch into $(TORCH_VENV), beside $(VENV) (0.8 GB for the CPU; minutes the first time)"
	@docker/install.sh venv $(TORCH_VENV) $(PYTHON)
	@docker/install.sh torch-serving $(TORCH_VENV) $(VENV) $(or $(TORCH_INDEX),pip)
	@touch $@
