# One command for each thing a person does here. `make help` lists them. Each does its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
# Of `make test`, in this order: those that need nothing come first, so that a failure shows early. .ci/run has the same.
TEST_STAGES := quick test-thorough test-root test-stack
# `make test TESTS=...` runs these only, one after the other.
TESTS ?=
# Tests that wait now and then leave processors to others.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
TOGETHER := -n $(WORKERS) --dist worksteal
# Unit tests wait less, and each of these processes first loads all of them: 5 s of a processor.
UNITS_TOGETHER := -n $(shell echo $$((1 + $$(nproc)))) --dist worksteal

# What pytest and Python compile is kept from one run to the next, in each of its processes, whatever the environment says.
unexport PYTHONDONTWRITEBYTECODE

NATIVE_SOURCES := $(shell find native -name '*.[chS]' -o -name '*.inc' -o -name '*.lds' -o -name 'build_core.py') \
	CMakeLists.txt $(shell find native -name CMakeLists.txt)

.PHONY: help build test quick test-thorough test-root test-stack coverage golden test-long lint cross bench bench-set-up bench-short bench-readme evaluate-set-up evaluate evaluate-short evaluate-causes evaluate-chain demo demo-jaeger stack stack-down stack-build docs clean format

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

# An installed package has its modules compiled. Without that each start compiles all of them anew where the environment
# forbids Python to keep what it compiled (PYTHONDONTWRITEBYTECODE), as in many containers.
build: $(VENV)/.built ## make .venv/bin/nfprobe
	@$(BIN)/python -m compileall -q otel_nfprobe

$(VENV)/.packages: requirements.lock scripts/set-up
	scripts/set-up build
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

$(VENV)/.built: $(VENV)/.packages pyproject.toml $(NATIVE_SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --disable-pip-version-check \
		--no-build-isolation --no-deps --editable .
	@touch $@

stack-build: ## build the Collector and Jaeger once (needs go)
	examples/collector/build

ifeq ($(TESTS),)
test: $(TEST_STAGES) ## every test, real targets and backends included
else
test: build test-set-up
	$(BIN)/pytest -m 'not long' $(TESTS)
endif

quick: build ## unit and native tests at the same time, in about a minute
	@$(MAKE) --no-print-directory -j$$((1 + $$(nproc))) native-tests unit-tests

.PHONY: unit-tests
unit-tests:
	$(BIN)/pytest $(UNITS_TOGETHER) -m 'not long and not thorough' tests/unit

test-thorough: build ## what quick leaves out of the unit and native tests, pinned output, random input
	scripts/set-up test
	$(MAKE) --no-print-directory -C native/tests -j$(shell nproc) thorough
	$(BIN)/pytest $(UNITS_TOGETHER) -m 'not long and thorough' tests/unit
	$(BIN)/pytest $(TOGETHER) -m 'not long' tests/golden tests/fuzz

# Those that measure what is lost on a target that needs both processors run one at a time.
test-root: build ## sessions on real targets
	scripts/set-up test
	$(BIN)/pytest $(TOGETHER) --dist loadscope -m 'not long and shared' tests/integration
	$(BIN)/pytest -m 'not long and not shared' tests/benchmarks tests/integration

test-stack: build test-set-up ## real receivers: the Collector, Jaeger, Prometheus
	$(BIN)/pytest -m 'not long' tests/stack

.PHONY: native-tests
native-tests:
	@$(MAKE) --no-print-directory -C native/tests $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc)) all

.PHONY: test-set-up
test-set-up:
	scripts/set-up test
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory stack-build; \
		else echo "go is missing: the tests with Jaeger and the Collector will be skipped"; fi

# Its own target, since tests take twice as long while lines are counted; what sessions do inside of targets is not.
# A test of times and sizes may fail for that: whether all pass is what `make quick` says.
coverage: build ## lines that the quick tests run, of Python and C
	@rm -rf build/coverage && mkdir -p build/coverage
	-COVERAGE_FILE=$(CURDIR)/build/coverage/python $(BIN)/coverage run -m pytest -q $(TOGETHER) \
		-m 'not long and not thorough' tests/unit
	@COVERAGE_FILE=$(CURDIR)/build/coverage/python $(BIN)/coverage combine -q
	@$(MAKE) --no-print-directory -C native/tests -j$(shell nproc) COVERAGE=1 BUILD=$(CURDIR)/build/coverage/native coverage
	@COVERAGE_FILE=$(CURDIR)/build/coverage/python $(BIN)/coverage report --sort=cover

golden: build ## pin anew what tests/golden compares
	NFPROBE_GOLDEN=write $(BIN)/pytest -q tests/golden
	git diff --stat -- tests/golden/expected

test-long: build stack-build ## the longer runs
	scripts/set-up test
	$(BIN)/pytest -m long --timeout 0 -o faulthandler_timeout=0 $(or $(TESTS),tests)

lint: build ## ruff, mypy, import-linter, clang-format, clang-tidy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	find native examples -name '*.[ch]' | xargs $(BIN)/clang-format --dry-run --Werror
	find native/core native/probe -name '*.c' ! -name bootstrap.c ! -path '*/aarch64/*' | xargs -P $$(nproc) -n 4 $(BIN)/clang-tidy --quiet \
		-p $$(dirname $$(ls -t build/*/compile_commands.json | head -1))

cross: ## compile native/ for arm64, where nothing is probed yet: it keeps to arch/
	cmake -S . -B build/cross/aarch64 -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc
	cmake --build build/cross/aarch64 --parallel $$(nproc)

format: build ## let the formatters have their way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find native examples -name '*.[ch]' | xargs $(BIN)/clang-format -i

# Each is a program of tests/benchmarks. One that fails ends the command.
BENCHMARKS := bench_pipeline bench_recording bench_export bench_readers bench_probe bench_calibration bench_counters \
	bench_attach bench_starts bench_snippet bench_poll bench_forwarder bench_testpmd bench_vpp bench_tiers bench_visible \
	bench_absences bench_fault_free bench_causes bench_chain bench_wired_chain bench_soak \
	pmu_agreement

# $(1): folder of the figures, $(2): options
define run_benchmarks
@rm -rf $(1) && mkdir -p $(1)
$(foreach name,$(BENCHMARKS),$(call run_benchmark,$(name),$(1),$(2)))
$(BIN)/python -m tests.benchmarks.cost_table $(1)
endef
# The empty line ends a command.
define run_benchmark
@echo; echo "$(1) $$(date +%H:%M:%S)"
$(BIN)/python -m tests.benchmarks.$(1) $(3) --json $(2)/$(1).json

endef

bench-set-up: build test-set-up

bench: bench-set-up ## the cost of a probe and of a probed network function, beside the floor
	$(call run_benchmarks,build/bench,)

bench-short: bench-set-up ## the same for a second or two each, to see that all benchmarks run
	$(call run_benchmarks,build/bench-short,--short)

evaluate-set-up: bench-set-up tests/evaluation/requirements.lock
	scripts/set-up evaluate
	$(BIN)/pip install --quiet --disable-pip-version-check -r tests/evaluation/requirements.lock

evaluate: evaluate-set-up ## nfprobe beside other tools, in an hour; docs/evaluation.md is written from it
	$(BIN)/python -m tests.evaluation --write

evaluate-short: evaluate-set-up ## the same for a moment, to see that it runs
	$(BIN)/python -m tests.evaluation --short --output build/evaluation-short

evaluate-chain: bench-set-up ## faults in chains, simulated and of real programs: who is blamed, with all recordings and with one alone
	$(BIN)/python -m tests.benchmarks.bench_chain
	$(BIN)/python -m tests.benchmarks.bench_wired_chain

evaluate-causes: bench-set-up ## faults put into four network functions from outside, 20 runs of each: who is blamed
	$(BIN)/python -m tests.benchmarks.bench_causes --seeds 20

bench-readme: bench ## all benchmarks; the tables of README and docs are written from this run
	$(BIN)/python -m tests.benchmarks.cost_table build/bench --write

demo: build ## attach to a running network function and see what made its packets late
	scripts/demo

demo-jaeger: build stack ## the same, into Jaeger
	scripts/demo --endpoint http://127.0.0.1:4327

stack: stack-build ## start the Collector, Jaeger, and Prometheus if installed, on loopback
	examples/collector/stack up

stack-down: ## stop them
	examples/collector/stack down

docs: build ## the documents as a site in build/site, manual pages in build/man; checks links and command lines
	$(BIN)/pytest -q tests/unit/project/test_docs.py
	$(BIN)/python scripts/site

clean: ## remove what was built
	rm -rf $(VENV) build
