# Each target sets up what it needs in a virtual environment of the project's own.
#   make demo      diagnose a recorded job with an injected fault, replay it, change a job of eight GPUs, predict Llama 3 405B on 16,384, write a report
#   make test      lint, types and tests, in at most four minutes on two cores
#   make test-all  the same with the optional libraries (torch, Ray, pyarrow, ...) installed, slow tests, more examples of each property,
#                  the lowest and the newest packages, and a short share of the fuzzers
#   make test-lowest, make test-newest  the tests of the command line with the lowest and the newest packages allowed (part of test-all)
#   make docs      the documentation as a site, in build/site (part of test-all)
#   make consequences  compare the answers to a fixed list of questions with the frozen ones (all of them with LUMOS_TRACES set)
#   make mutants   put faults into a copy of the code, one at a time, and write which ones the tests notice
#   make fuzz      mutate traces, graphs and every kind of input for an hour; `make test-all` runs a short share of it
#   make sanitize  fuzz the native code under the address and undefined-behaviour sanitizers
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt pyproject.toml $(wildcard native/*)

.PHONY: demo test test-all test-lowest test-newest docs mutants consequences fuzz fuzz-short sanitize lint clean

demo: $(VENV)/.installed
	@$(BIN)/python -m tools.demo

# One worker a core; a worker takes tests that stand together, so that what a file's tests share is seldom made twice.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

test: $(VENV)/.dev lint
	$(PYTEST)

test-all: $(VENV)/.all lint docs test-lowest test-newest fuzz-short
	$(PYTEST) -m '' --hypothesis-profile=thorough

# Every link, anchor and name of the reference must lead somewhere.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The tests of the command line with the lowest and with the newest versions that pyproject.toml allows, each in an environment of its
# own. Warnings of packages about each other are no errors there.
LIMITS_TESTS := -q -p no:cacheprovider -W default tests/cli tests/model tests/plan
test-lowest: $(VENV)/bin/python
	@test -x $(VENV)-lowest/bin/python || $(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check . pytest hypothesis \
	  $$($(BIN)/python -m tools.lowest arrow)
	PYTHONPATH= $(VENV)-lowest/bin/python -m pytest $(LIMITS_TESTS)

test-newest: $(VENV)/bin/python
	@test -x $(VENV)-newest/bin/python || $(PYTHON) -m venv $(VENV)-newest
	$(VENV)-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager '.[arrow]' pytest hypothesis
	PYTHONPATH= $(VENV)-newest/bin/python -m pytest $(LIMITS_TESTS)

# Bytes of mutated traces for the scanner, values of legal JSON in random places of every kind of input for the verbs, and random graphs for
# the simulator. SEED chooses others.
BYTES ?= 1e8
SECONDS ?= 1800
SEED ?= 0
FUZZED ?= $(wildcard examples/*/rank0.json.gz tests/data/*.json)
fuzz: $(VENV)/.dev
	$(BIN)/python tools/fuzz_scan.py --bytes $(BYTES) --seed $(SEED) $(FUZZED)
	$(BIN)/python -m tools.fuzz_verbs --seconds $(SECONDS) --seed $(SEED)
	$(BIN)/python -m pytest -q tests/property/test_engine.py tests/property/test_slack.py --hypothesis-profile=fuzz

fuzz-short: $(VENV)/.dev
	$(BIN)/python tools/fuzz_scan.py --bytes 2e7 --seed $(SEED) $(FUZZED)
	$(BIN)/python -m tools.fuzz_verbs --seconds 120 --seed $(SEED)

consequences: $(VENV)/.dev
	$(BIN)/python -m validation.consequences

mutants: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cmake nanobind
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m tools.mutants --write

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests validation benchmarks tools examples
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror native/*

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Lumos needs Python 3.11 or newer: name one with make PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "Lumos needs Python's venv module (Debian: apt install python3-venv)"; exit 1; }

# A compiler that can read C++17 is asked for before pip buries its absence in a long log.
$(VENV)/.installed: $(VENV)/bin/python $(NATIVE)
	@echo 'int main() { if constexpr (true) return 0; }' | $${CXX:-c++} -std=c++17 -x c++ -fsyntax-only - 2>/dev/null || \
	  { echo "Lumos needs a C++17 compiler: install one (Debian: apt install g++) or name it with CXX=..."; exit 1; }
	@echo "Installing Lumos into $(VENV) and compiling its native code, once:"
	@echo "about a minute on two cores."
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

$(VENV)/.all: $(VENV)/.dev $(VENV)/.docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[serve,arrow,chakra]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch>=2.1' --index-url https://download.pytorch.org/whl/cpu \
	  || echo "no CPU build of torch to be had here: its tests will be skipped"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[distributed]' \
	  || echo "no Ray to be had here: its tests will be skipped"
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-newest build

# A build of its own with the sanitizers, the fuzzers over it, and the tests that call the native modules.
SANITIZED := .venv-sanitize
LOADED = LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0
sanitize: $(VENV)/bin/python
	@test -x $(SANITIZED)/bin/python || $(PYTHON) -m venv $(SANITIZED)
	$(SANITIZED)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --config-settings=cmake.define.LUMOS_SANITIZE=ON --config-settings=build-dir=build/sanitize '.[dev]'
	$(LOADED) PYTHONPATH= $(SANITIZED)/bin/python tools/fuzz_scan.py --bytes $(BYTES) --seed $(SEED) $(FUZZED)
	$(LOADED) $(SANITIZED)/bin/python -m tools.fuzz_verbs --seconds $(SECONDS) --seed $(SEED) $(FUZZED)
	$(LOADED) $(SANITIZED)/bin/python -m pytest -q -p no:cacheprovider tests/property tests/simulation \
	  tests/plan/test_schedules.py tests/searching/test_coarse.py tests/trace/test_kineto.py
