# SPDX-License-Identifier: Apache-2.0
"""`make evaluate`: nfprobe beside its peers, table after table, in one run; then the page from what was measured.

Each table's samples are written to build/evaluation/TABLE.parquet once it has ended. `--write` makes docs/evaluation.md
and its pictures from all the tables that are there, this run's and older ones'; `--only` measures some tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.rounds import find_cpus
from tests.evaluation import (
    broker,
    call_cost,
    coverage,
    culprit,
    document,
    forwarders,
    latency,
    peers,
    plots,
    samples,
    storage_cost,
)
from tests.evaluation.extent import Extent

ROOT = Path(__file__).resolve().parents[2]
PAGE, PICTURES = ROOT / "docs" / "evaluation.md", ROOT / "docs" / "pictures"
TABLES: dict[str, Callable[[Extent], list[samples.Sample]]] = {
    "call_cost": call_cost.run,
    "storage_cost": storage_cost.run,
    "forwarders": forwarders.run,
    "latency": latency.run,
    "coverage": coverage.run,
    "broker": broker.run,
    "culprit": culprit.run,
}


def measure(name: str, is_short: bool, rounds: int | None, output: Path, machine: dict[str, str]) -> None:
    """One table, and its file."""
    began_s, cpus = time.monotonic(), os.sched_getaffinity(0)
    print(f"{name} {time.strftime('%H:%M:%S')}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = TABLES[name](Extent(is_short, find_cpus(is_short), Path(folder), rounds))
        finally:
            os.sched_setaffinity(0, cpus)
    samples.write(output / f"{name}.parquet", found, machine)
    print(f"{name}: {len(found)} samples in {time.monotonic() - began_s:.0f} s", flush=True)


@contextmanager
def scratch() -> Iterator[None]:
    """All temporary files of this process and of those that it starts are in one folder: Frida leaves some."""
    with tempfile.TemporaryDirectory(prefix="nfpevaluation") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield
        finally:
            del os.environ["TMPDIR"]
            tempfile.tempdir = None


def read_all(folder: Path) -> tuple[dict[str, samples.Rows], dict[str, str]]:
    """The tables that are there, and what the last of them was measured on."""
    tables: dict[str, samples.Rows] = {}
    machine: dict[str, str] = {}
    for path in sorted(folder.glob("*.parquet"), key=lambda path: path.stat().st_mtime):
        tables[path.stem], machine = samples.read(path)
    return tables, machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="a moment of each, whose figures mean nothing")
    parser.add_argument("--only", choices=list(TABLES), action="append", help="this table (repeatable)")
    parser.add_argument("--rounds", type=int, help="instead of each table's own number")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "evaluation", help="folder of the samples")
    parser.add_argument("--write", action="store_true", help=f"{PAGE.relative_to(ROOT)} and its pictures")
    arguments = parser.parse_args()
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    machine = dict(peers.describe())
    with scratch():
        for name in arguments.only or TABLES:
            measure(name, arguments.short, arguments.rounds, output, machine)
    tables, machine = read_all(output)
    filled = document.fill(PAGE.read_text(), tables, machine)
    plots.draw_all(tables, PICTURES if arguments.write else output)
    (PAGE if arguments.write else output / PAGE.name).write_text(filled)
    return 0


if __name__ == "__main__":
    sys.exit(main())
