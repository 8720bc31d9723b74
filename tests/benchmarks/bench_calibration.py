# SPDX-License-Identifier: Apache-2.0
"""How right times are once what the probes cost is taken off: 20 nested calls, by each strategy.

Target: the chain of tests/targets/leaves.c, each level of which calls the next and works a little. Its true time
per level is known from runs without probes. Prints, per strategy, the mean time of the outermost call as measured
and with the cost of the probes taken off, and by how many ticks a level the latter is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from bench_probe import MEASURE_S, Leaves

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.target import Target

LEVELS = 20
PRINTED_SCALE = 20  # the target divides by calls of leaves; a chain stands for so many of them
STRATEGIES = ("in-stack", "relocated")


def measure_chain(leaves: Leaves, strategy: str) -> dict[int, tuple[float, float]]:
    """Mean ticks of each level's calls: as measured, and with the cost of the probes taken off."""
    target = Target(leaves.process.pid)
    monitor = Monitor(target, choose(target, None, ["leaves:chain*"], [], strategy), 64 << 20, "none", print)
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask("chain")
    monitor.run(MEASURE_S, lambda: None)
    leaves.read_ticks()
    monitor.detach()
    names = monitor.names_by_id()
    rows = monitor.drain.statistics.functions()
    monitor.close()
    return {
        int(names[row["function"]].removeprefix("chain")): (
            float(row["raw_total_ticks"] / row["count"]),
            float(row["total_ticks"] / row["count"]),
        )
        for row in rows
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        for strategy in STRATEGIES:
            true, raw, net = [], [], []
            for _ in range(arguments.rounds):
                true.append(leaves.ticks("chain") * PRINTED_SCALE)
                levels = measure_chain(leaves, strategy)
                raw.append(levels[1][0])
                net.append(levels[1][1])
            expected = statistics.median(true)
            wrong = (statistics.median(net) - expected) / LEVELS
            figures[strategy] = {"true_ticks": expected, "raw_ticks": statistics.median(raw)}
            figures[strategy] |= {"net_ticks": statistics.median(net), "wrong_ticks_per_level": wrong}
            print(
                f"{strategy:10} outermost of {LEVELS} calls: true {expected:6.1f} ticks, measured "
                f"{statistics.median(raw):7.1f}, without the probes {statistics.median(net):6.1f}: "
                f"{wrong:+.2f} ticks a level"
            )
        leaves.ask("quit")
        leaves.process.wait()
    if arguments.json:
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
