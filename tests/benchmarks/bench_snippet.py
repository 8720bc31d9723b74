# SPDX-License-Identifier: Apache-2.0
"""What a snippet adds to a probed call: the same functions probed with and without one, in turn, in one run.

Printed are ticks that the probe adds to a call, those between its two time stamps, and what of both the snippet
adds. Target and method are those of bench_probe.py. The figures of docs/capture.md are from here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile

from bench_probe import FAMILIES, MEASURE_S, Leaves

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.snippet import Capture, assemble
from otel_nfprobe.target import Target

SNIPPETS = {
    "no snippet": "",
    "an argument: 1 instruction": "mov rax, rdi",
    "a word on the stack: 3 instructions": "mov rax, [rsp]; shr rax, 4; and eax, 0xffff",
}
STRATEGIES = ("in-stack", "relocated")


def measure_probed(leaves: Leaves, strategy: str, snippet: str) -> tuple[float, float]:
    """Median ticks of a call while its functions are probed, and of those the ones between its time stamps."""
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    captures = [Capture(glob, assemble(snippet))] if snippet else []
    choice = choose(target, None, [] if captures else [glob], [], strategy, captures=captures)
    monitor = Monitor(target, choice, 16 << 20, "none", print)
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask(family)
    monitor.run(MEASURE_S, lambda: None)
    ticks = leaves.read_ticks()
    monitor.detach()
    rows = monitor.drain.statistics.functions()
    inside = statistics.median(row["raw_total_ticks"] / row["count"] for row in rows)
    monitor.close()
    return ticks, float(inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    added: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        for _ in range(arguments.rounds):
            without = leaves.ticks("bare")
            for strategy in STRATEGIES:
                for name, snippet in SNIPPETS.items():
                    ticks, inside = measure_probed(leaves, strategy, snippet)
                    added.setdefault((strategy, name), []).append((ticks - without, inside))
        leaves.ask("quit")
        leaves.process.wait()
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    medians = {key: [statistics.median(column) for column in zip(*rows, strict=True)] for key, rows in added.items()}
    for (strategy, name), (whole, inside) in medians.items():
        pairs = zip((whole, inside), medians[strategy, "no snippet"], strict=True)
        more = [f"{(ticks - before) * ns_per_tick:+5.1f} ns" for ticks, before in pairs]
        figures = f"{whole:6.1f} ticks {more[0]}, between the stamps {inside:6.1f} ticks {more[1]}"
        print(f"{strategy:10} {name:36} {figures}")


if __name__ == "__main__":
    main()
