# Two commands: `make demo` and `make test`. Both create the environment first, once.
#
#   PYTHON=/path/to/python3.11   the environment's interpreter; default: python3.11 on PATH, else one that uv finds or downloads
#   TORCH_BACKEND=cuda           a machine with an NVIDIA GPU: Python 3.12 and images/gpu.txt
#   PIP_FIND_LINKS=DIR           where torch's CPU build is, if not on PyTorch's index
#   RECIPE=FILE                  another recipe for `make demo`
#   CHECK='--only sft'           options of `make gpu-check`; see baton gpu-check --help
#   WORKERS=N                    processes of `make test`; three share two cores, since they wait a third of the time
#   TESTS="FOLDER …"             a part of the tests for `make test` and `make test-long`
#   VENV=FOLDER                  where the environment is, if one clone has both

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
RECIPE ?= workflows/recipes/demo.yaml
WORKERS ?= 3
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
.PHONY: help demo gpu-check gpu-environment ui schedule docs test test-long test-placement test-rented test-ui test-continuous test-serve test-cluster test-images test-clouds test-crash fuzz parity survive images lint bench lock clean

# without .pyc files the large libraries load several times slower
unexport PYTHONDONTWRITEBYTECODE
# the demo's recipe needs no hub, so nothing may contact one; another recipe may need it
ifeq ($(RECIPE),workflows/recipes/demo.yaml)
export HF_HUB_OFFLINE ?= 1
endif

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(READY)  ## raw text to a GRPO-tuned, published model: some 7 minutes the first time
	@$(BIN)/pyflyte run workflows/pretrain_to_rl.py pretrain_to_rl --recipe $(RECIPE)
	@echo "For commands of your own, activate the environment first:  . $(BIN)/activate"

gpu-check: $(READY)  ## try and time every stage on this machine's GPU; 20 minutes
	@$(BIN)/baton gpu-check $(CHECK)

ui: $(READY)  ## serve the lineage pages and MLflow's on http://127.0.0.1:5000/lineage
	@$(BIN)/baton ui

schedule: $(READY)  ## run continuous training by its cron expressions, without a Flyte cluster; BATON_CONTINUOUS=FILE: another recipe
	@$(BIN)/baton schedule

gpu-environment:  ## the versions for GPUs in .venv-cuda, with the Python 3.12 that PYTHON_3_12 names; 10 GB
	@$(MAKE) --no-print-directory .venv-cuda/ready-cuda TORCH_BACKEND=cuda VENV=.venv-cuda PYTHON=$(or $(PYTHON_3_12),python3.12)

DOCS := $(VENV)-docs
docs: $(DOCS)/ready  ## build the documentation in site/, with every link checked
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --quiet
	@echo "site/index.html"

$(DOCS)/ready: images/docs.txt | $(READY)
	@$(UV) venv --quiet --clear --python $(BIN)/python $(DOCS)
	@$(UV) pip install --quiet --python $(DOCS)/bin/python --no-deps -r images/docs.txt
	@touch $@

test: lint  ## lint, then the tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

test-long: $(READY)  ## tests that take minutes each: parity on four processes, dying and hung ranks, servers, killed pods, the examples
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "long and not slow" $(TESTS)

test-placement: $(READY)  ## placed stages on two real Slurm clusters in namespaces; needs root, 45 minutes
	tests/placement/run.sh slurm

# a part of it: TESTS=tests/placement/cloud/test_keys.py, TESTS='-k ctrl_c', TESTS='-m rented' as in CI
test-rented: $(READY)  ## placed stages on the APIs of AWS and Lambda with machines of namespaces behind them; needs root, hours
	tests/placement/run.sh cloud $(TESTS)

test-ui: $(READY)  ## the lineage pages in Chromium and on PostgreSQL, from Debian's packages; ten minutes
	@command -v chromium >/dev/null && ls -d /usr/lib/postgresql/*/bin >/dev/null 2>&1 || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium postgresql fonts-dejavu-core >/dev/null; }
	$(BIN)/python -m pytest -m slow tests/lineage

test-continuous: $(READY)  ## five simulated days of continuous training, tuning after a promotion, a custom evaluator; 15 minutes
	$(BIN)/python -m pytest -m slow tests/workflows

test-serve: $(READY)  ## the champion's service with vLLM: switched under 16 clients, killed, without its registry; five minutes
	$(BIN)/python -m pytest -m slow tests/serve

test-cluster: $(READY)  ## the whole chain in pods that share nothing, 30 of them killed; two hours
	$(BIN)/python -m pytest -m slow tests/cluster

test-images: $(READY)  ## the chain with each stage in its image, five killed, and compose.yaml's services; root on Debian
	@for each in dockerd docker-compose docker-registry mmdebstrap; do command -v $$each >/dev/null || missing=1; done; [[ ! $${missing-} ]] || { \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends docker.io docker-compose docker-registry mmdebstrap >/dev/null; }
	$(BIN)/python -m pytest -m images $(or $(TESTS),tests/cluster)

# Azure's emulator is a Node program; Google's is a Python package that conflicts with our environment
CLOUDS := $(VENV)/clouds
test-clouds: $(READY)  ## Azure's and Google's storage on their emulators; needs npm, a minute
	@test -x $(CLOUDS)/bin/gcp-storage-emulator || { \
	  $(BIN)/python -m venv $(CLOUDS) && $(CLOUDS)/bin/pip install -qq gcp-storage-emulator==2026.7.19; }
	@test -x $(CLOUDS)/node_modules/.bin/azurite-blob || npm install --prefix $(CLOUDS) --silent --no-audit --no-fund azurite@3.37.0
	$(BIN)/python -m pytest -m slow tests/placement/test_clouds.py

# strace records what a program writes and syncs
test-crash: $(READY)  ## replay power cuts at every point of five programs: nothing that a manifest lists is lost
	@command -v strace >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends strace >/dev/null; }
	$(BIN)/python -m pytest -m crash tests/crash

fuzz: $(READY)  ## fuzz recipes, configs, pickles and HTTP; BATON_FUZZ=N cases each
	$(BIN)/python -m pytest -m fuzz

parity: $(READY)  ## compare every parallel layout on up to 8 processes with one process; hours on two cores
	$(BIN)/python -m pytest -m slow tests/pretrain/test_parity.py
	$(BIN)/python -m pytest -m "long or slow" tests/posttrain/test_parity.py

survive: $(READY)  ## kill -9 at random moments in every kind of layout, all chains of layouts; half an hour
	$(BIN)/python -m pytest -m slow tests/pretrain/test_kills.py tests/pretrain/test_reshard.py \
	  tests/pretrain/test_continue.py tests/pretrain/test_pods.py tests/pretrain/test_nodes.py tests/posttrain/test_nodes.py
	$(BIN)/python -m pytest -m slow tests/posttrain/test_kills.py

images: $(READY)  ## build and push the pods' images with Docker and pin them in Flyte's configuration; REGISTRY=…
	@$(BIN)/baton images $(REGISTRY)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(if $(filter cpu,$(TORCH_BACKEND)),$(BIN)/mypy,@echo "mypy: skipped, SkyPilot's types are in the CPU list alone")

bench: $(READY)  ## run every benchmark: a table and a line of JSON each
	@for name in $(BENCHMARKS); do $(BIN)/python -m tests.benchmarks.$$name; done

IS_RIGHT := import sys; sys.exit("%d.%d" % sys.version_info[:2] != "$(PYTHON_VERSION)")
HAS_NUMA := import ctypes; ctypes.CDLL("libnuma.so.1")
HAS_HEADERS := import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())

STEPS := $(if $(TORCH),4,3)
# uv shows its progress as bars in a terminal, and as lines elsewhere, of which those that list every package are left out
INSTALL = $(UV) pip install --python $(BIN)/python --no-deps
install = if [[ -t 2 ]]; then $(INSTALL) $(1); else $(INSTALL) $(1) 2>&1 | sed -u '/^ [+-] /d' >&2; fi

# All that the machine must have is checked here, before anything is created, and all that is missing is reported at
# once. The stamp comes last, so that an interrupted installation is resumed. uv's own Pythons have headers.
$(READY): $(LIST) Makefile
	@echo "1/$(STEPS) checking this machine"
	@if "$(PYTHON)" -c '$(IS_RIGHT)' 2>/dev/null; then python="$(PYTHON)"; \
	elif [[ "$(origin PYTHON)" == file ]]; then python=python3; \
	else echo "Baton's packages are pinned for Python $(PYTHON_VERSION), and $(PYTHON) is not that: leave PYTHON out, or name" >&2; \
	  echo "another: make PYTHON=/path/to/python$(PYTHON_VERSION)" >&2; exit 2; fi; \
	missing=() packages=(); lacks() { missing+=("$$1"); packages+=("$$2"); }; \
	if "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  "$$python" -c '$(HAS_NUMA)' 2>/dev/null || lacks "libnuma (for vLLM)" libnuma1; \
	else lacks "Python 3 with venv" $$([[ $$python == python3 ]] && echo python3-venv || echo python$(PYTHON_VERSION)-venv); fi; \
	if [[ $(TORCH_BACKEND) == cuda ]]; then \
	  command -v "$${CC:-gcc}" >/dev/null || lacks "a C compiler (for Triton)" gcc; \
	  [[ $$python == python3 ]] || "$$python" -c '$(HAS_HEADERS)' || lacks "Python.h (for Triton)" python$(PYTHON_VERSION)-dev; fi; \
	((!$${#missing[@]})) || { \
	  printf 'missing on this machine:\n' >&2; printf '  %s\n' "$${missing[@]}" >&2; \
	  echo "Debian, Ubuntu: apt-get install $${packages[*]}" >&2; exit 2; }
	@echo "2/$(STEPS) creating $(VENV) and installing uv in it"
	@rm -f $(VENV)/ready-*
	@$(BIN)/python -c 'import pip; $(IS_RIGHT)' 2>/dev/null || \
	if "$(PYTHON)" -c '$(IS_RIGHT)' 2>/dev/null; then "$(PYTHON)" -m venv --clear $(VENV); else \
	  echo "$(PYTHON) is not on PATH: uv finds a Python $(PYTHON_VERSION), or downloads one"; \
	  python3 -m venv --clear $(VENV)-uv; \
	  $(VENV)-uv/bin/python -m pip install -qq --no-deps uv==$(UV_VERSION); \
	  $(VENV)-uv/bin/uv venv --quiet --clear --seed --python $(PYTHON_VERSION) $(VENV) || { \
	    echo "Install Python $(PYTHON_VERSION) (pyenv, conda, python.org; apt-get install python$(PYTHON_VERSION)-venv where the distribution has" >&2; \
	    echo "it), and name it: make PYTHON=/path/to/python$(PYTHON_VERSION)" >&2; exit 2; }; fi
	@$(BIN)/python -m pip install -qq --no-deps uv==$(UV_VERSION)
	@$(if $(TORCH),echo "3/$(STEPS) installing $(TORCH)"; $(call install,$(FROM) "$(TORCH)"))
	@echo "$(STEPS)/$(STEPS) installing $(LIST), $$(grep -c '^[a-z]' $(LIST)) packages: one to three minutes, once"
	@$(call install,--compile-bytecode -r $(LIST))
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

# Every pinned list, resolved from its .in; current versions are kept while they fit (delete a list, or a line
# of it, to take the newest). The images have no compiler: wheels only.
COMPILE := $(UV) pip compile --quiet --custom-compile-command "make lock"
# these three dependencies of lm-eval have no wheels, and are pure Python
BUILT := $(foreach name,sqlitedict word2number rouge-score,--no-binary $(name))
PLATFORM := --python-platform x86_64-manylinux_2_31 --only-binary :all: $(BUILT)
FOR_IMAGES := --python-version 3.12 $(PLATFORM)
LEFT_OUT := $(foreach name,torchvision torchaudio torchcodec,--no-emit-package $(name))
FOR_CPU := --python-version 3.11 $(PLATFORM) $(FROM) $(LEFT_OUT)
lock:  ## resolve requirements.in and images/*.in to their pinned lists
	$(COMPILE) --python-version 3.11 $(FROM) --no-emit-package torch $(LEFT_OUT) requirements.in -o requirements.txt
	$(COMPILE) --python-version $(PYTHON_VERSION) images/docs.in -o images/docs.txt
	for name in gpu connector mlflow; do $(COMPILE) $(FOR_IMAGES) images/$$name.in -o images/$$name.txt; done
	for family in data train serve post-train; do \
	  $(COMPILE) $(FOR_IMAGES) --no-annotate images/$$family.in -c images/gpu.txt -o images/$$family.txt; \
	  $(COMPILE) $(FOR_CPU) --no-annotate images/$$family.in -c requirements.txt -c <(echo "$(TORCH)") -o images/$$family-cpu.txt; done

clean:  ## delete the environment and all results (.baton)
	rm -rf $(VENV) $(VENV)-uv $(DOCS) site .baton .mypy_cache .ruff_cache .pytest_cache .hypothesis
