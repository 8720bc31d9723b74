# SPDX-License-Identifier: Apache-2.0
"""What a snippet adds to a probed call: the same functions probed with and without one, in turn, in one run.

Target and method are those of bench_probe.py. The figures of docs/capture.md are from here.
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


def measure_probed(leaves: Leaves, strategy: str, snippet: str) -> tuple[float, int]:
    """Median ticks of a call while its functions are probed, and the number of lost records."""
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    captures = [Capture(glob, assemble(snippet))] if snippet else []
    choice = choose(target, None, [] if captures else [glob], [], strategy, captures=captures)
    monitor = Monitor(target, choice, 16 << 20, False, print)
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask(family)
    monitor.run(MEASURE_S, lambda: None)
    ticks = leaves.read_ticks()
    monitor.detach()
    lost = sum(thread.lost[0] for thread in monitor.session.thread_counts())
    monitor.close()
    return ticks, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    added: dict[tuple[str, str], list[float]] = {}
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        for _ in range(arguments.rounds):
            without = leaves.ticks("bare")
            for strategy in STRATEGIES:
                for name, snippet in SNIPPETS.items():
                    ticks, missing = measure_probed(leaves, strategy, snippet)
                    added.setdefault((strategy, name), []).append(ticks - without)
                    lost += missing
        leaves.ask("quit")
        leaves.process.wait()
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    for (strategy, name), values in added.items():
        ticks = statistics.median(values)
        beside = ticks - statistics.median(added[strategy, "no snippet"])
        print(
            f"{strategy:10} {name:36} {ticks:7.1f} ticks {ticks * ns_per_tick:6.1f} ns {beside * ns_per_tick:+6.1f} ns"
        )
    print(f"{lost} records lost")


if __name__ == "__main__":
    main()
