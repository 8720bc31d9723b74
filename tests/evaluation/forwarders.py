# SPDX-License-Identifier: Apache-2.0
"""Table 3: throughput of real forwarders while more and more of their functions are probed.

Targets: dpdk-testpmd with two engines, Open vSwitch and examples/firewall, unmodified, each as fast as it can on a CPU
of its own. Of the firewall, firewall_rate.py says which functions and how it is measured. Of the others, first
all functions of the modules that forward are probed for a moment, to see which are called and how often; those that are
called most nearly once a batch come first. Then 1, 5, 10 and all of the called ones are probed, entry and exit, by
nfprobe and by eBPF. The figure is CPU time of the forwarding thread for a batch of 32 packets, by the forwarder's own
count of packets, in several processes; what a tool adds is the difference to the round without it just before. eBPF
comes last in each process: what the kernel leaves behind in the code would cost others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TypeVar

import numpy as np

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks import bench_testpmd
from tests.benchmarks.bench_testpmd import BATCH, Forwarder, forward
from tests.benchmarks.busy_ovs import OvsForwarder
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, Watch
from tests.benchmarks.uprobe_peer import uprobes
from tests.evaluation import firewall_rate, peers
from tests.evaluation.extent import Extent
from tests.evaluation.samples import Sample, missing
from tests.support.traffic import make_frames, write_pcap

# What forwards, and the modules that it does it in.
TESTPMD_MODULES = ("dpdk-testpmd:*", "librte_net_pcap*:*", "librte_ethdev*:*", "librte_mempool*:*", "librte_mbuf*:*")
OVS_MODULES = ("ovs-vswitchd-dpdk:*", "librte_net_pcap*:*", "librte_net_null*:*")
FORWARDERS = {"macswap": TESTPMD_MODULES, "csum": TESTPMD_MODULES, bench_testpmd.OVS: OVS_MODULES}
NAMES = {"macswap": "testpmd, macswap", "csum": "testpmd, csum", bench_testpmd.OVS: "Open vSwitch"}
SHOWN = (*NAMES.values(), firewall_rate.NAME)
ONE, FIVE, TEN, ALL = "1", "5", "10", "all that are called"
DENSITIES = {ONE: 1, FIVE: 5, TEN: 10, ALL: 1 << 20}
Function = TypeVar("Function")
NOTHING, OURS, BPF = "nothing", "nfprobe", "eBPF uprobe and uretprobe"
BATCH_NS, ADDED_NS, FUNCTIONS, CALLS = "ns a batch", "ns a batch added", "functions", "calls a batch"
RING_BYTES = 64 << 20
COUNT_S, SETTLE_S = 0.3, 0.05
RESTARTS, ROUNDS = 4, 3
CALLS_MIN = 0.01  # a batch: what is called more seldom is no part of forwarding


@dataclass(frozen=True)
class Called:
    """A function that runs while packets are forwarded.

    Attributes:
        path, offset: where a uprobe of it is.
        glob: as `--functions` names it.
    """

    glob: str
    path: Path
    offset: int
    per_batch: float


def rank(called: Sequence[Called]) -> list[Called]:
    """Those that are called most nearly once a batch first."""
    return sorted((one for one in called if one.per_batch >= CALLS_MIN), key=lambda one: abs(np.log(one.per_batch)))


def choose_by_density(called: Sequence[Function]) -> dict[str, Sequence[Function]]:
    """Which functions are probed, by density; one that adds none is left out."""
    found = {density: called[:most] for density, most in DENSITIES.items() if most < len(called)}
    return {**found, ALL: called}


def find_called(forwarder: Forwarder, globs: Sequence[str], seconds: float) -> list[Called]:
    """Probes everything for a moment and counts."""
    target = Target(forwarder.pid)
    present = [module.name for module in target.modules()]
    there = [glob for glob in globs if any(name.startswith(glob.split(":")[0].rstrip("*")) for name in present)]
    choice = choose(target, None, there, [])
    with attached(target, choice, Session(RING_BYTES, NONE), lambda said: None) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        counts, packets = monitor.drain.statistics.call_counts().copy(), forwarder.packets()
        monitor.drain.run_until(time.monotonic() + seconds)
        batches = max(1.0, (forwarder.packets() - packets) / BATCH)
        after = monitor.drain.statistics.call_counts()
        counts = after - np.pad(counts, (0, len(after) - len(counts)))
        functions = {probe.id: probe.request.plan.function for probe in monitor.attachment.probes}
    return [
        Called(
            f"{escape(function.module.name)}:{function.offset:#x}",
            Path(function.module.path),
            find_file_offset(function.module, function.offset),
            float(counts[number]) / batches,
        )
        for number, function in functions.items()
        if number < len(counts)
    ]


def find_file_offset(module: Module, address: int) -> int:
    """Where the code at an address of a module is in its file."""
    return next(
        address - segment.address + segment.offset
        for segment in module.image.segments
        if segment.address <= address < segment.address + segment.file_bytes
    )


def measure(forwarder: Forwarder, extent: bench_testpmd.Extent) -> float:
    """Nanoseconds of a batch without probes."""
    time.sleep(SETTLE_S)
    return forward(forwarder, extent, time.sleep)[0]


def measure_probed(forwarder: Forwarder, functions: Sequence[Called], extent: bench_testpmd.Extent) -> float:
    """The same with nfprobe at these functions; not a number where records were lost."""
    target = Target(forwarder.pid)
    choice = choose(target, None, [function.glob for function in functions], [])
    with attached(target, choice, Session(RING_BYTES, NONE), lambda said: None) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        watch = Watch(monitor)
        batch_ns, _ = forward(forwarder, extent, lambda s: monitor.drain.run_until(time.monotonic() + s))
        return NO_FIGURE if watch.has_lost() else batch_ns


def measure_by_bpf(forwarder: Forwarder, functions: Sequence[Called], extent: bench_testpmd.Extent) -> float:
    """The same with a uprobe and a uretprobe at each."""
    with ExitStack() as stop:
        for path in {function.path for function in functions}:
            offsets = [function.offset for function in functions if function.path == path]
            stop.enter_context(uprobes(forwarder.pid, path, offsets))
        return measure(forwarder, extent)


Probed = Callable[[Forwarder, Sequence[Called], bench_testpmd.Extent], float]


def run_process(forwarder: Forwarder, mode: str, number: int, extent: Extent) -> list[Sample]:
    """All rounds of one process: nfprobe's, then those of eBPF."""
    once = bench_testpmd.Extent(1, 1, 0.02 if extent.is_short else 0.2, 200 if extent.is_short else 2_000)
    called = rank(find_called(forwarder, FORWARDERS[mode], COUNT_S))
    name, samples = NAMES[mode], []
    for density, chosen in choose_by_density(called).items():
        per_batch = sum(function.per_batch for function in chosen)
        samples.append(Sample(name, density, FUNCTIONS, number, len(chosen)))
        samples.append(Sample(name, density, CALLS, number, per_batch))
    rounds = [(OURS, measure_probed)] * extent.count_rounds(ROUNDS)
    if not peers.UPROBES.find_missing():
        rounds.append((BPF, measure_by_bpf))
    for part, (tool, probe) in enumerate(rounds):
        samples += _run_round(forwarder, called, name, number * len(rounds) + part, tool, probe, once)
        forwarder.drain_output()
    return samples


def _run_round(
    forwarder: Forwarder,
    called: Sequence[Called],
    name: str,
    number: int,
    tool: str,
    probe: Probed,
    once: bench_testpmd.Extent,
) -> list[Sample]:
    """One tool at each density, each with a figure without it just before."""
    samples = []
    for density, chosen in choose_by_density(called).items():
        case, without_ns = f"{name}, {density}", measure(forwarder, once)
        try:
            with_ns, note = probe(forwarder, chosen, once), ""
        except OSError as error:
            with_ns, note = NO_FIGURE, f"the kernel refused: {error.strerror}"
        if np.isnan(with_ns):
            note = note or "records were lost: more than the monitor can drain"
        samples.append(Sample(name, NOTHING, BATCH_NS, number, without_ns))
        samples.append(Sample(case, tool, ADDED_NS, number, with_ns - without_ns, note))
        print(f"  {case}: {tool}: {without_ns:,.0f} -> {with_ns:,.0f} ns {note}", flush=True)
    return samples


def run(extent: Extent) -> list[Sample]:
    samples: list[Sample] = []
    capture = extent.folder / "frames.pcap"
    write_pcap(capture, make_frames(1024))
    for mode, name in NAMES.items():
        if extent.is_short and mode == "csum":  # is testpmd, too
            continue
        if mode == bench_testpmd.OVS and not OvsForwarder.is_installed():
            samples.append(
                missing(name, NOTHING, BATCH_NS, "Open vSwitch with DPDK is not installed: scripts/set-up test")
            )
            continue
        for number in range(extent.count_rounds(RESTARTS)):
            os.sched_setaffinity(0, set(extent.cpus))
            forwarder = bench_testpmd.start(mode, number, capture, extent.cpus)
            os.sched_setaffinity(0, {extent.cpus[0]})
            try:
                samples += run_process(forwarder, mode, number, extent)
            finally:
                forwarder.stop()
    return samples + _run_firewall(extent)


def _run_firewall(extent: Extent) -> list[Sample]:
    """Each figure is of a new process, and so is that without probes just before."""
    binary, name, samples = firewall_rate.build(extent.folder), firewall_rate.NAME, []
    os.sched_setaffinity(0, set(extent.cpus))
    for number in range(extent.count_rounds(RESTARTS)):
        for density, functions in choose_by_density(firewall_rate.FUNCTIONS).items():
            samples.append(Sample(name, density, FUNCTIONS, number, len(functions)))
            tools = {OURS: firewall_rate.probe(functions)}
            if not peers.UPROBES.find_missing():
                tools[BPF] = firewall_rate.probe_by_bpf(binary, functions)
            for tool, watch in tools.items():
                without_ns, note, with_ns = firewall_rate.measure(extent), "", NO_FIGURE
                try:
                    with_ns = firewall_rate.measure(extent, watch)
                except (ValueError, OSError) as error:
                    note = str(error)
                samples.append(Sample(name, NOTHING, BATCH_NS, number, without_ns))
                samples.append(Sample(f"{name}, {density}", tool, ADDED_NS, number, with_ns - without_ns, note))
                print(f"  {name}, {density}: {tool}: {without_ns:,.0f} -> {with_ns:,.0f} ns {note}", flush=True)
    return samples
