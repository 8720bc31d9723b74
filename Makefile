# One command for each thing a person does here. `make help` lists them. Each does its own set-up.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
TESTS ?= tests

NATIVE_SOURCES := $(shell find native -name '*.[chS]' -o -name '*.inc' -o -name '*.lds' -o -name 'build_core.py') \
	CMakeLists.txt $(shell find native -name CMakeLists.txt)

.PHONY: help build bench-readme test test-long lint bench demo demo-jaeger stack stack-down stack-build docs clean format

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 16

build: $(VENV)/.built ## make .venv/bin/nfprobe

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

test: build ## every test, real targets and backends included
	scripts/set-up test
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory stack-build; \
		else echo "go is missing: the tests with Jaeger and the Collector will be skipped"; fi
	native/tests/run.sh
	$(BIN)/pytest -m 'not long' $(TESTS)

test-long: build stack-build ## the longer runs
	scripts/set-up test
	$(BIN)/pytest -m long --timeout 0 -o faulthandler_timeout=0 $(TESTS)

lint: build ## ruff, mypy, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find native examples -name '*.[ch]' | xargs $(BIN)/clang-format --dry-run --Werror

format: build ## let the formatters have their way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	find native examples -name '*.[ch]' | xargs $(BIN)/clang-format -i

bench: build ## the cost of a probe and of a probed network function, beside the floor
	scripts/set-up test
	mkdir -p build/bench
	$(BIN)/python tests/benchmarks/bench_pipeline.py --json build/bench/pipeline.json
	$(BIN)/python tests/benchmarks/bench_recording.py --json build/bench/recording.json
	$(BIN)/python tests/benchmarks/bench_export.py --json build/bench/export.json
	$(BIN)/python tests/benchmarks/bench_readers.py --json build/bench/readers.json
	$(BIN)/python tests/benchmarks/bench_probe.py --json build/bench/probe.json
	$(BIN)/python tests/benchmarks/bench_calibration.py --json build/bench/calibration.json
	$(BIN)/python tests/benchmarks/bench_counters.py --json build/bench/counters.json
	$(BIN)/python tests/benchmarks/bench_attach.py --json build/bench/attach.json
	$(BIN)/python tests/benchmarks/bench_snippet.py
	$(BIN)/python tests/benchmarks/bench_poll.py --json build/bench/poll.json
	$(BIN)/python tests/benchmarks/bench_forwarder.py --json build/bench/forwarder.json
	$(BIN)/python tests/benchmarks/bench_testpmd.py --json build/bench/testpmd.json
	$(BIN)/python tests/benchmarks/cost_table.py build/bench

bench-readme: bench ## the same, and the README's cost table is written from it
	$(BIN)/python tests/benchmarks/cost_table.py build/bench --write

demo: build ## attach to a running network function and see what made its packets late
	scripts/demo

demo-jaeger: build stack ## the same, into Jaeger
	scripts/demo --endpoint http://127.0.0.1:4327

stack: stack-build ## start the Collector, Jaeger, and Prometheus if installed, on loopback
	examples/collector/stack up

stack-down: ## stop them
	examples/collector/stack down

docs: build ## check that the command lines in the documents exist
	$(BIN)/pytest -q tests/unit/test_docs.py

clean: ## remove what was built
	rm -rf $(VENV) build
