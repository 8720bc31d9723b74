# SPDX-License-Identifier: Apache-2.0
"""What a snippet adds to a probed call: the same functions probed with and without one, in turn, in one run.

Printed are ticks that the probe adds to a call, those between its two time stamps, and what of both the snippet
adds. Target and method are those of bench_probe.py. The figures of docs/capture.md are from here.
"""

from __future__ import annotations

import numpy as np

from otel_nfprobe.arch.snippet import Capture, assemble
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_probe import FAMILIES, MEASURE_S, RING_BYTES, Leaves, running_leaves
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, lost, make_parser, spread, write_figures

PLAIN = "no snippet"
SNIPPETS = {
    PLAIN: "",
    "an argument: 1 instruction": "mov rax, rdi",
    "a word on the stack: 3 instructions": "mov rax, [rsp]; shr rax, 4; and eax, 0xffff",
}
STRATEGIES = ("in-stack", "relocated")


def measure_probed(leaves: Leaves, strategy: str, snippet: str) -> tuple[float, float]:
    """Median ticks of a call while its functions are probed, and of those the ones between its time stamps.

    Not numbers where records were lost.
    """
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    captures = [Capture(glob, assemble(snippet))] if snippet else []
    choice = choose(target, None, [] if captures else [glob], [], strategy, captures=captures)
    with attached(target, choice, Session(RING_BYTES, NONE)) as monitor:
        leaves.ask(family)
        monitor.run(MEASURE_S, lambda: None)
        ticks = leaves.read_ticks()
        monitor.drain.run_dry()
        if lost(monitor):
            return NO_FIGURE, NO_FIGURE
        rows = monitor.drain.statistics.functions()
        return ticks, float(np.median(rows["raw_total_ticks"] / rows["count"]))


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    added: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with running_leaves(arguments.short) as leaves:
        for _ in range(1 if arguments.short else arguments.rounds):
            without = leaves.ticks("bare")
            for strategy in STRATEGIES:
                for name, snippet in SNIPPETS.items():
                    ticks, inside = measure_probed(leaves, strategy, snippet)
                    added.setdefault((strategy, name), []).append((ticks - without, inside))
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    figures: dict[str, object] = {"ns_per_tick": ns_per_tick}
    for (strategy, name), rows in added.items():
        plain = np.array(added[strategy, PLAIN])
        whole, inside = (spread(column) for column in np.array(rows).T)
        more, more_inside = (spread(column).scaled(ns_per_tick) for column in (np.array(rows) - plain).T)
        figures[f"{strategy}, {name}"] = {
            "ticks": whole,
            "inside": inside,
            "more_ns": more,
            "more_inside_ns": more_inside,
        }
        print(
            f"{strategy:10} {name:36} {whole.median:6.1f} ticks {more.median:+5.1f} ns"
            f" ({more.low:+.1f} .. {more.high:+.1f}), between the stamps {inside.median:6.1f} ticks"
            f" {more_inside.median:+5.1f} ns{more.describe_dropped()}"
        )
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
