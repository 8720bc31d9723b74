# SPDX-License-Identifier: Apache-2.0
"""The cost of a probe, beside the floor, in one run on one core.

Target: tests/targets/leaves.c on one CPU: 100 leaf functions of ten instructions, called in turn. Floor: the
same functions with two time stamps and two 16-byte records written by hand, undrained. Ours: the unmodified
functions, probed while they run, drained by a real monitor on another CPU. Prints ticks per call (medians of
interleaved rounds) and writes them as JSON for the README's cost table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.target import Target

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "leaves.c"
MEASURE_S = 0.4


class Leaves:
    """The target, driven through its pipes."""

    def __init__(self, folder: str, cpu: int) -> None:
        binary = Path(folder) / "leaves"
        subprocess.run(["gcc", "-std=gnu11", "-O2", str(SOURCE), "-o", str(binary)], check=True)
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ticks(self, what: str) -> float:
        self.ask(what)
        return float(self._answer())

    def read_ticks(self) -> float:
        return float(self._answer())


def measure_probed(leaves: Leaves, monitor: Monitor) -> float:
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask("bare")
    monitor.run(MEASURE_S, lambda: None)
    ticks = leaves.read_ticks()
    monitor.detach()
    summary = monitor.summary()
    monitor.close()
    lost, unpaired = summary["records"]["lost"], summary["unpaired"]  # type: ignore[index]
    if any(lost.values()) or any(unpaired.values()):
        print(f"note: lost {lost}, unpaired {unpaired}", file=sys.stderr)
    return ticks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    bare, floor, ours = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        for _ in range(arguments.rounds):
            bare.append(leaves.ticks("bare"))
            floor.append(leaves.ticks("floor"))
            target = Target(leaves.process.pid)
            choice = choose(target, None, ["leaves:leaf*"], [])
            ours.append(measure_probed(leaves, Monitor(target, choice, 16 << 20, False, print)))
        leaves.ask("quit")
        leaves.process.wait()
    base = statistics.median(bare)
    added_floor, added_ours = statistics.median(floor) - base, statistics.median(ours) - base
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    rows = {
        "unprobed call": base,
        "floor: two time stamps, two records, by hand, undrained": added_floor,
        "nfprobe entry and exit, unmodified running code, drained": added_ours,
    }
    for name, ticks in rows.items():
        print(f"{name:60} {ticks:7.1f} ticks  {ticks * ns_per_tick:6.1f} ns")
    print(f"{'ratio to the floor':60} {added_ours / added_floor:7.3f}")
    if arguments.json:
        figures = {"floor_ticks": added_floor, "probe_ticks": added_ours, "ns_per_tick": ns_per_tick}
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
