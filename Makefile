# Thaw. `make` lists the verbs. The first `make run` or `make test` sets up .venv from the lock files under images/.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# An index that holds the CPU build of torch; empty takes pip's own configuration.
TORCH_INDEX ?=
PRESET ?= demo
# cpu or cuda: which lock file .venv and the image are set up from. Change it in a fresh clone.
DEVICE ?= cpu
# What `make images` builds, on which image (empty takes that of the Dockerfile), and with which further flags.
IMAGE ?= thaw:$(VERSION)-$(DEVICE)
BASE ?=
DOCKER_BUILD_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
VERSION := $(shell sed -n '/^version = /{s/.*"\(.*\)"/\1/p;q}' pyproject.toml)
TORCH := $(shell sed -n 's/^ *"\(torch==[0-9.]*\)",$$/\1/p' pyproject.toml)
LOCK := uv pip compile --quiet --upgrade --no-header --annotation-style=line --python-version=3.11 --python-platform=linux pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-cluster test-containers test-gpu lint format lock compile images clean

help:  ## list these verbs
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/ready  ## the whole pipeline on this machine (PRESET=demo), ends with a report
	$(BIN)/thaw run --preset $(PRESET)

test: $(VENV)/ready  ## all tests that need neither a GPU, nor Docker, nor a cluster
	$(BIN)/python -m pytest

test-slow: $(VENV)/ready  ## tests that take minutes, or fetch real data
	$(BIN)/python -m pytest -m slow

test-cluster: $(VENV)/ready  ## tests against the cluster of KUBECONFIG, which must have the PyTorchJob CRD
	$(BIN)/python -m pytest -m cluster

test-containers: $(VENV)/ready  ## tests in containers of an image that they build, thaw:test; need a Docker engine
	$(BIN)/python -m pytest -m containers tests/containers

test-gpu: $(VENV)/ready  ## tests that need an NVIDIA GPU (DEVICE=cuda)
	$(BIN)/python -m pytest -m gpu

lint: $(VENV)/ready  ## only checks: style, format, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready  ## only changes: format and sorted imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

compile: $(VENV)/ready  ## the pipeline as KFP YAML, in build/
	$(BIN)/thaw compile --preset production --output build/thaw.yaml

images:  ## the container image for DEVICE; needs a Docker engine
	docker build $(DOCKER_BUILD_FLAGS) --file images/Dockerfile.$(DEVICE) --tag $(IMAGE) $(if $(BASE),--build-arg BASE=$(BASE)) \
	  --build-arg TORCH=$(TORCH) --build-arg TORCH_INDEX=$(TORCH_INDEX) --build-arg VERSION=$(VERSION) .

lock: $(VENV)/ready  ## resolve images/*.lock anew
	$(BIN)/$(LOCK) --extra=cpu | grep -vE '^(torch=|triton=|cuda-|nvidia-)' > images/cpu.lock.new && mv images/cpu.lock.new images/cpu.lock
	$(BIN)/$(LOCK) --extra=cuda | grep -vE '^torch=' > images/cuda.lock.new && mv images/cuda.lock.new images/cuda.lock
	$(BIN)/uv pip compile --quiet --upgrade --no-header --annotation-style=line --python-version=3.11 --python-platform=linux \
	  --group=dev --constraint=images/cpu.lock > images/dev.lock.new && mv images/dev.lock.new images/dev.lock

clean:  ## remove what make made, the runs excepted
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

$(VENV)/ready: images/$(DEVICE).lock images/dev.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Thaw needs Python 3.11, this is %s: make PYTHON=..." % sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "$(TORCH:torch==%=%)")' 2>/dev/null || \
	  $(BIN)/pip install --no-deps $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH)
	$(BIN)/pip install --quiet --no-deps -r images/$(DEVICE).lock -r images/dev.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
