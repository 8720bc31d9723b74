# SPDX-License-Identifier: Apache-2.0
"""What counters add to a probed call: the same functions probed with 0, 1, 2 and 4 of them, in turn, in one run.

Where the processor can count, the counters are its own. Elsewhere they are events of the kernel, whose pages say that
no processor counts them: the probe does all that it does but the rdpmc instruction itself, which is said. Printed are
ticks that the probe adds to a call, bytes that a call takes in the ring, and the monitor's CPU time per call. Target
and method are those of bench_probe.py. The figures of docs/counters.md are from here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench_probe import FAMILIES, MEASURE_S, Leaves

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.columns import RECORD
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.target import Target

HARDWARE = "instructions,cycles,branches,branch-misses"
SOFTWARE = "task-clock,page-faults,context-switches,cpu-migrations"
NUMBERS = (0, 1, 2, 4)
STRATEGIES = ("in-stack", "relocated")
RING_BYTES = 64 << 20


class Figures(NamedTuple):
    """Of one call."""

    ticks: float
    ring_bytes: float
    monitor_ns: float


def measure(leaves: Leaves, strategy: str, counters: tuple[Counter, ...]) -> Figures:
    """Median ticks of a call while its functions are probed and counted, and what the call costs others."""
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    monitor = Monitor(target, choose(target, None, [glob], [], strategy), RING_BYTES, "none", lambda sentence: None)
    monitor.counters = counters
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask(family)  # a thread has counters once it has written a record
    monitor.run(MEASURE_S, lambda: None)
    leaves.read_ticks()
    calls, records, spent_s = monitor.drain.pipeline.counts().calls, monitor.drain.records, time.process_time()
    leaves.ask(family)
    monitor.drain.run_until(time.monotonic() + MEASURE_S)
    spent_s = time.process_time() - spent_s
    ticks = leaves.read_ticks()
    calls = max(1, monitor.drain.pipeline.counts().calls - calls)
    ring_bytes = (monitor.drain.records - records) * RECORD.itemsize / calls
    monitor.detach()
    monitor.close()
    return Figures(ticks, ring_bytes, spent_s * 1e9 / calls)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    refusal = find_refusal(choose_counters(HARDWARE))
    chosen = choose_counters(SOFTWARE if refusal else HARDWARE).counters
    print(f"counters of the kernel, without rdpmc ({refusal.reason})" if refusal else f"counters: {HARDWARE}")
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    added: dict[tuple[str, int], list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        for _ in range(arguments.rounds):
            without = leaves.ticks("bare")
            for strategy in STRATEGIES:
                for number in NUMBERS:
                    found = measure(leaves, strategy, chosen[:number])
                    added.setdefault((strategy, number), []).append(found._replace(ticks=found.ticks - without))
        leaves.ask("quit")
        leaves.process.wait()
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    figures = {}
    for (strategy, number), values in added.items():
        ticks, ring_bytes, monitor_ns = (statistics.median(column) for column in zip(*values, strict=True))
        figures[f"{strategy}, {number}"] = {"ticks": ticks, "ring_bytes": ring_bytes, "monitor_ns": monitor_ns}
        print(
            f"{strategy:10} {number} counters: {ticks:6.1f} ticks ({ticks * ns_per_tick:5.1f} ns) a call,"
            f" {ring_bytes:5.1f} bytes, monitor {monitor_ns:5.1f} ns"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rdpmc": refusal is None, **figures}) + "\n")


if __name__ == "__main__":
    main()
