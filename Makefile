# `make demo` and `make test` need only Python >= 3.11, make and git: they set up .venv from the lock themselves.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
JOBS ?= 2
PAPERS ?= kdd2004 sdm2004 icml2002 defaults costs genes inference scale large refinement

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# Each test worker and each Dask thread is one thread: BLAS pools on top of them only fight.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help setup demo papers test golden published lint format prove bench lock clean

help:
	@echo 'make demo     set up, then cluster 1,900 docstrings with 300 answers (under a minute)'
	@echo 'make papers   the experiments of the three papers (hours; ARGS=--quick: minutes; one: PAPERS=kdd2004)'
	@echo 'make test     set up, then run all tests (JOBS=2 at a time; one: make test ARGS=tests/test_cli.py)'
	@echo 'make golden   record the digests of all answers again, after a change that is meant to change them'
	@echo 'make published  write the JSON schemas and the table of parameters again, from the code'
	@echo 'make lint     ruff, formatting, spelling, docstrings, mypy --strict, the layers'
	@echo 'make prove    the full-size figures: proof.json and a table'
	@echo 'make bench    the speed, beside the peers (25 minutes; some rows: make bench ARGS="estep fit"; ARGS=--help)'
	@echo 'make setup    only set up $(VENV)'
	@echo 'make format   let ruff format and mend what it can'
	@echo 'make lock     pin the dependencies of pyproject.toml again (needs uv)'
	@echo 'make clean    remove caches and $(VENV)'

setup: $(STAMP)

# The stamp comes last, so a set-up that was interrupted starts again.
$(STAMP): requirements/lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, got " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	@echo 'setting up $(VENV) from requirements/lock.txt (a few minutes the first time) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/hmrf-dask demo $(ARGS)

papers: $(STAMP)
	@for one in $(PAPERS); do $(ONE_THREAD) $(BIN)/python -m pipelines.papers.$$one $(ARGS) || exit; done

test: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

golden: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -W ignore -m tests.golden

published: $(STAMP)
	$(BIN)/python -m tests.support.published

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/numpydoc lint $$(find hmrf_dask -name '*.py')
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

prove: $(STAMP)
	$(BIN)/python -m tests.proofs $(ARGS)

# OpenMP gets both cores: without a number scikit-learn takes one where two are threads of one.
bench: $(STAMP)
	@OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	    $(BIN)/python -W ignore -m tests.benchmarks $(ARGS)

# No --emit options: the lock must name no index, no path of this machine and no way it was made.
lock:
	@head -n 2 requirements/lock.txt > requirements/.lock.new
	uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --upgrade --generate-hashes \
	    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet >> requirements/.lock.new
	@mv requirements/.lock.new requirements/lock.txt

clean:
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist
	find hmrf_dask tests pipelines -name __pycache__ -type d -prune -exec rm -rf {} +
