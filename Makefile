# Every target sets up .venv by itself: a machine needs Python 3.11+ and make, nothing else.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Whatever is installed has a hash in a file of pins; nothing comes along that has none.
LOCKED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps
NEEDS_CUDA := $(BIN)/python -c 'import sys, importlib.metadata as m; sys.exit("nvidia" not in str(m.requires("torch")))'

.PHONY: demo test browser check fix slow bench docs dist sbom audit clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml $(wildcard constraints*.txt) hatch_build.py build_kernels.py src/mqcast/nn/kernels.c
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mqcast needs Python 3.11 or newer; say which with: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) -r constraints-cpu.txt 2>/dev/null || echo "pip finds no build of torch without CUDA; taking the index's own"
	$(LOCKED) -r constraints.txt
	if $(NEEDS_CUDA); then $(LOCKED) -r constraints-cuda.txt; fi
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(READY)  ## simulate a retailer, train MQTransformer and MQ-CNN, judge them beside the best possible forecast
	$(BIN)/mqcast demo

# One thread a worker: with two they fight over the cores.
test: check  ## lint, types, import contract and the tests
	@command -v chromium >/dev/null || echo "no Chromium: the tests of the report in a browser are skipped; see make browser"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

browser:  ## install Chromium (Debian's), for the tests of the report
	command -v chromium || { apt-get update -q && apt-get install -q -y --no-install-recommends chromium; }

check: $(READY)  ## ruff, pyright, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

fix: $(READY)  ## let ruff put right what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

slow: $(READY)  ## the long tests, with the longest of them; then the equations on all their examples
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m slow --durations=15
	OMP_NUM_THREADS=1 MQCAST_TESTS=thorough $(BIN)/python -m pytest -n 2 tests/paper

bench: $(READY)  ## the benchmarks, beside peers (each in an environment of its own); run nothing else meanwhile
	$(BIN)/python -m lab.benchmarks.versus_peers
	$(BIN)/python -m lab.benchmarks.limit
	$(BIN)/python -m lab.benchmarks.scaling
	$(BIN)/python -m lab.benchmarks.kernels
	$(BIN)/python -m lab.benchmarks.pack
	$(BIN)/python -m lab.benchmarks.larger_than_memory
	$(BIN)/python -m lab.benchmarks.training
	$(BIN)/python -m lab.benchmarks.evaluate
	$(BIN)/python -m lab.benchmarks.judge_neuralforecast

docs: $(READY)  ## the documentation, into site/
	$(BIN)/mkdocs build --strict

dist: $(READY)  ## the source distribution and the wheel, into dist/
	$(BIN)/python -m hatchling build

sbom: $(READY)  ## what mqcast needs, version by version, as CycloneDX, into dist/sbom.json
	$(BIN)/python tools/sbom.py dist/sbom.json

audit:  ## ask the public database for known vulnerabilities of the pinned versions; needs the network
	$(PYTHON) -m venv .audit
	.audit/bin/python -m pip install --quiet --require-hashes --no-deps -r tools/audit.txt
	@.audit/bin/pip-audit --strict --require-hashes --disable-pip --no-deps -r constraints.txt -r constraints-cuda.txt || \
	  { echo "the audit found something, or the database of vulnerabilities could not be asked; see above"; exit 1; }

clean:  ## remove what the targets made
	rm -rf $(VENV) .audit src/mqcast/nn/libkernels.* site dist runs demo .pytest_cache .ruff_cache .import_linter_cache .hypothesis
