# SPDX-License-Identifier: Apache-2.0
"""What counters add to a probed call: the same functions probed with 0, 1, 2 and 4 of them, in turn, in one run.

Where the processor can count, the counters are its own. Elsewhere they are events of the kernel, whose pages say that
no processor counts them: the probe does all that it does but the rdpmc instruction itself, which is said. Printed are
ticks that the probe adds to a call, bytes that a call takes in the ring, and the monitor's CPU time per call. Target
and method are those of bench_probe.py. The figures of docs/counters.md are from here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import RECORD
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_probe import FAMILIES, MEASURE_S, Leaves, running_leaves
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, Watch, lost, make_parser, spread, write_figures

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
    """Median ticks of a call while its functions are probed and counted, and what the call costs others.

    Not numbers where records were lost.
    """
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    choice = choose(target, None, [glob], [], strategy)
    with attached(target, choice, Session(RING_BYTES, NONE, counters), lambda sentence: None) as monitor:
        leaves.ask(family)  # a thread has counters once it has written a record
        monitor.run(MEASURE_S, lambda: None)
        leaves.read_ticks()
        calls, records, watch = monitor.drain.pipeline.counts().calls, monitor.drain.records, Watch(monitor)
        leaves.ask(family)
        monitor.drain.run_until(time.monotonic() + MEASURE_S)
        spent_ns = watch.spent_ns()
        ticks = leaves.read_ticks()
        calls = max(1, monitor.drain.pipeline.counts().calls - calls)
        ring_bytes = (monitor.drain.records - records) * RECORD.itemsize / calls
        if lost(monitor):
            return Figures(NO_FIGURE, NO_FIGURE, NO_FIGURE)
        return Figures(ticks, ring_bytes, spent_ns / calls)


def run(leaves: Leaves, counters: Sequence[Counter], rounds: int) -> dict[tuple[str, int], list[Figures]]:
    """What each number of counters adds, by round."""
    added: dict[tuple[str, int], list[Figures]] = {}
    for _ in range(rounds):
        without = leaves.ticks("bare")
        for strategy in STRATEGIES:
            for number in NUMBERS:
                found = measure(leaves, strategy, tuple(counters[:number]))
                added.setdefault((strategy, number), []).append(found._replace(ticks=found.ticks - without))
    return added


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    refusal = find_refusal(choose_counters(HARDWARE))
    chosen = choose_counters(SOFTWARE if refusal else HARDWARE).counters
    print(f"counters of the kernel, without rdpmc ({refusal.reason})" if refusal else f"counters: {HARDWARE}")
    with running_leaves(arguments.short) as leaves:
        added = run(leaves, chosen, 1 if arguments.short else arguments.rounds)
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    figures: dict[str, object] = {"rdpmc": refusal is None, "ns_per_tick": ns_per_tick}
    for (strategy, number), values in added.items():
        ticks, ring_bytes, monitor_ns = (spread(column) for column in zip(*values, strict=True))
        figures[f"{strategy}, {number}"] = {"ticks": ticks, "ring_bytes": ring_bytes, "monitor_ns": monitor_ns}
        print(
            f"{strategy:10} {number} counters: {ticks.median:6.1f} ticks ({ticks.low:.1f} .. {ticks.high:.1f};"
            f" {ticks.median * ns_per_tick:5.1f} ns) a call, {ring_bytes.median:5.1f} bytes,"
            f" monitor {monitor_ns.median:5.1f} ns{ticks.describe_dropped()}"
        )
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
