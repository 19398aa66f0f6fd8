# Two commands: `make demo` and `make test`. Both make the environment first, once.
#
#   PYTHON=/path/to/python3.11   the interpreter of the environment
#   TORCH_BACKEND=cuda           a machine with an NVIDIA GPU: Python 3.12 and images/gpu.txt
#   PIP_FIND_LINKS=DIR           where torch's CPU build lies, when it should not come from PyTorch's own index
#   RECIPE=FILE                  another recipe for `make demo`
#   CHECK='--only sft'           words for `make gpu-check`; see python -m workflows.gpu_check --help
#   WORKERS=N                    processes of `make test`; each wants a core and 4 GB
#   TESTS="FOLDER …"             a part of the tests for `make test` and `make test-long`
#   VENV=FOLDER                  where the environment is, when one clone has both

TORCH_BACKEND ?= cpu
ifeq ($(TORCH_BACKEND),cpu)
PYTHON_VERSION := 3.11
LIST := requirements.txt
# torch first and by itself; the rest of the list is complete without it
TORCH := $(shell sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.in)
else ifeq ($(TORCH_BACKEND),cuda)
PYTHON_VERSION := 3.12
LIST := images/gpu.txt
TORCH :=
else
$(error TORCH_BACKEND is cpu or cuda, not '$(TORCH_BACKEND)')
endif

PYTHON ?= python$(PYTHON_VERSION)
UV_VERSION := 0.13.8
RECIPE ?= workflows/recipes/laptop.yaml
WORKERS ?= 2
BENCHMARKS = $(filter-out __init__ harness,$(basename $(notdir $(wildcard tests/benchmarks/*.py))))

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready-$(TORCH_BACKEND)
UV := $(BIN)/uv
FROM := $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)",--torch-backend cpu)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo gpu-check ui schedule test test-long test-placement test-ui test-continuous test-serve test-cluster test-clouds test-crash fuzz parity survive images lint bench lock clean

# without .pyc files the large libraries load several times slower
unexport PYTHONDONTWRITEBYTECODE
# the laptop's recipe reads no hub, and nothing else shall ask one; another recipe may read one
ifeq ($(RECIPE),workflows/recipes/laptop.yaml)
export HF_HUB_OFFLINE ?= 1
endif

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(READY)  ## raw text to a GRPO-tuned, published model: 15 to 20 minutes the first time
	@$(BIN)/pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe $(RECIPE)

gpu-check: $(READY)  ## does each stage work on this machine's GPU, and how fast: a table and figures as JSON, in 20 minutes
	@$(BIN)/python -m workflows.gpu_check $(CHECK)

ui: $(READY)  ## what made each model, and what became of it: Baton's pages and MLflow's on http://127.0.0.1:5000/lineage
	@$(BIN)/python -m infra.lineage

schedule: $(READY)  ## continuous training by its cron expressions, without a Flyte cluster; BATON_CONTINUOUS=FILE: another recipe
	@$(BIN)/python -m workflows.schedule

test: lint  ## the checks, then the tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

test-long: $(READY)  ## the tests that take minutes each: parity on four processes, deaths and hangs of ranks, servers, killed pods, the examples
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "long and not slow" $(TESTS)

test-placement: $(READY)  ## placed stages on two real Slurm clusters, made in namespaces by root; about half an hour
	tests/placement/slurm/run.sh

test-ui: $(READY)  ## the lineage page in Chromium and on PostgreSQL, from Debian's packages; about ten minutes
	@command -v chromium >/dev/null && ls -d /usr/lib/postgresql/*/bin >/dev/null 2>&1 || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium postgresql fonts-dejavu-core >/dev/null; }
	$(BIN)/python -m pytest -m slow tests/lineage

test-continuous: $(READY)  ## five days of continuous training with a simulated clock, tuning after a promotion, one's own evaluator; a quarter of an hour
	$(BIN)/python -m pytest -m slow tests/workflows

test-serve: $(READY)  ## the champion's service with vLLM: switched under 16 clients, killed, its registry away; about five minutes
	$(BIN)/python -m pytest -m slow tests/serve

test-cluster: $(READY)  ## the whole chain in pods that share nothing, 30 of them killed, each trainer continued, continuous training; two hours
	$(BIN)/python -m pytest -m slow tests/cluster

# Azure's emulator is Node's, Google's a Python package that is not for our environment
CLOUDS := .venv/clouds
test-clouds: $(READY)  ## the storage of Azure and of Google, by their emulators; a minute, needs npm
	@test -x $(CLOUDS)/bin/gcp-storage-emulator || { \
	  "$(PYTHON)" -m venv $(CLOUDS) && $(CLOUDS)/bin/pip install -qq gcp-storage-emulator==2026.7.19; }
	@test -x $(CLOUDS)/node_modules/.bin/azurite-blob || npm install --prefix $(CLOUDS) --silent --no-audit --no-fund azurite@3.37.0
	$(BIN)/python -m pytest -m slow tests/placement/test_clouds.py

# strace records what a program writes and syncs
test-crash: $(READY)  ## power cuts at every point of five programs, replayed: nothing that a manifest vouches for is lost
	@command -v strace >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends strace >/dev/null; }
	$(BIN)/python -m pytest -m crash tests/crash

fuzz: $(READY)  ## the fuzzers of recipes, configs, pickles and HTTP in their long form; BATON_FUZZ=N cases each
	$(BIN)/python -m pytest -m fuzz

parity: $(READY)  ## every parallel layout on up to 8 processes against one process; hours on two cores
	$(BIN)/python -m pytest -m slow tests/pretrain/test_parity.py

survive: $(READY)  ## kill -9 at random moments in every kind of layout, all chains of layouts; about a quarter of an hour
	$(BIN)/python -m pytest -m slow tests/pretrain/test_kills.py tests/pretrain/test_reshard.py \
	  tests/pretrain/test_continue.py tests/pretrain/test_pods.py

images: $(READY)  ## the pods' images, built and pushed with Docker, their digests in Flyte's configuration; REGISTRY=…
	@$(BIN)/python -m images $(REGISTRY)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(if $(filter cpu,$(TORCH_BACKEND)),$(BIN)/mypy,@echo "mypy: not run, the types of SkyPilot are in the CPU's list alone")

bench: $(READY)  ## every benchmark: a table and a line of JSON each
	@for name in $(BENCHMARKS); do $(BIN)/python -m tests.benchmarks.$$name; done

# The stamp comes last: an install that was interrupted leaves none, and is taken up again.
HAS_HEADERS := import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())
IS_RIGHT := import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(PYTHON_VERSION)")
$(READY): $(LIST) Makefile
	@"$(PYTHON)" -c '$(IS_RIGHT)' 2>/dev/null || { \
	  echo "Baton's pinned list is for Python $(PYTHON_VERSION), and $(PYTHON) is not that. Install it (Debian, Ubuntu:" >&2; \
	  echo "apt-get install python$(PYTHON_VERSION)-venv) or name it: make PYTHON=/path/to/python$(PYTHON_VERSION)" >&2; exit 2; }
	@"$(PYTHON)" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || { \
	  echo "vLLM needs libnuma, which is not here (Debian, Ubuntu: apt-get install libnuma1)" >&2; exit 2; }
ifeq ($(TORCH_BACKEND),cuda)
	@command -v "$${CC:-gcc}" >/dev/null && "$(PYTHON)" -c '$(HAS_HEADERS)' || { \
	  echo "Triton compiles for the GPU with gcc and Python.h, and one of them is not here (Debian, Ubuntu: apt-get install" >&2; \
	  echo "gcc python$(PYTHON_VERSION)-dev)" >&2; exit 2; }
endif
	@rm -f $(VENV)/ready-*
	@$(BIN)/python -c 'import pip; $(IS_RIGHT)' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --no-deps uv==$(UV_VERSION)
	@$(if $(TORCH),echo "installing $(TORCH)"; $(UV) pip install --quiet --python $(BIN)/python --no-deps $(FROM) "$(TORCH)")
	@echo "installing $(LIST), $$(grep -c '^[a-z]' $(LIST)) packages: one to three minutes, once"
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --compile-bytecode -r $(LIST)
	@touch $@

# Every pinned list, made anew from its .in; the versions that stand are kept while they fit
# (delete a list, or a line of it, to take the newest). The images need no compiler: wheels alone.
COMPILE := $(UV) pip compile --quiet --custom-compile-command "make lock"
# these three of lm-eval's have no wheels, and are Python alone
BUILT := $(foreach name,sqlitedict word2number rouge-score,--no-binary $(name))
FOR_IMAGES := --python-version 3.12 --python-platform x86_64-manylinux_2_31 --only-binary :all: $(BUILT)
lock:  ## resolve requirements.in and images/*.in to their pinned lists
	$(COMPILE) --python-version 3.11 $(FROM) $(foreach name,torch torchvision torchaudio torchcodec,--no-emit-package $(name)) requirements.in -o requirements.txt
	for name in gpu connector mlflow; do $(COMPILE) $(FOR_IMAGES) images/$$name.in -o images/$$name.txt; done
	for family in data train serve post-train; do $(COMPILE) $(FOR_IMAGES) --no-annotate images/$$family.in -c images/gpu.txt -o images/$$family.txt; done

clean:  ## forget the environment and everything that was made (.baton)
	rm -rf $(VENV) .baton .mypy_cache .ruff_cache .pytest_cache .hypothesis
