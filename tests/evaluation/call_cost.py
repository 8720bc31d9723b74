# SPDX-License-Identifier: Apache-2.0
"""Table 1: what a probed call costs by each tool, in one run on one core.

Target: tests/targets/leaves.c, functions of ten instructions called in turn, on a CPU of its own; recorders run on
another one. Each round measures all tools one after the other, in an order of its own, each in a new process; a figure
is what the tool adds to a call of the plain program. Tools that cost much probe fewer of the functions or are given
fewer calls. Where a tool says how many calls it kept, a round in which it kept fewer than were made is dropped.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_probe import FAMILIES, MEASURE_S, SOURCE, Leaves, compile_leaves
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, lost
from tests.benchmarks.uprobe_peer import AT_ENTRY, AT_EXIT, find_offsets, uprobes
from tests.evaluation import peers
from tests.evaluation.attached import CountKept, frida_interceptor, gdb_breakpoints, perf_uprobes
from tests.evaluation.extent import Extent
from tests.evaluation.launched import (
    Launch,
    Start,
    launch_lttng,
    launch_preloaded,
    launch_uftrace,
    launch_xray,
)
from tests.evaluation.samples import Sample, missing

ENTRY, BOTH, LIBRARY, COUNTERS = (
    "function, entry only",
    "function, entry and exit",
    "library call, entry and exit",
    "function, entry and exit, with two counters",
)
FIGURE = "ns a call"
PLAIN = "leaves"  # as bench_probe.py calls it, and what its functions are asked for
FUNCTIONS = 100  # of a family in the target
CALLS_A_ROUND, ROUNDS_OF_TARGET = 20, 201  # of each function, by the target
ROUNDS = 9
RING_BYTES = 64 << 20  # of nfprobe: with counters a call takes three times as much
SOFTWARE = "task-clock,page-faults"
GCC_INSTRUMENTED = ("gcc", "-finstrument-functions")
XRAY_BUILD = ("clang", "-fxray-instrument", "-fxray-instruction-threshold=1")
RUNNING, LAUNCHED, REBUILT = "running", "at launch", "rebuilt"
DRAINED, FILES, MEMORY, COUNTED = "drained", "written to files", "newest kept in memory", "counted only"
FLOOR = "by hand in the source: the floor"


@dataclass(frozen=True)
class Bench:
    """The builds of the program.

    Attributes:
        without: ticks of a call of each family without probes, in this round.
    """

    extent: Extent
    builds: dict[str, Path]
    ns_per_tick: float
    without: dict[str, float]

    @contextmanager
    def start(self, build: str = PLAIN, way: Launch | None = None) -> Iterator[Leaves]:
        """A new process."""
        way = way or Launch()
        leaves = Leaves(self.builds[build], self.extent.cpus[1], way.launcher, {**os.environ, **way.environment})
        try:
            yield leaves
        finally:
            leaves.process.kill()
            leaves.process.wait()


@dataclass(frozen=True)
class Way:
    """One row: how a tool measures.

    Attributes:
        process: what can be probed: a running process, one from its launch, a program that is built for it.
        keeps: what becomes of what it notes.
        measure: ns that it adds to a call, and why not where it is no number.
    """

    case: str
    tool: str
    process: str
    keeps: str
    peer: peers.Peer | None
    measure: Callable[[Bench], tuple[float, str]]


def find_calls(rounds: int, functions: int) -> int:
    """That the target makes of so many functions when it is asked once."""
    return rounds * CALLS_A_ROUND * functions


def probe(strategy: str, counters: str = "") -> Callable[[Bench], tuple[float, str]]:
    """nfprobe, as a monitor in this process."""
    family, glob = FAMILIES[strategy]

    def measure(bench: Bench) -> tuple[float, str]:
        session = Session(RING_BYTES, NONE, choose_counters(counters).counters if counters else ())
        with bench.start() as leaves:
            target = Target(leaves.pid)
            with attached(target, choose(target, None, [glob], [], strategy), session, lambda said: None) as monitor:
                leaves.ask(family)
                monitor.run(MEASURE_S, lambda: None)
                ticks = leaves.read_ticks()
                monitor.drain.run_dry()
                if lost(monitor):
                    return NO_FIGURE, "records were lost"
        return (ticks - bench.without[family]) * bench.ns_per_tick, ""

    return measure


def write_by_hand(bench: Bench) -> tuple[float, str]:
    with bench.start() as leaves:
        return (leaves.ticks("floor") - bench.without["bare"]) * bench.ns_per_tick, ""


def launch(
    build: str, make: Start, family: str = "bare", rounds: int = ROUNDS_OF_TARGET
) -> Callable[[Bench], tuple[float, str]]:
    """A program that is started with the tool, asked twice: the first time its buffers are new."""

    def measure(bench: Bench) -> tuple[float, str]:
        with make(bench.extent.folder) as way:
            with bench.start(build, way) as leaves:
                leaves.ticks(f"{family} {rounds}")
                ticks = leaves.ticks(f"{family} {rounds}")
                leaves.ask("quit")
                leaves.process.wait(60)
            if way.count_kept and way.count_kept() < 2 * find_calls(rounds, FUNCTIONS):
                return NO_FIGURE, "it kept fewer calls than were made"
        return (ticks - bench.without[family]) * bench.ns_per_tick, ""

    return measure


def attach(
    make: Callable[[Leaves, int, Path], AbstractContextManager[CountKept]],
    functions: int,
    rounds: int = ROUNDS_OF_TARGET,
) -> Callable[[Bench], tuple[float, str]]:
    """The running program with so many of its functions probed: others cost what they cost without."""

    def measure(bench: Bench) -> tuple[float, str]:
        try:
            with bench.start() as leaves, make(leaves, functions, bench.extent.folder) as count_kept:
                ticks = leaves.ticks(f"bare {rounds}")
                is_lost = count_kept() < find_calls(rounds, functions)
        except OSError as error:
            return NO_FIGURE, f"the kernel refused: {error.strerror}"
        if is_lost:
            return NO_FIGURE, "it kept fewer calls than were made"
        return (ticks - bench.without["bare"]) * FUNCTIONS / functions * bench.ns_per_tick, ""

    return measure


def find_addresses(binary: Path, prefix: str) -> list[int]:
    image = ElfImage(str(binary), binary.read_bytes())
    return sorted({symbol.address for symbol in image.symbols if symbol.name.startswith(prefix)})


def uprobe_entries(leaves: Leaves, functions: int, folder: Path) -> AbstractContextManager[CountKept]:
    return uprobes(leaves.pid, leaves.binary, find_offsets(leaves.binary, "leaf")[:functions], (AT_ENTRY,))


@contextmanager
def uprobe_pairs(leaves: Leaves, functions: int, folder: Path) -> Iterator[CountKept]:
    offsets = find_offsets(leaves.binary, "leaf")[:functions]
    with uprobes(leaves.pid, leaves.binary, offsets, (AT_ENTRY, AT_EXIT)) as count_hits:
        yield lambda: count_hits() // 2


def perf_pairs(leaves: Leaves, functions: int, folder: Path) -> AbstractContextManager[CountKept]:
    return perf_uprobes(leaves.pid, leaves.binary, find_offsets(leaves.binary, "leaf")[:functions], folder)


def frida_native(leaves: Leaves, functions: int, folder: Path) -> AbstractContextManager[CountKept]:
    addresses = find_addresses(leaves.binary, "leaf")[:functions]
    return frida_interceptor(leaves.pid, leaves.binary, addresses, is_native=True)


def frida_scripted(leaves: Leaves, functions: int, folder: Path) -> AbstractContextManager[CountKept]:
    addresses = find_addresses(leaves.binary, "leaf")[:functions]
    return frida_interceptor(leaves.pid, leaves.binary, addresses, is_native=False)


def gdb_entries(leaves: Leaves, functions: int, folder: Path) -> AbstractContextManager[CountKept]:
    return gdb_breakpoints(leaves.pid, [f"leaf1{number}" for number in range(functions)], folder)


def make_ways(folder: Path) -> list[Way]:
    """All rows."""
    return [*_entry_ways(), *_running_ways(), *_started_ways(), *_library_ways(folder), *_counting_ways()]


def _entry_ways() -> list[Way]:
    return [
        Way(ENTRY, "nfprobe", RUNNING, DRAINED, None, probe("entry")),
        Way(ENTRY, "eBPF uprobe", RUNNING, COUNTED, peers.UPROBES, attach(uprobe_entries, 5)),
        Way(ENTRY, "gdb breakpoint with commands", RUNNING, COUNTED, peers.GDB, attach(gdb_entries, 1, 3)),
    ]


def _running_ways() -> list[Way]:
    """Entry and exit in a process that runs already, and the floor beside them."""
    return [
        Way(BOTH, FLOOR, REBUILT, MEMORY, None, write_by_hand),
        Way(BOTH, "nfprobe, in-stack call", RUNNING, DRAINED, None, probe("in-stack")),
        Way(BOTH, "nfprobe, relocated body", RUNNING, DRAINED, None, probe("relocated")),
        Way(BOTH, "Frida, callbacks in C", RUNNING, MEMORY, peers.FRIDA, attach(frida_native, FUNCTIONS)),
        Way(BOTH, "Frida, callbacks in JavaScript", RUNNING, COUNTED, peers.FRIDA, attach(frida_scripted, 5, 21)),
        Way(BOTH, "eBPF uprobe and uretprobe", RUNNING, COUNTED, peers.UPROBES, attach(uprobe_pairs, 5)),
        Way(BOTH, "perf record of uprobe events", RUNNING, FILES, peers.PERF, attach(perf_pairs, 5)),
    ]


def _started_ways() -> list[Way]:
    """Entry and exit of a program that the tool starts, or that is built for it."""
    flight, basic = launch_xray("xray-fdr"), launch_xray("xray-basic")
    plain, patched = launch_uftrace("--no-libcall"), launch_uftrace("--no-libcall", "-P", ".")
    return [
        Way(BOTH, "uftrace -P .", LAUNCHED, FILES, peers.UFTRACE, launch(PLAIN, patched)),
        Way(BOTH, "uftrace, -pg", REBUILT, FILES, peers.UFTRACE, launch("pg", plain)),
        Way(BOTH, "uftrace, patchable entries", REBUILT, FILES, peers.UFTRACE, launch("patchable", patched)),
        Way(BOTH, "LTTng-UST", REBUILT, FILES, peers.LTTNG, launch("instrumented", launch_lttng())),
        Way(BOTH, "XRay, flight data recorder", REBUILT, MEMORY, peers.XRAY, launch("xray", flight)),
        Way(BOTH, "XRay, basic", REBUILT, FILES, peers.XRAY, launch("xray", basic, rounds=21)),
    ]


def _library_ways(folder: Path) -> list[Way]:
    wrappers, hooks = launch_preloaded(folder / "libwrappers.so"), launch_uftrace("--force")
    return [
        Way(LIBRARY, "nfprobe, GOT slot", RUNNING, DRAINED, None, probe("got")),
        Way(LIBRARY, "wrappers by hand, preloaded", LAUNCHED, MEMORY, peers.PRELOAD, launch(PLAIN, wrappers, "slots")),
        Way(LIBRARY, "uftrace, PLT hooks", LAUNCHED, FILES, peers.UFTRACE, launch(PLAIN, hooks, "slots")),
    ]


def _counting_ways() -> list[Way]:
    faults = launch_uftrace("--no-libcall", "-T", "leaf@read=page-fault")
    both = launch_lttng("perf:thread:task-clock", "perf:thread:page-fault")
    return [
        Way(COUNTERS, "nfprobe, in-stack call", RUNNING, DRAINED, None, probe("in-stack", SOFTWARE)),
        Way(COUNTERS, "uftrace, -pg, one counter", REBUILT, FILES, peers.UFTRACE, launch("pg", faults)),
        Way(COUNTERS, "LTTng-UST", REBUILT, FILES, peers.LTTNG, launch("instrumented", both, rounds=21)),
    ]


def build_all(folder: Path) -> dict[str, Path]:
    """The plain program, those that are built for a tool, and the wrappers."""
    words = ["gcc", "-std=gnu11", "-O2", str(SOURCE), "-shared", "-fPIC", "-DWRAPPERS"]
    subprocess.run([*words, "-o", str(folder / "libwrappers.so")], check=True)
    builds = {
        PLAIN: ("gcc",),
        "pg": ("gcc", "-pg"),
        "patchable": ("gcc", "-fpatchable-function-entry=5"),
        "instrumented": GCC_INSTRUMENTED,
    }
    if not peers.XRAY.find_missing():
        builds["xray"] = XRAY_BUILD
    return {name: compile_leaves(folder, name, compiler) for name, compiler in builds.items()}


def run(extent: Extent) -> list[Sample]:
    """All rounds. What cannot be had is one row with the reason."""
    builds = build_all(extent.folder)
    os.sched_setaffinity(0, {extent.cpus[0]})
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    return _run_rounds(Bench(extent, builds, ns_per_tick, {}), make_ways(extent.folder))


def _run_rounds(bench: Bench, ways: Sequence[Way]) -> list[Sample]:
    samples = []
    for way in ways:
        if reason := way.peer.find_missing() if way.peer else "":
            samples.append(missing(way.case, way.tool, FIGURE, reason))
    there = [way for way in ways if not (way.peer and way.peer.find_missing())]
    samples += [Sample(way.case, way.tool, "process", 0, NO_FIGURE, way.process) for way in ways]
    samples += [Sample(way.case, way.tool, "records", 0, NO_FIGURE, way.keeps) for way in ways]
    for number in range(bench.extent.count_rounds(ROUNDS)):
        with bench.start() as leaves:
            bench.without.update((family, leaves.ticks(family)) for family in ("bare", "slots"))
        samples.append(
            Sample("unprobed call", "plain program", FIGURE, number, bench.without["bare"] * bench.ns_per_tick)
        )
        for way in random.sample(there, len(there)):
            spent_ns, note = way.measure(bench)
            samples.append(Sample(way.case, way.tool, FIGURE, number, spent_ns, note))
            print(f"  {way.case}: {way.tool}: {spent_ns:,.1f} ns {note}", flush=True)
    return _sort(samples, ways)


def _sort(samples: list[Sample], ways: Sequence[Way]) -> list[Sample]:
    """In the order of the table, whatever the rounds' was."""
    order = {(way.case, way.tool): number for number, way in enumerate(ways)}
    return sorted(samples, key=lambda sample: (order.get((sample.case, sample.tool), -1), sample.round))
