# Each target works on a fresh clone, on a machine with make and Python 3.11 or newer: the first run creates .venv and
# installs the library, the lab and the tools into it. The help below lists the targets.
#
#   make test PYTHON=python3.12          another interpreter
#   make test PYTEST="-n 4 -k order"     other arguments for pytest
#   make bench BENCH="--device cuda"     arguments for the benchmark
#   make fuzz SEED=1 CALLS=100000        fuzz for hours; MINUTES=30 ends it earlier, WORKERS=16 uses more cores

PYTHON ?= python3
PYTEST ?= -n 2 --dist worksteal
BENCH  ?=
CALLS  ?= 5000
MINUTES ?= inf
WORKERS ?= 1
SEED   ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo docs check test test-fast test-library test-lab fuzz lint format bench clean

help:
	@echo "make demo          run three small experiments and write a report of them (out/demo/report.html)"
	@echo "make docs          build the documentation (out/docs/index.html), run its gallery and check its links"
	@echo "make check         lint and the fast tests: run it while you work (about 90 seconds)"
	@echo "make test          lint and all tests, and the documentation: what CI runs (under 12 minutes on 2 cores)"
	@echo "make test-fast     the fast tests alone"
	@echo "make test-library  the tests of the library, with the lab hidden from them"
	@echo "make test-lab      the tests of the lab"
	@echo "make fuzz          random problems and mutated files against references, with new examples in every run"
	@echo "make lint          linter, formatter, type checker and import contracts"
	@echo "make format        format the code and fix what the linter can fix"
	@echo "make bench         time the solver against torchdiffeq, torchode and diffrax"
	@echo "make clean         remove environments, build output, caches and out/ (runs/ and sweeps/ stay)"

demo: $(VENV)/with-lab
	$(BIN)/ncode demo

docs: $(VENV)/with-docs
	$(BIN)/python docs/_site

# Side by side, since the type checker uses one core.
check: $(VENV)/with-dev
	@$(MAKE) --no-print-directory -j 2 lint test-fast

test-fast: $(VENV)/with-dev
	$(BIN)/python -m pytest $(PYTEST) -m "not slow"

test: lint test-library test-lab docs

# Exit status 5 means that PYTEST selected no test here, as `-k` may.
test-library: $(VENV)/with-dev
	PYTHONPATH='$(CURDIR)/tests/without_lab' $(BIN)/python -m pytest $(PYTEST) tests src || test $$? -eq 5

test-lab: $(VENV)/with-dev
	$(BIN)/python -m pytest $(PYTEST) lab/tests lab/src || test $$? -eq 5

fuzz: SEED := $(SEED)
fuzz: $(VENV)/with-dev
	@echo "to repeat this run: make fuzz SEED=$(SEED)"
	$(BIN)/python -m pytest $(PYTEST) -m hypothesis --hypothesis-profile=fuzz --hypothesis-seed=$(SEED) \
		--ignore=tests/fuzz --ignore=lab/tests/fuzz
	$(BIN)/python tests/fuzz/run.py --seed $(SEED) --calls $(CALLS) --minutes $(MINUTES) \
		--workers $(WORKERS)

lint: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(VENV)/with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own, since torchode and the lab need different versions of one package.
bench:
	@$(MAKE) --no-print-directory VENV=.venv-bench .venv-bench/with-bench
	.venv-bench/bin/python -m benchmarks $(BENCH)

clean:
	rm -rf .venv .venv-bench out dist build lab/dist lab/build .coverage
	find . \( -name __pycache__ -o -name '*.egg-info' -o -name .pytest_cache -o -name .ruff_cache -o -name .hypothesis \
		-o -name .import_linter_cache \) -type d -prune -exec rm -rf {} +

# The files .venv/with-lab, with-dev, with-docs and with-bench record what is installed; a change of pyproject.toml or
# constraints.txt installs it again.
INSTALL_lab   := . ./lab
INSTALL_dev   := .[dev] ./lab[all]
INSTALL_docs  := .[docs] ./lab
INSTALL_bench := .[bench]

.PRECIOUS: $(VENV)/with-%
$(VENV)/with-%: pyproject.toml lab/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing $(INSTALL_$*) into $(VENV); the first time takes a few minutes"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt $(foreach package,$(INSTALL_$*),--editable '$(package)')
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ncode needs Python 3.11 or newer, but '$(PYTHON)' is older: try make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
