# `make demo` and `make test` do everything on a fresh machine that has git, make, a C++20 compiler and Python 3.11 or
# newer. What they install goes to .venv; stamp files there make a second run quick.

# `make demo TORCH="torch==2.13.0 --index-url URL"` chooses another build of PyTorch.
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
GPU ?= rtx-3060

VENV := .venv
STAMPS := $(VENV)/stamps
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet install
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

CPP_FILES = git ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test setup format check-format lint types test-cpp test-sanitized test-python bench clean

help:  ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

# --- what users run -------------------------------------------------------------------------------------------------

demo: $(STAMPS)/xmem $(STAMPS)/torch  ## Estimate two real training scripts, with all the set-up that it takes
	xmem-fast run --gpu $(GPU) -- python examples/train_gpt2.py
	xmem-fast run --gpu $(GPU) -- python examples/train_resnet.py

test: check-format lint types test-cpp test-sanitized test-python  ## Check everything, with all the set-up that it takes

# --- what developers run --------------------------------------------------------------------------------------------

setup: $(STAMPS)/xmem $(STAMPS)/develop $(STAMPS)/models  ## Set up .venv for development

format: $(STAMPS)/develop  ## Format C++ and Python
	$(CPP_FILES) | xargs -r clang-format -i
	ruff format
	ruff check --fix

check-format: $(STAMPS)/develop  ## Check the format of C++ and Python
	$(CPP_FILES) | xargs -r clang-format --dry-run -Werror
	ruff format --check

lint: $(STAMPS)/develop  ## Check style, layers of imports, layers of includes
	ruff check
	PYTHONPATH=python lint-imports
	python tools/check_includes.py

types: $(STAMPS)/develop $(STAMPS)/xmem  ## Check types
	mypy

test-cpp: $(STAMPS)/build  ## Build and run the C++ tests
	cmake --workflow --preset dev

test-sanitized: $(STAMPS)/build  ## The same under the address and undefined-behaviour sanitizers
	cmake --workflow --preset asan

test-python: $(STAMPS)/xmem $(STAMPS)/develop $(STAMPS)/models  ## Run the Python tests
	pytest -q

bench: $(STAMPS)/xmem $(STAMPS)/develop $(STAMPS)/torch  ## Run the benchmarks
	@set -e; for benchmark in bench/bench_*.py; do echo "== $$benchmark"; python $$benchmark; done

clean:  ## Remove what was built and installed here
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --- set-up, each step once -----------------------------------------------------------------------------------------

$(STAMPS)/venv:
	sh tools/make_venv.sh $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: $(STAMPS)/venv pyproject.toml
	$(PIP) --group build
	touch $@

# An editable install rebuilds the core itself when its sources change; the stamp follows what it cannot see.
$(STAMPS)/xmem: $(STAMPS)/build CMakeLists.txt
	$(PIP) --no-build-isolation --editable .
	touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) $(TORCH)
	touch $@

$(STAMPS)/develop: $(STAMPS)/venv pyproject.toml
	$(PIP) --group lint --group test
	touch $@

# torchvision without its dependencies: its wheel asks for one certain build of torch.
$(STAMPS)/models: $(STAMPS)/torch pyproject.toml
	$(PIP) --group models
	$(PIP) --no-deps $(TORCHVISION)
	touch $@
