# `make demo` and `make test` do everything on a fresh machine that has git, make, a C++20 compiler and Python 3.11 or
# newer. What they install goes to .venv; stamp files there make a second run quick.

# `make demo TORCH="torch==2.13.0 --index-url URL"` chooses another build of PyTorch.
TORCH ?= torch==2.13.0
TORCHVISION ?= torchvision==0.28.0
GPU ?= rtx-3060
FUZZ_SECONDS ?= 60

# CUDA builds of PyTorch for the tests of the phantom GPU, one release of each CUDA major version.
CUDA13_TORCH ?= torch==2.12.0 torchvision==0.27.0 'transformers>=5' accelerate
CUDA12_TORCH ?= torch==2.6.0 torchvision==0.21.0 transformers==4.51.3 'accelerate<1.8' 'numpy<2.3'
# The oldest release that captures take: tested each night.
OLDEST_TORCH ?= torch==2.5.1 torchvision==0.20.1 transformers==4.51.3 'accelerate<1.8' 'numpy<2.3'
# Of the tests of its batch finder, beside those: it asks for nothing of torch's that they do not have.
LIGHTNING ?= lightning pytorch-lightning lightning-utilities torchmetrics
CUDA12_CUDNN ?= nvidia-cudnn-cu12==9.8.0.87

VENV := .venv
STAMPS := $(VENV)/stamps
PIP_INSTALL := -m pip --disable-pip-version-check --quiet install $(INSTALL_OPTIONS)
PIP := $(VENV)/bin/python $(PIP_INSTALL)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

PYTHON ?= .venv-cuda12/bin/python
ACCURACY = --csv $(or $(RUNS),$(error name the file of runs: make accuracy RUNS=FILE.csv)) --python $(PYTHON) $(CUDNN:%=--cudnn %)

# One worker a core; a file's tests stay together, as they share what was captured for them.
PYTEST := pytest -q --numprocesses auto --dist loadfile

PHANTOM_PYTEST = \
	XMEM_PHANTOM_PYTHONS=$(CURDIR)/.venv-cuda13/bin/python:$(CURDIR)/.venv-cuda12/bin/python \
	XMEM_PHANTOM_CUDNN=$(CURDIR)/.venv-cuda12/cudnn/nvidia/cudnn/lib/libcudnn.so.9 \
	XMEM_LIGHTNING=$(CURDIR)/.venv-cuda13/lightning \
	$(PYTEST)

CPP_FILES = git ls-files --cached --others --exclude-standard -- '*.cpp' '*.hpp'

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test setup format check-format lint types test-cpp test-sanitized cross-compile fuzz test-python \
	test-phantom test-stacks test-nightly docs bench bench-others accuracy scoreboard wheels wheel wheel-smoke release-check sdist clean

help:  ## Print this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

# --- what users run -------------------------------------------------------------------------------------------------

demo: $(STAMPS)/xmem $(STAMPS)/torch $(STAMPS)/cudnn  ## Estimate two real training scripts, with all the set-up that it takes
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
	folder=$$(sh tools/sanitized_build.sh) && ctest --test-dir "$$folder" --output-on-failure --parallel "$$(nproc)"

docs: $(STAMPS)/xmem build/gallery/ready  ## Build the site of docs/ into build/site; a broken link fails
	$(PIP) --group docs
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=tools mkdocs build --strict

# The compiler is of a wheel, a hundred megabytes.
cross-compile: $(STAMPS)/build  ## Compile the core and its tests for macOS, Windows and AArch64
	$(PIP) --group cross
	python tools/cross_compile.py

# Versions of Python that are not on PATH: HEADERS=DIR with python3.X/Python.h, or leave them out with PYTHONS.
wheels: $(STAMPS)/wheels  ## Build wheels for TARGETS and PYTHONS (default all) into dist, and check them
	python tools/wheels.py $(if $(TARGETS),--targets $(TARGETS)) $(if $(PYTHONS),--pythons $(PYTHONS)) $(HEADERS:%=--headers %)
	python tools/check_distributions.py dist/*.whl

wheel: $(STAMPS)/wheels  ## Build the wheel of this system and this Python into dist/here, with its own compiler
	python tools/sbom.py here build/sbom.json
	python -m build --wheel --no-isolation --outdir dist/here -C cmake.define.XMEM_SBOM=$(CURDIR)/build/sbom.json

sdist: $(STAMPS)/wheels  ## Build the source distribution into dist, and a wheel of it in an empty environment
	rm -rf build/sdist dist/*.tar.gz
	python -m build --sdist --no-isolation
	python tools/check_distributions.py dist/*.tar.gz
	sh tools/make_venv.sh build/sdist/env
	env -u VIRTUAL_ENV build/sdist/env/bin/python $(PIP_INSTALL) --no-deps dist/*.tar.gz
	cd build/sdist && env/bin/python -c "import xmem._core"

release-check:  ## Check that TAG=vX.Y.Z names the version, and that the changelog has it
	test "$(TAG)" = "v$$(sed -n 's/^__version__ = "\([^"]*\)".*/\1/p' python/xmem/__init__.py)"
	grep -q '^## $(TAG:v%=%)' CHANGELOG.md

wheel-smoke: $(STAMPS)/venv  ## Install the wheel into an empty environment, without a compiler, and run every command
	python tools/wheel_smoke.py dist $(if $(TORCH),--torch "$(TORCH)") $(PHANTOM_PYTHON:%=--phantom-python %)

fuzz: $(STAMPS)/build $(STAMPS)/xmem  ## Fuzz the core and the commands for FUZZ_SECONDS each, or the same FUZZ_RUNS inputs each
	sh tools/fuzz.sh $(if $(FUZZ_RUNS),runs $(FUZZ_RUNS),seconds $(FUZZ_SECONDS))
	python tests/fuzz/fuzz_commands.py $(if $(FUZZ_RUNS),--runs $(FUZZ_RUNS),--seconds $(FUZZ_SECONDS) --seed $$(date +%s))

test-python: $(STAMPS)/xmem $(STAMPS)/develop $(STAMPS)/models  ## Run the Python tests
	$(PYTEST) -m 'not nightly'

test-phantom: $(STAMPS)/xmem $(STAMPS)/develop .venv-cuda13/ready .venv-cuda12/ready  ## Test on CUDA builds of torch
	$(PHANTOM_PYTEST) -m 'not nightly' tests/phantom tests/oracle

# A result that nothing has changed since is kept in .stacks, so a second try goes on where the first ended.
test-stacks: $(STAMPS)/xmem $(STAMPS)/develop  ## Run popular training stacks, or those with STACKS=PATTERN in their names
	for name in $$(cd tests && python -m stacks --environments '$(STACKS)'); do \
	  $(MAKE) --no-print-directory .venv-stacks/$$name/ready || exit 1; done
	cd tests && python -m stacks '$(STACKS)'
	$(if $(STACKS),,cd tests && python -m stacks.page)
	XMEM_STACKS='$(STACKS)' pytest -q tests/stacks

test-nightly: test-cpp test-stacks $(STAMPS)/xmem $(STAMPS)/develop .venv-cuda13/ready .venv-cuda12/ready .venv-oldest/ready  ## Stacks, fuzzing, and long runs of the allocator's tests
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=1200
	$(PHANTOM_PYTEST) -m nightly
	XMEM_PHANTOM_CUDNN=$(CURDIR)/.venv-cuda12/cudnn/nvidia/cudnn/lib/libcudnn.so.9 \
	  XMEM_PHANTOM_PYTHONS=$(CURDIR)/.venv-cuda13/bin/python:$(CURDIR)/.venv-oldest/bin/python \
	  $(PYTEST) -k venv-oldest tests/phantom
	python tests/fuzz/interrupt_captures.py --runs 200 --python .venv-cuda13/bin/python
	cd tests && python -m property.long_run --programs 100000
	XMEM_HYPOTHESIS_EXAMPLES=10000 pytest -q tests/property/test_allocator_against_reference.py
	XMEM_HYPOTHESIS_EXAMPLES=1000 pytest -q tests/property/test_core_against_reference.py
	cd tests && XMEM_PHANTOM_PYTHONS=$(CURDIR)/.venv-cuda13/bin/python:$(CURDIR)/.venv-cuda12/bin/python \
	  python -m oracle.programs --processes 20 --programs 250
	cd tests && XMEM_PHANTOM_PYTHONS=$(CURDIR)/.venv-cuda13/bin/python:$(CURDIR)/.venv-cuda12/bin/python \
	  python -m oracle.jobs --jobs 100
	cd tests && python -m oracle --settings 60 --requests 20000 \
	  --python $(CURDIR)/.venv-cuda13/bin/python --python $(CURDIR)/.venv-cuda12/bin/python

# xmem is installed as users do: an editable install looks for changed sources at every start.
bench: export VIRTUAL_ENV := $(CURDIR)/.venv-bench
bench: export PATH := $(CURDIR)/.venv-bench/bin:$(PATH)
bench: .venv-bench/ready  ## Measure reading and estimating beside other readers; FULL=1 everything
	python $(PIP_INSTALL) --no-build-isolation .
	cmake --workflow --preset bench
	python bench/run.py --raw-simdjson build/bench/bench/raw_simdjson $(if $(FULL),--full) $(BENCH_OPTIONS)

bench-others: $(STAMPS)/xmem $(STAMPS)/torch  ## Measure what a capture costs, and a search for settings
	python bench/bench_capture_overhead.py
	python bench/bench_tune.py

# RUNS=FILE.csv has the columns of bench/accuracy/runs.py. PYTHON is that of the environment that the runs used, CUDNN a
# libcudnn.so.9 to plan in place of its own. What is captured stays in .accuracy, so a second try goes on.
accuracy: $(STAMPS)/xmem .venv-cuda12/ready  ## Estimate the measured runs in RUNS in every way, and score that
	python bench/accuracy/captures.py $(ACCURACY)
	python bench/accuracy/estimates.py $(ACCURACY) -o .accuracy/estimates.csv
	xmem-fast validate --runs $(RUNS) --estimates .accuracy/estimates.csv --html .accuracy/scorecard.html \
	  --explanations bench/accuracy/explanations.toml
	python bench/accuracy/accuracy_page.py --runs $(RUNS) --estimates .accuracy/estimates.csv --docs docs/accuracy.md

# DATA is a folder of published figures, PROJECT one of bench/scoreboard/projects, ONLY a part of the names of jobs. Our figures
# go to bench/scoreboard/figures; those that earlier versions made are made again with FRESH=1.
scoreboard: $(STAMPS)/xmem $(STAMPS)/develop $(patsubst bench/scoreboard/environments/%.txt,.venv-scoreboard/%/ready,$(wildcard bench/scoreboard/environments/*.txt))  ## Score published figures of real GPUs in DATA [PROJECT=NAME] [ONLY=TEXT]
	cd bench && python -m scoreboard $(PROJECT) $(ONLY:%=--only %) $(if $(FRESH),,--stale) \
	  --data $(or $(DATA),$(error name the folder of published figures: make scoreboard DATA=FOLDER)) \
	  --folder $(CURDIR)/.scoreboard --environments $(CURDIR)/.venv-scoreboard --page $(CURDIR)/docs/scoreboard.md

clean:  ## Remove what was built and installed here
	rm -rf $(VENV) .venv-bench .venv-cuda12 .venv-cuda13 .venv-oldest .venv-stacks .venv-scoreboard .stacks .accuracy .occupancy .scoreboard build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# --- set-up, each step once -----------------------------------------------------------------------------------------

$(STAMPS)/venv:
	sh tools/make_venv.sh $(VENV)
	$(PIP) --upgrade 'pip>=25.1'
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: $(STAMPS)/venv pyproject.toml
	$(PIP) --group build
	touch $@

# Of the site: estimates of the demo scripts, with pictures where there is a browser.
build/gallery/ready: $(STAMPS)/torch $(STAMPS)/xmem $(STAMPS)/develop tools/gallery.py examples/train_gpt2.py examples/train_resnet.py
	python tools/gallery.py build/gallery
	touch $@

$(STAMPS)/wheels: $(STAMPS)/build pyproject.toml
	$(PIP) --group wheels
	touch $@

# An editable install looks for changed sources of the core at every start, and builds them; the stamp follows what it cannot
# see. REBUILD=false is for a tree that does not change: thousands of commands of the tests start twice as fast.
$(STAMPS)/xmem: $(STAMPS)/build CMakeLists.txt
	$(PIP) --no-build-isolation --editable . -C editable.rebuild=$(or $(REBUILD),true)
	touch $@

$(STAMPS)/torch: $(STAMPS)/venv
	$(PIP) $(TORCH)
	touch $@

# A gigabyte, that convolutions are planned as on the GPU. Where there is no such wheel, typical workspaces stand in.
$(STAMPS)/cudnn: $(STAMPS)/xmem
	$(PIP) --no-build-isolation --editable '.[cudnn-cu13]' \
	  || echo "make: cuDNN could not be installed; workspaces of convolutions are typical values"
	touch $@

$(STAMPS)/develop: $(STAMPS)/venv pyproject.toml
	$(PIP) --group lint --group test --group browser
	touch $@

# torchvision without its dependencies: its wheel asks for one certain build of torch.
$(STAMPS)/models: $(STAMPS)/torch pyproject.toml
	$(PIP) --group models
	$(PIP) --no-deps $(TORCHVISION)
	touch $@

.venv-bench/ready: pyproject.toml
	sh tools/make_venv.sh .venv-bench
	.venv-bench/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	.venv-bench/bin/python $(PIP_INSTALL) --group build --group bench
	touch $@

# Several gigabytes each. The CUDA builds are those of the package index: what local files shadow it is left out.
.venv-cuda13/ready: Makefile
	sh tools/make_venv.sh .venv-cuda13
	PIP_FIND_LINKS= .venv-cuda13/bin/python $(PIP_INSTALL) $(CUDA13_TORCH)
	PIP_FIND_LINKS= .venv-cuda13/bin/python $(PIP_INSTALL) --no-deps --target .venv-cuda13/lightning $(LIGHTNING)
	touch $@

.venv-cuda12/ready: Makefile
	sh tools/make_venv.sh .venv-cuda12
	PIP_FIND_LINKS= .venv-cuda12/bin/python $(PIP_INSTALL) $(CUDA12_TORCH)
	PIP_FIND_LINKS= .venv-cuda12/bin/python $(PIP_INSTALL) --no-deps --target .venv-cuda12/cudnn $(CUDA12_CUDNN)
	touch $@

.venv-oldest/ready: Makefile
	sh tools/make_venv.sh .venv-oldest
	PIP_FIND_LINKS= .venv-oldest/bin/python $(PIP_INSTALL) $(OLDEST_TORCH)
	touch $@

# Of the scoreboard. Several gigabytes each.
.venv-scoreboard/%/ready: bench/scoreboard/environments/%.txt
	sh tools/make_venv.sh .venv-scoreboard/$*
	PIP_FIND_LINKS= .venv-scoreboard/$*/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	PIP_FIND_LINKS= .venv-scoreboard/$*/bin/python $(PIP_INSTALL) --requirement $<
	touch $@

# Of the stacks' tests. Several gigabytes each too.
.venv-stacks/%/ready: tests/stacks/environments/%.txt
	sh tools/make_venv.sh .venv-stacks/$*
	PIP_FIND_LINKS= .venv-stacks/$*/bin/python $(PIP_INSTALL) --upgrade 'pip>=25.1'
	PIP_FIND_LINKS= .venv-stacks/$*/bin/python $(PIP_INSTALL) --requirement $<
	touch $@
