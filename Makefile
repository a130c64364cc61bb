# Two commands do everything: make demo, make test. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The lock holds for the build environments that pip makes as well.
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# One thread per worker: tiny tensor operations crawl when several threads share two cores.
export OMP_NUM_THREADS ?= 1
WORKERS ?= 2

.PHONY: help demo test check bench lint types fast clean

help:
	@echo "make demo   values a data set under differential privacy and shows the result"
	@echo "make test   lint, types and all tests"
	@echo "make check  lint, types and the fast tests"
	@echo "make bench  times the engine beside the literal algorithm, and writes benchmarks/results/cpu.json"
	@echo "make clean  removes the virtual environment and caches"

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dpvalue needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/dpvalue demo

bench: $(VENV)/.installed $(VENV)-pydvl/.installed
	DPVALUE_PYDVL_PYTHON=$(VENV)-pydvl/bin/python $(BIN)/dpvalue bench cpu --json benchmarks/results/cpu.json

# pyDVL needs other versions than ours: an environment of its own, only to be compared with.
$(VENV)-pydvl/.installed:
	$(PYTHON) -m venv --clear $(VENV)-pydvl
	PIP_CONSTRAINT= $(VENV)-pydvl/bin/python -m pip install --quiet "pydvl==0.10.0" "numpy<2"
	@touch $@

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

fast: $(VENV)/.installed
	$(BIN)/pytest -n $(WORKERS) -m "not slow" src tests

check: lint types fast

test: lint types
	$(BIN)/python -m pip check
	$(BIN)/pytest -n $(WORKERS) src tests

clean:
	rm -rf $(VENV) $(VENV)-pydvl .mypy_cache .pytest_cache .ruff_cache dist build
