# SPDX-License-Identifier: Apache-2.0
"""How right times are once what the probes cost is taken off: 20 nested calls, by each strategy.

Target: the chain of tests/targets/leaves.c, each level of which calls the next and works a little. Its true time
per level is known from runs without probes. Prints, per strategy, the mean time of the outermost call as measured
and with the cost of the probes taken off, and by how many ticks a level the latter is wrong.
"""

from __future__ import annotations

from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_probe import MEASURE_S, Leaves, running_leaves
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, Spread, lost, make_parser, spread, write_figures

LEVELS = 20
RING_BYTES = 64 << 20
PRINTED_SCALE = 20  # the target divides by calls of leaves; a chain stands for so many of them
STRATEGIES = ("in-stack", "relocated")


def measure_chain(leaves: Leaves, strategy: str) -> tuple[float, float]:
    """Mean ticks of the outermost call: as measured, and with the cost of the probes taken off.

    Not numbers where records were lost.
    """
    target = Target(leaves.process.pid)
    choice = choose(target, None, ["leaves:chain*"], [], strategy)
    with attached(target, choice, Session(RING_BYTES, NONE)) as monitor:
        leaves.ask("chain")
        monitor.run(MEASURE_S, lambda: None)
        leaves.read_ticks()
        monitor.drain.run_dry()
        if lost(monitor):
            return NO_FIGURE, NO_FIGURE
        outermost = monitor.attachment.names_by_id().index("chain1")
        (row,) = (row for row in monitor.drain.statistics.functions() if row["function"] == outermost)
        return float(row["raw_total_ticks"] / row["count"]), float(row["total_ticks"] / row["count"])


def measure(leaves: Leaves, strategy: str, rounds: int) -> dict[str, Spread]:
    """Ticks of the outermost call: true, as measured, without the probes, and by how much the last is wrong."""
    found: dict[str, list[float]] = {"true_ticks": [], "raw_ticks": [], "net_ticks": [], "wrong_ticks_per_level": []}
    for _ in range(rounds):
        true = leaves.ticks("chain") * PRINTED_SCALE
        raw, net = measure_chain(leaves, strategy)
        for name, value in zip(found, (true, raw, net, (net - true) / LEVELS), strict=True):
            found[name].append(value)
    return {name: spread(values) for name, values in found.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with running_leaves(arguments.short) as leaves:
        figures = {name: measure(leaves, name, 1 if arguments.short else arguments.rounds) for name in STRATEGIES}
    for strategy, found in figures.items():
        wrong = found["wrong_ticks_per_level"]
        print(
            f"{strategy:10} outermost of {LEVELS} calls: true {found['true_ticks'].median:6.1f} ticks, measured "
            f"{found['raw_ticks'].median:7.1f}, without the probes {found['net_ticks'].median:6.1f}: "
            f"{wrong.median:+.2f} ticks a level ({wrong.low:+.2f} .. {wrong.high:+.2f}){wrong.describe_dropped()}"
        )
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
