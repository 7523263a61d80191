# One command each, on a machine with Python 3.11+ and make: the first run creates .venv and installs into it.
# Another interpreter: make test PYTHON=python3.12. Other options for pytest: make test PYTEST="-k order".
# For the benchmark: make bench BENCH="--device cuda --only cifar-epoch".

PYTHON ?= python3
PYTEST ?= -n 2
BENCH  ?=
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench clean

help:
	@echo "make demo    reflection, annuli and memory in quick form, and the page that shows them (out/demo/report.html)"
	@echo "make test    linters, type checker, import directions, and the whole test suite"
	@echo "make lint    the same without the test suite"
	@echo "make format  let ruff format the tree and fix what it can"
	@echo "make bench   measure ncode beside torchdiffeq, torchode and diffrax"
	@echo "make clean   remove .venv, out and every cache"

demo: $(VENV)/with-lab
	$(BIN)/ncode demo

test: lint
	$(BIN)/python -m pytest $(PYTEST)

lint: $(VENV)/with-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

format: $(VENV)/with-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# In an environment of its own: what torchode needs and what the command line needs exclude one another.
bench:
	@$(MAKE) --no-print-directory VENV=.venv-bench .venv-bench/with-bench
	.venv-bench/bin/python -m benchmarks $(BENCH)

clean:
	rm -rf $(VENV) .venv-bench out dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# .venv/with-EXTRA says that the extra is installed as pyproject.toml and constraints.txt now ask for it.
$(VENV)/with-%: pyproject.toml lab/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing $(or $(INSTALL_$*),.[$*]) into $(VENV); the first time takes a few minutes"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt $(foreach it,$(or $(INSTALL_$*),.[$*]),--editable '$(it)')
	@touch $@

INSTALL_lab := . ./lab
INSTALL_dev := .[dev] ./lab[all]

.PRECIOUS: $(VENV)/with-%

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ncode needs Python 3.11 or newer, and '$(PYTHON)' is not one; name another: make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
