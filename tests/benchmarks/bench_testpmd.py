# SPDX-License-Identifier: Apache-2.0
"""What probes cost a real forwarder: dpdk-testpmd with its receive, engine and transmit functions probed, and Open
vSwitch (busy_ovs.py) and a double of VPP (busy_vpp.py) with those that nfprobe chooses by itself; what the summary of
the session says that they cost; and what CPU time the monitor spends meanwhile.

Short interleaved rounds in several processes: nothing; bare trampolines on the same sites (two time
stamps, each stored once, undrained: what any probe of this kind costs at least); ours with `--packets` none, slow
(with its defaults; and as if packets did not stay readable) and all, and none with `--counters auto`, drained by a real
monitor on the other CPU; slow with a recording, and with spans for a receiver beside the monitor. Prints nanoseconds of
CPU time per batch of 32, as paired differences with quartiles: the rounds of a shared machine differ by more than the
probes cost. What a round measured in which records were lost is dropped.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from elftools.elf.elffile import ELFFile

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.monitor.latecapture import ALL, NONE, SLOW
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.busy_ovs import OvsForwarder
from tests.benchmarks.busy_vpp import VppDoubleForwarder
from tests.benchmarks.measured_session import EXPORT, RECORDING, BareChoice, Session, attached, without_frees
from tests.benchmarks.receiver import receiver
from tests.benchmarks.rounds import NO_FIGURE, Spread, Watch, find_cpus, make_parser, spread, write_figures
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import make_frames, write_pcap

BATCH = 32
SETTLE_S = 0.05
ENGINE_WORDS = 5
BATCHES_MIN, BATCHES_MIN_SHORT = 20_000, 500
OVS, VPP = "ovs", "vpp"
MODES: tuple[str, ...] = ("macswap", "csum", OVS, VPP)
MODES_SHORT: tuple[str, ...] = ("macswap", OVS, VPP)  # csum is testpmd, too
NOTHING, BARE, FREED, COPIED, COUNTERS = "nothing", "bare", "freed", "copied", "counters"
LABELS = {
    BARE: "bare trampolines",
    NONE: "--packets none",
    SLOW: "--packets slow",
    FREED: "slow, buffers freed",
    COPIED: "slow, copies",
    ALL: "--packets all",
    COUNTERS: "none, --counters auto",
    RECORDING: "slow, --record",
    EXPORT: "slow, --endpoint",
}


@dataclass(frozen=True)
class Extent:
    """How much is measured of each forwarder."""

    restarts: int
    rounds: int
    seconds: float
    batches_min: int


def find_engine(target: Target, mode: str) -> str:
    """`module:0xoffset` of a forward engine's packet function.

    An engine is a structure of pointers: its name, then functions, the last of which forwards packets.
    """
    module = next(module for module in target.modules() if module.path == target.executable)
    with open(module.path, "rb") as file:
        relocations = ELFFile(file).get_section_by_name(".rela.dyn").iter_relocations()
        pointers = {row["r_offset"]: row["r_addend"] for row in relocations}
    wanted = mode.encode() + b"\0"
    for where, what in pointers.items():
        if module.image.read(what, len(wanted)) == wanted:
            functions = [pointers.get(where + 8 * word, 0) for word in range(1, ENGINE_WORDS)]
            starts = [offset for offset in functions if offset and starts_function(module, offset)]
            if starts:
                return f"{module.name}:{starts[-1]:#x}"
    raise SystemExit(f"dpdk-testpmd has no forward engine {mode}")


def starts_function(module: Module, offset: int) -> bool:
    function = function_at(module, offset)
    return function is not None and function.offset == offset


def threads_ns(pid: int) -> dict[str, int]:
    """CPU time of each thread."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return {path.parent.name: int(path.read_text().split()[0]) for path in paths}


class Forwarder(Protocol):
    """A running NF that forwards packets for ever."""

    @property
    def pid(self) -> int: ...

    def packets(self) -> int:
        """Packets that it has received, by its own count."""

    def choose(self, target: Target) -> Choice:
        """Its probes."""

    def drain_output(self) -> None: ...

    def stop(self) -> None: ...


class TestpmdForwarder:
    """testpmd with one engine."""

    def __init__(self, mode: str, prefix: str, capture: Path, lcores: str) -> None:
        self._mode = mode
        self._testpmd = Testpmd("dpdk-testpmd", prefix, pcap_device(capture, True), mode, False, lcores)
        self.pid, self.drain_output, self.stop = self._testpmd.pid, self._testpmd.drain_output, self._testpmd.stop

    def packets(self) -> int:
        return self._testpmd.telemetry()[0]

    def choose(self, target: Target) -> Choice:
        return choose(target, choose_adapter("dpdk", target), [find_engine(target, self._mode)], [])


def start(mode: str, number: int, capture: Path, cpus: tuple[int, int]) -> Forwarder:
    if mode == OVS:
        return OvsForwarder(capture)
    if mode == VPP:
        return VppDoubleForwarder()
    prefix = f"bench{os.getpid()}{mode}{number}"
    return TestpmdForwarder(mode, prefix, capture, f"0@{cpus[0]},1@{cpus[1]}")


class Measured(NamedTuple):
    """One round of one kind; not numbers where records were lost.

    Attributes:
        batch_ns: CPU time of the forwarding thread for a batch.
        monitor_ns: of the monitor for a batch.
        monitor_cores: of the monitor in a second.
        stated_ns, stated_max_ns: what the session's overhead says of a batch, the two ends of its range.
    """

    batch_ns: float
    monitor_ns: float = NO_FIGURE
    monitor_cores: float = NO_FIGURE
    stated_ns: float = NO_FIGURE
    stated_max_ns: float = NO_FIGURE


def forward(forwarder: Forwarder, extent: Extent, wait: Callable[[float], None]) -> tuple[float, float]:
    """Nanoseconds of CPU time per batch, by the forwarder's own counter: others may want the CPU, too. And batches.

    The thread that forwards is the one that has worked most meanwhile.
    """
    begun_ns, before = threads_ns(forwarder.pid), forwarder.packets()
    packets = 0
    while packets < extent.batches_min * BATCH:
        wait(extent.seconds)
        spent_ns = max(ns - begun_ns.get(tid, 0) for tid, ns in threads_ns(forwarder.pid).items())
        packets = forwarder.packets() - before
    return spent_ns / (packets / BATCH), packets / BATCH


@dataclass(frozen=True)
class Kind:
    """What one of the interleaved rounds measures: nothing where there is no choice."""

    label: str
    choice: Choice | None
    session: Session


def make_kinds(ours: Choice, every: Choice, ring_bytes: int, port: int) -> list[Kind]:
    """`every` probes functions that free packets, too."""
    bare = BareChoice(ours.adapter, ours.roles, ours.plans)
    none, slow = Session(ring_bytes, NONE), Session(ring_bytes, SLOW)
    kinds = [
        Kind(NOTHING, None, none),
        Kind(BARE, bare, none),
        Kind(NONE, ours, none),
        Kind(SLOW, ours, slow),
        Kind(FREED, _changed(ours, {"pooled": 0, "checked": 1, "plain": 0}), slow),
        Kind(COPIED, _changed(ours, {"pooled": 0}), slow),
        Kind(ALL, every, Session(ring_bytes, ALL)),
        Kind(RECORDING, ours, replace(slow, way=RECORDING)),
        Kind(EXPORT, ours, replace(slow, way=EXPORT, port=port)),
    ]
    if counters := find_counters():
        kinds.append(Kind(COUNTERS, ours, replace(none, counters=counters)))
    return kinds


def _changed(choice: Choice, program: dict[str, int]) -> Choice:
    """The same probes, as if buffers might be freed when they are sent, or their bytes be overwritten."""
    roles = [replace(role, program=role.program and {**role.program, **program}) for role in choice.roles]
    return Choice(choice.adapter, roles, choice.plans)


def find_counters() -> tuple[Counter, ...]:
    """What `--counters auto` reads here. None: the probes are the same bytes as without it."""
    choice = choose_counters("auto")
    return () if find_refusal(choice) else choice.hardware


def measure(forwarder: Forwarder, target: Target, kind: Kind, extent: Extent) -> Measured:
    if kind.choice is None:
        time.sleep(SETTLE_S)
        return Measured(forward(forwarder, extent, time.sleep)[0])
    with attached(target, kind.choice, kind.session) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        watch, before = Watch(monitor), find_overhead(monitor)
        batch_ns, batches = forward(
            forwarder, extent, lambda wanted: monitor.drain.run_until(time.monotonic() + wanted)
        )
        spent_ns, cores = watch.spent_ns(), watch.cores()
        if watch.has_lost():
            return Measured(NO_FIGURE)
        stated = (after - start for start, after in zip(before, find_overhead(monitor), strict=True))
        return Measured(batch_ns, spent_ns / batches, cores, *(ns / batches for ns in stated))


def find_overhead(monitor: Monitor) -> tuple[float, float]:
    """What a summary would say now that the probes have cost in all, in nanoseconds: the two ends of its range."""
    now = monitor.snapshot()
    return now.share_of_core * now.elapsed_s * 1e9, now.share_of_core_max * now.elapsed_s * 1e9


@dataclass
class Rounds:
    """What was measured of one forwarder in all its processes."""

    measured: dict[str, list[Measured]] = field(default_factory=dict)
    functions: list[int] = field(default_factory=list)  # probed, by process

    def column(self, label: str, name: str = "batch_ns") -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array([getattr(found, name) for found in self.measured[label]])

    def add(self, label: str, without: str = NOTHING) -> Spread:
        """What a kind adds to a batch that has another one, in pairs of the same round."""
        return spread(self.column(label) - self.column(without))


def run_mode(mode: str, extent: Extent, ring_bytes: int, port: int, capture: Path, cpus: tuple[int, int]) -> Rounds:
    """All rounds of a forwarder, in several processes: where its memory happens to lie moves the figures by 100 ns."""
    found = Rounds()
    for number in range(extent.restarts):
        os.sched_setaffinity(0, set(cpus))
        forwarder = start(mode, number, capture, cpus)
        os.sched_setaffinity(0, {cpus[0]})
        try:
            target = Target(forwarder.pid)
            every = forwarder.choose(target)
            ours = without_frees(every)
            found.functions.append(len(ours.requests()))
            for _ in range(extent.rounds):
                for kind in make_kinds(ours, every, ring_bytes, port):
                    found.measured.setdefault(kind.label, []).append(measure(forwarder, target, kind, extent))
                forwarder.drain_output()
        finally:
            forwarder.stop()
    return found


def summarise(mode: str, found: Rounds) -> dict[str, object]:
    """Prints and returns the figures."""
    nothing, functions = spread(found.column(NOTHING)), round(float(np.median(found.functions)))
    quartiles = f"quartiles {nothing.low:,.0f} .. {nothing.high:,.0f}"
    print(f"{mode}: {nothing.median:,.0f} ns per batch of {BATCH} ({quartiles}); {functions} functions probed")
    figures: dict[str, object] = {"functions": functions, "batch_ns": nothing}
    bare = found.add(BARE)
    for label in found.measured:
        if label == NOTHING:
            continue
        added = found.add(label)
        names = ("monitor_ns", "monitor_cores", "stated_ns", "stated_max_ns")
        spent, cores, stated, most = (spread(found.column(label, name)) for name in names)
        figures[label] = {
            "added_ns": added,
            "monitor_ns": spent,
            "monitor_cores": cores,
            "stated_ns": stated,
            "stated_max_ns": most,
        }
        print(
            f"  {LABELS[label]:22} {added.median:+6.0f} ns per batch (quartiles {added.low:+.0f} .. {added.high:+.0f}),"
            f" {100 * added.median / nothing.median:+.1f} %, {added.median / bare.median:5.2f} x bare;"
            f" stated {stated.median:.0f} to {most.median:.0f} ns;"
            f" monitor {spent.median:.0f} ns a batch, {cores.median:.2f} cores{added.describe_dropped()}"
        )
    for label, name in ((SLOW, "from pools"), (FREED, "of buffers that may be freed"), (COPIED, "by copying")):
        packet = figures[f"{label}_packet_ns"] = found.add(label, NONE).scaled(1 / BATCH)
        print(f"  a packet that is not identified, {name}: {packet.median:+.2f} ns")
    return figures


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--restarts", type=int, default=4, help="of each forwarder")
    parser.add_argument("--only", choices=MODES, help="one forwarder")
    parser.add_argument("--rounds", type=int, default=6, help="in each")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--ring-size", type=int, default=16 << 20, help="bytes")
    arguments = parser.parse_args()
    extent, modes = Extent(arguments.restarts, arguments.rounds, arguments.seconds, BATCHES_MIN), MODES
    if arguments.short:
        extent, modes = Extent(1, 1, 0.02, BATCHES_MIN_SHORT), MODES_SHORT
    figures = {}
    cpus = find_cpus(arguments.short)
    os.sched_setaffinity(0, {cpus[0]})  # for the receiver, too
    with tempfile.TemporaryDirectory() as folder, receiver() as port:
        capture = Path(folder) / "bench.pcap"
        write_pcap(capture, make_frames(1024))
        for mode in [arguments.only] if arguments.only else modes:
            if mode == OVS and not OvsForwarder.is_installed():
                print("Open vSwitch with DPDK is not installed: scripts/set-up test")
                continue
            found = run_mode(mode, extent, arguments.ring_size, port, capture, cpus)
            figures[mode] = summarise(mode, found)
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    assert struct.calcsize("P") == 8
    main()
