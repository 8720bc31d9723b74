# SPDX-License-Identifier: Apache-2.0
"""What probes cost a forwarder, to a few nanoseconds on a machine that is not quiet (bench_testpmd.py: to a hundred).

Target: tests/targets/forwarders.c, one forwarder three times in one process: alone; with bare trampolines around its
receive, engine and transmit functions; with ours. They take turns of a tenth of a millisecond, so that what neighbours
do happens to all three. Rounds in which the first one was slower than usual are left out. Each setting in several
processes, for where memory happens to lie counts, too. Prints nanoseconds per batch of 32, medians over the processes,
and beside them the CPU time that the monitor spends on such a batch on its own CPU: every session makes statistics,
some a recording besides, or spans for a receiver on this machine. Sessions in which records were lost are dropped.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from otel_nfprobe.adapters.base import RoleFunction
from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.latecapture import NONE, SLOW
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_poll import build, start
from tests.benchmarks.measured_session import EXPORT, RECORDING, STATISTICS, BareChoice, Session, attached
from tests.benchmarks.receiver import receiver
from tests.benchmarks.rounds import NO_FIGURE, Spread, Watch, find_cpus, make_parser, spread, write_figures

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "forwarders.c"
BATCH, BATCHES, ROUNDS = 32, 64, 4096  # as in the target
WARM_BATCHES = 8  # before them, which write records, too
ROUNDS_SHORT = 400
RESULTS = np.dtype([("rounds", "<u8"), ("ticks", "<u8", (ROUNDS, 3))])
RING_BYTES = 16 << 20
SETTLE_S, DRAIN_S = 0.3, 0.05
UNDISTURBED = 1.1  # a round whose forwarder without probes took at most so many times what the quickest ones take
ROUNDS_MIN = 50
FREED = "freed"  # slow, as if buffers might be freed when they are sent
ADDRESSES = "addresses"  # the same, as if a check had found that transmit calls write addresses of frames
ADDRESSES_BYTES = 16  # that are copied then
COPIES = "copied"  # slow, as if packets did not stay readable
Ticks = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # per batch, by round and copy
KINDS = {  # which packets are identified, and where the records go
    NONE: (NONE, STATISTICS),
    SLOW: (SLOW, STATISTICS),
    FREED: (SLOW, STATISTICS),
    ADDRESSES: (SLOW, STATISTICS),
    COPIES: (SLOW, STATISTICS),
    RECORDING: (SLOW, RECORDING),
    EXPORT: (SLOW, EXPORT),
}
NAMES = ("bare", "probed")
DESCRIPTION = {
    "name": "forwarders",
    "recognise": {"executable": "forwarders", "exports": [f"{name}_receive" for name in NAMES]},
    "receive": [
        {"function": f"forwarders:{name}_receive", "pointers": 2, "requested": 3, "queue": 1, "count_bits": 16}
        for name in NAMES
    ],
    "transmit": [
        {"function": f"forwarders:{name}_transmit", "pointers": 2, "requested": 3, "count_bits": 16} for name in NAMES
    ],
    "buffer": {
        "data": 0,
        "data_offset": 8,
        "length": {"offset": 24, "bytes": 4},
        "segment_length": {"offset": 28, "bytes": 2},
    },
    "functions": [f"forwarders:{name}_forward" for name in NAMES],
}


PROGRAMS = {  # of other kinds: those that the adapters of DPDK make
    FREED: {"pooled": 0, "checked": 1, "plain": 0},  # that of a description
    ADDRESSES: {"pooled": 0, "checked": 1, "plain": 0},
    COPIES: {"pooled": 0, "checked": 0, "plain": 1},
}


class TrustedAdapter(DescribedAdapter):
    """Says of packets what a kind is about."""

    kind = SLOW

    def roles(self, target: Target) -> list[RoleFunction]:
        trusted = PROGRAMS.get(self.kind, {"pooled": 1, "checked": 0, "plain": 1})
        return [replace(role, program={**(role.program or {}), **trusted}) for role in super().roles(target)]


class HalfBareChoice(BareChoice):
    """Functions of the bare copy have the reference trampolines."""

    bare = "bare_"


class Forwarders:
    """The running target."""

    def __init__(self, binary: Path, cpu: int) -> None:
        self.process, self._results = start(binary, cpu, RESULTS, 1)

    def rounds(self) -> int:
        return int(self._results["rounds"][0])

    def batch_ticks(self, rounds: int) -> Ticks:
        """The last rounds."""
        last = np.arange(self.rounds() - rounds, self.rounds()) % ROUNDS
        ticks: Ticks = self._results["ticks"][0][last] / BATCHES
        return ticks


@dataclass(frozen=True)
class Measured:
    """One session.

    Attributes:
        ticks: of its rounds; empty where records were lost.
        monitor_ns: CPU time of the monitor for a probed batch.
        monitor_cores: the same in a second.
    """

    ticks: Ticks
    monitor_ns: float
    monitor_cores: float


def measure(forwarders: Forwarders, kind: str, rounds: int, port: int) -> Measured:
    """What the last rounds took while a monitor drains the probes."""
    target = Target(forwarders.process.pid)
    adapter = TrustedAdapter("forwarders.yaml", DESCRIPTION)
    adapter.kind = kind
    chosen = choose(target, adapter, [], [])
    choice = HalfBareChoice(chosen.adapter, chosen.roles, chosen.plans)
    assert len(choice.requests()) == 6, choice.refused
    packets, way = KINDS[kind]
    with attached(target, choice, Session(RING_BYTES, packets, way=way, port=port)) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        if kind == ADDRESSES:
            session = monitor.attachment.session
            for index in session.thread_indexes():
                session._table[index].copying = ADDRESSES_BYTES
        watch, begun = Watch(monitor), forwarders.rounds()
        while forwarders.rounds() < begun + rounds:
            monitor.drain.run_until(time.monotonic() + DRAIN_S)
        spent_ns, cores = watch.spent_ns(), watch.cores()
        batches = (forwarders.rounds() - begun) * (WARM_BATCHES + BATCHES)
        ticks = forwarders.batch_ticks(rounds)
        return Measured(ticks[:0] if watch.has_lost() else ticks, spent_ns / batches, cores)


def run_process(binary: Path, cpus: tuple[int, int], rounds: int, port: int) -> dict[str, Measured]:
    os.sched_setaffinity(0, set(cpus))
    forwarders = Forwarders(binary, cpus[1])
    while not forwarders.rounds():
        time.sleep(0.01)
    os.sched_setaffinity(0, {cpus[0]})
    try:
        return {kind: measure(forwarders, kind, rounds, port) for kind in random.sample(list(KINDS), len(KINDS))}
    finally:
        forwarders.process.kill()
        forwarders.process.wait()


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--processes", type=int, default=10)
    arguments = parser.parse_args()
    cpus = find_cpus(arguments.short)
    os.sched_setaffinity(0, {cpus[0]})  # for the receiver, too
    rounds, processes = (ROUNDS_SHORT, 1) if arguments.short else (ROUNDS, arguments.processes)
    with tempfile.TemporaryDirectory() as folder, receiver() as port:
        binary = build(SOURCE, Path(folder))
        measured = [run_process(binary, cpus, rounds, port) for _ in range(processes)]
    figures = summarise(measured, Clock.start().ticks_per_second / 1e9)
    write_figures(arguments.json, figures)


def find_added(measured: Measured, usual: float, ticks_per_ns: float) -> tuple[float, float]:
    """What bare trampolines and probes add to a batch, in ns. Not numbers: records were lost, or it was never quiet."""
    ticks = measured.ticks[measured.ticks[:, 0] <= UNDISTURBED * usual] / ticks_per_ns
    if len(ticks) < ROUNDS_MIN:
        return NO_FIGURE, NO_FIGURE
    bare, probed = np.median(ticks[:, 1:] - ticks[:, :1], axis=0)
    return float(bare), float(probed)


def summarise(measured: Sequence[dict[str, Measured]], ticks_per_ns: float) -> dict[str, object]:
    """Prints and returns the figures."""
    alone = np.concatenate([found.ticks[:, 0] for process in measured for found in process.values()])
    usual = float(np.percentile(alone, 1)) if len(alone) else NO_FIGURE
    kept = float(np.mean(alone <= UNDISTURBED * usual)) if len(alone) else 0.0
    print(f"one batch of {BATCH} without probes: {usual / ticks_per_ns:,.0f} ns; {kept:.0%} of all rounds count")
    figures: dict[str, object] = {"batch_ns": usual / ticks_per_ns, "rounds_kept": kept}
    probed_ns: dict[str, Spread] = {}
    for kind in KINDS:
        added = [find_added(process[kind], usual, ticks_per_ns) for process in measured]
        bare, probed = (spread(column) for column in zip(*added, strict=True))
        spent, cores = (
            spread(getattr(process[kind], name) if len(process[kind].ticks) else NO_FIGURE for process in measured)
            for name in ("monitor_ns", "monitor_cores")
        )
        probed_ns[kind] = probed
        figures[kind] = {"bare_ns": bare, "probed_ns": probed, "monitor_ns": spent, "monitor_cores": cores}
        print(
            f"  {kind:9} {probed.median:+7.1f} ns a batch (quartiles of {probed.rounds} sessions {probed.low:+.1f} .. "
            f"{probed.high:+.1f}), bare trampolines in the same rounds {bare.median:+.1f}:"
            f" {probed.median / bare.median:.2f} x; monitor {spent.median:.0f} ns a batch, {cores.median:.2f} cores"
        )
        if probed.dropped:
            restless = probed.dropped - spent.dropped
            print(
                f"{'':12}dropped: {spent.dropped} sessions in which records or spans were lost,"
                f" {restless} that were never quiet"
            )
    unidentified = {
        SLOW: "from pools",
        FREED: "of buffers that may be freed",
        ADDRESSES: "by copying addresses",
        COPIES: "by copying",
    }
    for kind, name in unidentified.items():
        figures[f"{kind}_packet_ns"] = (probed_ns[kind].median - probed_ns[NONE].median) / BATCH
        print(f"  a packet that is not identified, {name}: {figures[f'{kind}_packet_ns']:+.2f} ns")
    return figures


if __name__ == "__main__":
    main()
