# SPDX-License-Identifier: Apache-2.0
"""Table 4: how long packets take through a network function with and without probes, by the packets' own times.

Targets: dpdk-testpmd and Open vSwitch between two wires, each polling on a CPU of its own. tests/targets/frame_pair.c
sends numbered frames into one wire, receives them from the other one, and takes the time of each from send to receipt:
nothing of that comes from a tool. Frames come at an even pace that leaves the function mostly idle, or as fast as the
sender can. Probed are the functions that nfprobe takes by its adapter, and the engine of testpmd; eBPF probes the same.
"""

from __future__ import annotations

import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_testpmd import find_engine
from tests.benchmarks.busy_ovs import OvsForwarder
from tests.benchmarks.busy_testpmd import Session
from tests.benchmarks.measured_session import without_frees
from tests.benchmarks.rounds import NO_FIGURE
from tests.benchmarks.uprobe_peer import uprobes
from tests.evaluation import peers
from tests.evaluation.extent import Extent
from tests.evaluation.forwarders import find_file_offset
from tests.evaluation.samples import Sample, missing
from tests.support.ovs_dpdk import start_wired_switch, wire_port
from tests.support.switch_processes import SwitchProcesses
from tests.support.testpmd import Testpmd
from tests.support.wired_chain import LAUNCHER

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "frame_pair.c"
FROM, TO = "gen", "b0"  # ends of the wires
FRAMES, FRAMES_SHORT = 50_000, 2_000
LOADS = {"20,000 packets a second": 50_000, "as fast as they can be sent": 0}  # gap in ns
TESTPMD, OVS = "testpmd, macswap", "Open vSwitch"
NOTHING, OURS, BPF = "nothing", "nfprobe attach", "eBPF, the same functions"
PERCENTILES = (50, 90, 99)
FIGURES = tuple(f"us, p{part}" for part in PERCENTILES)
ARRIVED = "share that arrived"
ROUNDS = 5
Method = Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True)
class Between:
    """A network function between the wires.

    Attributes:
        functions: further ones than the adapter's, as `--functions` names them.
    """

    name: str
    pid: int
    functions: Sequence[str]


@contextmanager
def testpmd(cpu: int) -> Iterator[Between]:
    devices = "net_af_packet0,iface=a0,framecnt=2048 net_af_packet1,iface=a1,framecnt=2048"
    cores = f"0@{min(os.sched_getaffinity(0))},1@{cpu}"
    running = Testpmd(
        "dpdk-testpmd", f"nfplatency{os.getpid()}", devices, "macswap", False, cores, LAUNCHER,
        topology="paired", is_locked=False,
    )  # fmt: skip
    try:
        yield Between(TESTPMD, running.pid, [find_engine(Target(running.pid), "macswap")])
    finally:
        running.stop()


@contextmanager
def open_vswitch(cpu: int) -> Iterator[Between]:
    with tempfile.TemporaryDirectory() as folder:
        switch = SwitchProcesses(Path(folder))
        try:
            ports = {"p1": wire_port(1, "a0"), "p2": wire_port(2, "a1")}
            yield Between(OVS, start_wired_switch(switch, LAUNCHER, cpu, ports, "output:2"), [])
        finally:
            switch.stop()


def watch_by_nfprobe(between: Between) -> Method:
    """In a process of its own, with its defaults.

    Raises:
        ValueError: records were lost.
    """

    @contextmanager
    def watch(pid: int) -> Iterator[None]:
        named = [word for glob in between.functions for word in ("--functions", glob)]
        session = Session(pid, *named)
        try:
            yield
        finally:
            lost = session.end()["records"]["lost"]
        if any(lost.values()):
            raise ValueError("records were lost")

    return watch


def watch_by_bpf(between: Between) -> Method:
    @contextmanager
    def watch(pid: int) -> Iterator[None]:
        target = Target(pid)
        choice = without_frees(choose(target, choose_adapter("auto", target), between.functions, []))
        with ExitStack() as stop:
            for plan in (request.plan for request in choice.requests()):
                offset = find_file_offset(plan.module, plan.offset)
                stop.enter_context(uprobes(pid, Path(plan.module.path), [offset]))
            yield

    return watch


def measure(extent: Extent, pid: int, gap_ns: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Nanoseconds of each frame, the first tenth left out; 0: it was not received."""
    count, times = FRAMES_SHORT if extent.is_short else FRAMES, extent.folder / "times"
    words = ["nsenter", f"--target={pid}", "--net", extent.folder / "frame_pair", FROM, TO, count, gap_ns, times]
    subprocess.run(list(map(str, words)), check=True, timeout=120)
    return np.fromfile(times, dtype="<u8").astype(float)[count // 10 :]


def summarise(times: np.ndarray[tuple[int], np.dtype[np.float64]]) -> dict[str, float]:
    """The figures of one round."""
    arrived = times[times > 0] / 1e3
    share = len(arrived) / len(times)
    if not len(arrived):
        return {ARRIVED: share, **dict.fromkeys(FIGURES, NO_FIGURE)}
    return {ARRIVED: share, **dict(zip(FIGURES, map(float, np.percentile(arrived, PERCENTILES)), strict=True))}


def run(extent: Extent) -> list[Sample]:
    words = ["gcc", "-std=gnu11", "-O2", str(SOURCE), "-o", str(extent.folder / "frame_pair")]
    subprocess.run(words, check=True)
    samples: list[Sample] = []
    for name, start in ((TESTPMD, testpmd), (OVS, open_vswitch)):
        if name == OVS and not OvsForwarder.is_installed():
            samples.append(missing(name, NOTHING, FIGURES[0], "it is not installed: scripts/set-up test"))
            continue
        os.sched_setaffinity(0, set(extent.cpus))
        with start(extent.cpus[1]) as between:
            os.sched_setaffinity(0, {extent.cpus[0]})
            samples += _run_rounds(extent, between)
    return samples


def _run_rounds(extent: Extent, between: Between) -> list[Sample]:
    methods: dict[str, Method] = {NOTHING: lambda pid: nullcontext(), OURS: watch_by_nfprobe(between)}
    if not peers.UPROBES.find_missing():
        methods[BPF] = watch_by_bpf(between)
    samples = []
    for number in range(extent.count_rounds(ROUNDS)):
        for tool in random.sample(list(methods), len(methods)):
            samples += _measure_loads(extent, between, tool, methods[tool], number)
    order = list(methods)
    return sorted(samples, key=lambda sample: (sample.case, order.index(sample.tool), sample.round))


def _measure_loads(extent: Extent, between: Between, tool: str, watch: Method, number: int) -> list[Sample]:
    """All loads while a tool is at work."""
    found: dict[str, dict[str, float]] = {}
    try:
        with watch(between.pid):
            for load, gap_ns in LOADS.items():
                found[load] = summarise(measure(extent, between.pid, gap_ns))
    except (ValueError, OSError) as error:
        return [Sample(f"{between.name}, {load}", tool, FIGURES[0], number, NO_FIGURE, str(error)) for load in LOADS]
    for load, figures in found.items():
        print(f"  {between.name}, {load}: {tool}: {figures}", flush=True)
    return [
        Sample(f"{between.name}, {load}", tool, figure, number, value)
        for load, figures in found.items()
        for figure, value in figures.items()
    ]
