# `make demo` and `make test` each set up all they need (a virtual environment in .venv) and can be repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help demo test test-docker test-vllm soak check format image pair clean

help: ## Show what can be made.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo ## Watch a small agent solve shell tasks, sequentially and with observation speculation.
	$(BIN)/obsspec demo --out runs/demo

test: $(VENV)/.dev ## Run the test suite.
	$(BIN)/python -m pytest -n auto --dist loadfile

test-docker: $(VENV)/.dev ## Run the Docker tests with a daemon of their own (as root; installs docker.io if missing).
	tests/docker/run

test-vllm: ## Run the vLLM tests in an environment of their own (.venv-vllm: vLLM's CPU build, 4 GB).
	tests/vllm/run

soak: $(VENV)/.dev ## What takes longer: trainings killed 20 times, sandboxes whose owners are killed.
	OBSSPEC_KILLS=20 $(BIN)/python -m pytest tests/training/test_resume.py -k killed
	$(BIN)/python benchmarks/soak.py

check: $(VENV)/.dev ## Lint, check types and imports.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

image: $(VENV)/.dev ## Build the image that tasks with a machine of their own start from (root: installs mmdebstrap).
	@command -v mmdebstrap >/dev/null || [ "$$(id -u)" != 0 ] || \
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mmdebstrap || \
		{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mmdebstrap; }
	$(BIN)/obsspec image build

pair: $(VENV)/.dev ## Train the shipped policy and world model anew (more than an hour on 2 cores).
	$(BIN)/python -m agents.recipe

clean: ## Remove what was made.
	rm -rf $(VENV) .venv-vllm runs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# The stamps name what an environment was set up for; pip installs only what is missing.
$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed, found " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[lm]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/.demo
