# Two commands matter: `make serve` and `make test`. Both set up what they need; the second time that takes no time.
#   PYTHON=python3.12   build .venv on this interpreter        PLATFORM=cpu|cuda   instead of asking nvidia-smi
#   ARGS="--port 8000"  flags for the server, or for pytest in test-gpu
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
STAMP := $(VENV)/.ready-$(or $(PLATFORM),auto)

.PHONY: help setup serve test promises mutants soak test-gpu fuzz check format docs api-docs promises-page clean distclean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(STAMP): pyproject.toml setup.py scripts/setup $(wildcard constraints/*.txt)
	@PYTHON="$(PYTHON)" PLATFORM="$(PLATFORM)" TORCH_INDEX="$(TORCH_INDEX)" scripts/setup
	@touch $@

setup: $(STAMP)  ## make .venv with the pinned dependencies
	@:

serve: setup  ## serve the embedded model (or ARGS="--model-path ...") on 127.0.0.1:30000
	@exec $(VENV)/bin/python -m mysglang.launch_server $(ARGS)

test: setup  ## everything CI runs: style, types, layers, unit and server tests
	@scripts/test

promises: setup  ## the tests of the promises in docs/reliability.md
	@$(VENV)/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m promise $(ARGS)

mutants: setup  ## remove what keeps each promise and see that a test fails (ARGS="7 'a name'" for some); an hour
	@PYTHONPATH=python:sgl-kernel/python:test $(VENV)/bin/python -m mutants.run $(ARGS)

soak: setup  ## a storm of requests, faults and attacks for SOAK_MINUTES (30), and what it left behind
	@PYTHONPATH=python:sgl-kernel/python:test $(VENV)/bin/python -m chaos.soak

test-gpu: setup  ## the tests that need a CUDA device
	@$(VENV)/bin/python -m pytest test/gpu sgl-kernel/tests $(ARGS)

fuzz: setup  ## requests that nobody thought of, to every route; hours
	@$(VENV)/bin/python -m pytest -q test/server/test_api_fuzz.py test/server/test_stream_equals_whole.py --hypothesis-profile=fuzz -o faulthandler_timeout=0 $(ARGS)

check: setup  ## style, types and import layers only
	@scripts/check

format: setup  ## put every file, and every page, into the one style
	@scripts/format

docs: setup  ## build the docs site into site/; warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet --strict

api-docs: setup  ## write docs/flags.md and the tables of docs/api.md again
	@$(VENV)/bin/python scripts/write_api_docs.py

promises-page: setup  ## write the list of promises in docs/reliability.md anew, from the marks of the tests
	@$(VENV)/bin/python scripts/write_promises.py

clean:  ## caches
	@rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site {python,sgl-kernel,sgl-kernel/python}/*.egg-info
	@find python sgl-kernel test -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean  ## caches and .venv
	@rm -rf $(VENV)
