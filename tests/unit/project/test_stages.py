# SPDX-License-Identifier: Apache-2.0
"""CI runs what `make test` runs; tests are found by the name of what they test."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PRODUCT, UNIT = ROOT / "otel_nfprobe", ROOT / "tests" / "unit"


def test_ci_runs_the_stages_of_make_test_in_their_order() -> None:
    found = re.search(r"^TEST_STAGES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert re.findall(r"^test_stage (\S+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE) == found[1].split()


def test_every_test_is_in_one_stage() -> None:
    """Each folder of tests is named by a stage, and unit tests are shared out by a mark."""
    said = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    runs = [line for line in said.splitlines() if "/pytest " in line]
    folders = {path.parent.relative_to(ROOT).parts[1] for path in (ROOT / "tests").rglob("test_*.py")}
    named = [name for line in runs for name in re.findall(r"tests/(\w+)", line)]
    assert sorted(named) == sorted([*(folders | {"benchmarks"}), "unit", "integration"])
    assert _marks(runs, "tests/unit") == ["not long and not thorough", "not long and thorough"]
    assert _marks(runs, "tests/integration") == ["not long and not shared", "not long and shared"]


def _marks(runs: list[str], folder: str) -> list[str]:
    return sorted(line.partition("-m '")[2].partition("'")[0] for line in runs if folder in line)


def test_unit_tests_are_in_the_folder_of_the_package_that_they_test() -> None:
    """A test of a module that has its own is called test_MODULE.py; others are of several modules of that package."""
    astray = []
    for path in UNIT.glob("*/test_*.py"):
        package = path.parent.name
        if package != "project" and not re.search(rf"otel_nfprobe[./]{package}\b|_core", path.read_text()):
            astray.append(path.relative_to(UNIT))
    assert astray == []
    folders = {path.parent.name for path in UNIT.glob("*/__init__.py")}
    assert folders - {"project"} <= {path.parent.name for path in PRODUCT.glob("*/__init__.py")}
