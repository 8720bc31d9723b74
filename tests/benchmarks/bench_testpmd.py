# SPDX-License-Identifier: Apache-2.0
"""What probes cost a real forwarder: dpdk-testpmd with its receive, engine and transmit functions probed, and Open
vSwitch (bench_ovs.py) with those that nfprobe chooses by itself.

Short interleaved rounds in several processes: nothing; bare trampolines on the same sites (two time
stamps, each stored once, undrained: what any probe of this kind costs at least); ours with `--packets` none, slow
(with its defaults; and as if packets did not stay readable) and all, and none with `--counters auto`, drained by a real
monitor on the other CPU. Prints nanoseconds of CPU time per batch of 32, as paired differences with quartiles: the
rounds of a shared machine differ by more than the probes cost.
"""

from __future__ import annotations

import argparse
import json
import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from elftools.elf.elffile import ELFFile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
from bench_ovs import OvsForwarder
from otel_nfprobe._core import lib
from testpmd import Testpmd, pcap_device
from traffic import make_frames, write_pcap

from otel_nfprobe.adapters.base import FREE, choose_adapter
from otel_nfprobe.analysis import FunctionPlan
from otel_nfprobe.choice import Choice, choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.detail import Detail
from otel_nfprobe.latecapture import ALL, NONE, SLOW, LateWish
from otel_nfprobe.modules import Module
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.symbols import function_at
from otel_nfprobe.target import Target
from otel_nfprobe.trampoline import ProbeRequest

BATCH = 32
SETTLE_S = 0.05
ENGINE_WORDS = 5
BATCHES_MIN = 20_000
OVS = "ovs"
MODES = ("macswap", "csum", OVS)


@dataclass
class BareChoice(Choice):
    """The same sites with the reference trampolines, or those of them whose functions' names begin so."""

    bare = ""

    def requests(self, plans: Sequence[FunctionPlan] | None = None) -> list[ProbeRequest]:
        return [
            replace(request, shape=lib.NFP_SHAPE_BARE, return_mask=0xFFFFFFFF)
            if request.plan.name.startswith(self.bare)
            else request
            for request in super().requests(plans)
        ]


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


def worker_ns(pid: int) -> int:
    """CPU time of the thread that forwards, which is the only one that is ever busy."""
    paths = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return max(int(path.read_text().split()[0]) for path in paths)


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


def start(mode: str, number: int, capture: Path, cpus: Sequence[int]) -> Forwarder:
    if mode == OVS:
        return OvsForwarder(capture)
    prefix = f"bench{os.getpid()}{mode}{number}"
    return TestpmdForwarder(mode, prefix, capture, f"0@{cpus[0]},1@{cpus[-1]}")


def batch_ns(forwarder: Forwarder, seconds: float, wait: Callable[[float], None]) -> float:
    """Nanoseconds of CPU time per batch, by the forwarder's own counter: others may want the CPU, too."""
    start, before = worker_ns(forwarder.pid), forwarder.packets()
    packets = 0
    while packets < BATCHES_MIN * BATCH:
        wait(seconds)
        elapsed, packets = worker_ns(forwarder.pid) - start, forwarder.packets() - before
    return elapsed / (packets / BATCH)


@dataclass(frozen=True)
class Kind:
    """What one of the interleaved rounds measures: nothing where there is no choice."""

    label: str
    choice: Choice | None
    packets: str = NONE
    counters: tuple[Counter, ...] = ()


def make_kinds(ours: Choice, every: Choice) -> list[Kind]:
    """In the order of the figures. `every` probes functions that free packets, too."""
    bare = BareChoice(ours.adapter, ours.roles, ours.plans)
    return [
        Kind("nothing", None),
        Kind("bare", bare),
        Kind(NONE, ours, NONE),
        Kind(SLOW, ours, SLOW),
        Kind("copied", copying(ours), SLOW),
        Kind(ALL, every, ALL),
        Kind("counters", ours, NONE, find_counters()),
    ]


def copying(choice: Choice) -> Choice:
    """The same probes, as if packets did not stay readable: headers are copied when a transmit call begins."""
    roles = [replace(role, program=role.program and {**role.program, "pooled": 0}) for role in choice.roles]
    return Choice(choice.adapter, roles, choice.plans)


def find_counters() -> tuple[Counter, ...]:
    """What `--counters auto` reads here."""
    choice = choose_counters("auto")
    return () if find_refusal(choice) else choice.hardware


@contextmanager
def attached(
    target: Target,
    choice: Choice,
    ring_bytes: int,
    packets: str,
    counters: Sequence[Counter] = (),
    detail: Detail | None = None,
) -> Iterator[Monitor]:
    """A monitor with the probes of a choice, and the thresholds that sessions have by default."""
    wish = LateWish.choose(None, None, None)
    monitor = Monitor(target, choice, ring_bytes, packets, print, wish=wish, detail=detail)
    monitor.counters = tuple(counters)
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    yield monitor
    monitor.detach()
    monitor.close()


def measure(forwarder: Forwarder, target: Target, kind: Kind, seconds: float, ring_bytes: int) -> float:
    if kind.choice is None:
        time.sleep(SETTLE_S)
        return batch_ns(forwarder, seconds, time.sleep)
    with attached(target, kind.choice, ring_bytes, kind.packets, kind.counters) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        return batch_ns(forwarder, seconds, lambda wanted: monitor.drain.run_until(time.monotonic() + wanted))


def run_mode(mode: str, arguments: argparse.Namespace, capture: Path) -> dict[str, float]:
    cpus = sorted(os.sched_getaffinity(0))
    times: list[list[float]] = []
    probed: list[int] = []
    for number in range(arguments.restarts):
        os.sched_setaffinity(0, set(cpus))
        rows, functions = run_process(mode, number, arguments, capture, cpus)
        times += rows
        probed.append(functions)
    os.sched_setaffinity(0, set(cpus))
    nothing, bare_ns, none_ns, slow_ns, copied_ns, all_ns, counted_ns = np.array(times).T
    functions = round(float(np.median(probed)))
    print(f"{mode}: {np.median(nothing):,.0f} ns per batch of {BATCH}; {functions} functions probed")
    bare = show("bare trampolines", bare_ns - nothing)
    none = show("--packets none", none_ns - nothing, bare)
    slow = show("--packets slow", slow_ns - nothing, bare)
    every = show("--packets all", all_ns - nothing)
    show("none, --counters auto", counted_ns - nothing, bare)
    counted = show(f"auto ({len(find_counters())} counters) - none", counted_ns - none_ns)
    late = show("slow - none", slow_ns - none_ns)
    copied = show("slow, copies - none", copied_ns - none_ns)
    print(f"  a packet that is not identified: from pools {late / BATCH:+.2f} ns, by copying {copied / BATCH:+.2f} ns")
    shares = {
        name: 100 * value / np.median(nothing) for name, value in (("none", none), ("slow", slow), ("all", every))
    }
    print("  of the batch's time: " + ", ".join(f"--packets {name} {share:+.1f} %" for name, share in shares.items()))
    return {
        "functions": functions,
        "batch_ns": float(np.median(nothing)),
        "bare_ns": bare,
        "nfprobe_ns": none,
        "slow_ns": slow,
        "all_ns": every,
        "counters_auto_ns": counted,
        "late_packet_ns": late / BATCH,
        "copied_packet_ns": copied / BATCH,
    }


def run_process(
    mode: str, number: int, arguments: argparse.Namespace, capture: Path, cpus: list[int]
) -> tuple[list[list[float]], int]:
    """Rounds in one process: where its memory and ours happen to lie moves the figures by a hundred ns.

    Returns:
        nanoseconds per batch, by round and kind; and how many functions are probed.
    """
    forwarder = start(mode, number, capture, cpus)
    os.sched_setaffinity(0, {cpus[0]})
    try:
        target = Target(forwarder.pid)
        every = forwarder.choose(target)
        ours = Choice(every.adapter, every.roles, every.plans)
        ours.leave_out(FREE)  # as `nfprobe attach` does, but for --packets all
        kinds = make_kinds(ours, every)
        times = []
        for _ in range(arguments.rounds):
            times.append([measure(forwarder, target, kind, arguments.seconds, arguments.ring_size) for kind in kinds])
            forwarder.drain_output()
        return times, len(ours.requests())
    finally:
        forwarder.stop()


def show(name: str, difference_ns: np.ndarray[tuple[int], np.dtype[np.float64]], bare_ns: float = 0.0) -> float:
    """Prints the median with its quartiles, and its ratio to the bare trampolines'; returns it."""
    low, middle, high = np.percentile(difference_ns, [25, 50, 75])
    ratio = f"   {middle / bare_ns:5.2f} x bare" if bare_ns else ""
    print(f"  {name:24} {middle:+6.0f} ns per batch (quartiles {low:+.0f} .. {high:+.0f}){ratio}")
    return float(middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--restarts", type=int, default=7, help="of each forwarder")
    parser.add_argument("--only", choices=MODES, help="one forwarder")
    parser.add_argument("--rounds", type=int, default=5, help="in each")
    parser.add_argument("--seconds", type=float, default=0.2)
    parser.add_argument("--ring-size", type=int, default=16 << 20, help="bytes")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "bench.pcap"
        write_pcap(capture, make_frames(1024))
        figures = {}
        for mode in [arguments.only] if arguments.only else MODES:
            if mode == OVS and not OvsForwarder.is_installed():
                print("Open vSwitch with DPDK is not installed: scripts/set-up test")
                continue
            figures[mode] = run_mode(mode, arguments, capture)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    assert struct.calcsize("P") == 8
    main()
