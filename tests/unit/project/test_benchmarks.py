# SPDX-License-Identifier: Apache-2.0
"""No benchmark can be forgotten: all are in the list that `.ci/run` runs, and all tables of documents are theirs."""

from __future__ import annotations

import math
import os
import re
import subprocess
import time
from pathlib import Path

from tests.benchmarks.cost_table import BLOCK, find_pages
from tests.benchmarks.figure_tables import TABLES, make_figures
from tests.benchmarks.rounds import spent_s, spread

ROOT = Path(__file__).resolve().parents[3]
BENCHMARKS = ROOT / "tests" / "benchmarks"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
NO_BENCHMARKS = {"cost_table", "receiver"}  # programs that measure nothing
CHILD_S = 0.2


def find_commands(target: str) -> list[str]:
    """What make runs for a target, once everything is built."""
    command = ["make", "-n", "-o", "bench-set-up", target]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if "tests.benchmarks." in line]


def find_run(target: str) -> list[tuple[str, str]]:
    """Programs of tests/benchmarks that a target runs, with their options."""
    return [re.search(r"tests\.benchmarks\.(\w+)(.*)", line).groups() for line in find_commands(target)]  # type: ignore[union-attr,misc]


def find_benchmarks() -> set[str]:
    programs = {path.stem for path in BENCHMARKS.glob("*.py") if '\nif __name__ == "__main__":' in path.read_text()}
    return programs - NO_BENCHMARKS


def test_short_rounds_are_those_of_all_benchmarks() -> None:
    run = find_run("bench-short")
    assert {name for name, options in run if "--short" in options} == find_benchmarks()
    assert "make bench-short\n" in (ROOT / ".ci" / "run").read_text()


def test_long_rounds_are_those_of_all_benchmarks() -> None:
    run = find_run("bench")
    assert {name for name, options in run if "--json" in options} == find_benchmarks()
    assert not [name for name, options in run if "--short" in options]


def test_all_benchmarks_have_the_same_options() -> None:
    for name in find_benchmarks():
        assert "make_parser(__doc__)" in (BENCHMARKS / f"{name}.py").read_text(), name


def test_benchmarks_that_are_named_exist_and_are_run() -> None:
    run, found = {name for name, _ in find_run("bench-short")}, 0
    for page in PAGES:
        for name in re.findall(r"\b((?:bench_\w+|pmu_agreement))\b(?:\.py)?", page.read_text()):
            assert name in run, f"{page.name}: {name}"
            found += 1
    assert found > len(run)
    figures = (ROOT / "docs" / "figures.md").read_text()
    assert not [name for name in find_benchmarks() if f"`{name}.py`" not in figures]


def test_every_table_stands_in_a_document_and_is_of_a_benchmark() -> None:
    named = [name for page in find_pages() for name in BLOCK.findall(page.read_text())]
    assert sorted(named) == sorted(TABLES)
    for name, (source, _) in TABLES.items():
        assert source in find_benchmarks(), name
        assert "Not measured in this run" in make_figures(name, {})


def test_benchmark_that_fails_ends_the_command(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$2" >>{tmp_path}/run\ncase "$2" in *.second) exit 3 ;; esac\n')
    python.chmod(0o755)
    command = ["make", "-C", str(tmp_path), "-f", str(ROOT / "Makefile"), "-o", "bench-set-up", f"BIN={tmp_path}"]
    for target in ("bench", "bench-short", "bench-readme"):
        (tmp_path / "run").unlink(missing_ok=True)
        words = [*command, "BENCHMARKS=first second third", target]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        run = [line.split(".")[-1] for line in (tmp_path / "run").read_text().split()]
        assert run == ["first", "second"], done.stdout + done.stderr


def test_time_of_children_is_counted() -> None:
    """What patches is a child of the monitor: its time is part of what an attach takes."""
    before_s = spent_s()
    child = os.fork()
    if not child:
        while time.process_time() < CHILD_S:
            pass
        os._exit(0)
    os.waitpid(child, 0)
    assert spent_s() - before_s >= 0.9 * CHILD_S


def test_rounds_with_losses_are_dropped_and_counted() -> None:
    found = spread([4.0, math.nan, 1.0, 2.0, 3.0, math.nan, 5.0])
    assert (found.median, found.low, found.high, found.rounds, found.dropped) == (3.0, 2.0, 4.0, 5, 2)
    assert "2 of 7 rounds" in found.describe_dropped()
    nothing = spread([math.nan])
    assert (nothing.rounds, nothing.dropped) == (0, 1)
    assert math.isnan(nothing.median)
