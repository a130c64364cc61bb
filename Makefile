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

# Percent of the library's lines that the tests must reach; raise it when more is reached.
COVERAGE := 94

.PHONY: help demo test check bench others lint types fast docs gpu dist hooks clean

help:
	@echo "make demo   values a data set under differential privacy and shows the result"
	@echo "make test   lint, types and all tests, with coverage"
	@echo "make check  lint, types and the fast tests"
	@echo "make docs   the tests of what the documentation says"
	@echo "make gpu    the tests that need a GPU"
	@echo "make dist   builds wheel and sdist in dist/, and runs the demonstration from the wheel"
	@echo "make hooks  lets git run lint and types before each commit"
	@echo "make bench  times the engine beside the literal algorithm, and writes benchmarks/results/cpu.json"
	@echo "make others sets up the libraries that benchmarks/others.py compares with, each in an environment of its own"
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

# Libraries that are only compared with have environments of their own, as they need other versions than ours.
$(VENV)-pydvl/.installed: NEEDS := "pydvl==0.10.0" "numpy<2"
$(VENV)-shapiq/.installed: NEEDS := "shapiq==1.4.1"
# Without what it asks for: that goes with a torch of 2023. benchmarks/other_libraries/by_opendataval.py does without the rest.
$(VENV)-opendataval/.installed: NEEDS := --no-deps "opendataval==1.3.0"
$(VENV)-opendataval/.installed: FIRST := "torch==2.13.0" "numpy<2" "pandas<3" "scikit-learn<1.6" tqdm matplotlib requests
$(VENV)-%/.installed:
	$(PYTHON) -m venv --clear $(@D)
	$(if $(FIRST),PIP_CONSTRAINT= $(@D)/bin/python -m pip install --quiet $(FIRST))
	PIP_CONSTRAINT= $(@D)/bin/python -m pip install --quiet $(NEEDS)
	@touch $@

others: $(VENV)/.installed $(VENV)-pydvl/.installed $(VENV)-opendataval/.installed $(VENV)-shapiq/.installed

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/mypy

fast: $(VENV)/.installed
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not slow" src tests

check: lint types fast

test: lint types
	$(BIN)/python -m pip check
	$(BIN)/pytest -n $(WORKERS) --cov=dpvalue --cov-report=term:skip-covered --cov-fail-under=$(COVERAGE) src tests

docs: $(VENV)/.installed
	$(BIN)/pytest tests/journeys/test_docs.py tests/journeys/test_package.py::test_the_readmes_python_runs

gpu: $(VENV)/.installed
	$(BIN)/pytest -m gpu tests/engine/test_gpu.py

# The wheel is tried in an environment that borrows dependencies from ours, but cannot see the source.
PURELIB := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
dist: $(VENV)/.installed
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m venv build/venv
	build/venv/bin/python -m pip install --quiet --no-deps dist/*.whl
	$(BIN)/python $(PURELIB) > "$$(build/venv/bin/python $(PURELIB))/borrowed.pth"
	build/venv/bin/dpvalue demo --out build/demo

hooks: $(VENV)/.installed
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) $(VENV)-pydvl $(VENV)-opendataval $(VENV)-shapiq .mypy_cache .pytest_cache .ruff_cache .coverage .coverage.* dist build
