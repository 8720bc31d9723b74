# SPDX-License-Identifier: Apache-2.0
"""Table 2: what a probe costs with and without a place of its own for records, as LProfile's authors measured it.

Target: tests/targets/tree.c, whose insert, search and delete take long enough to be three ordinary functions. Each has
two probes, at entry and exit. By hand with a blocking write(2) for each record is what they cost without such a place;
LProfile's figures are those that were published, of another machine.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.bench_probe import MEASURE_S, RING_BYTES
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, lost
from tests.evaluation.extent import Extent
from tests.evaluation.samples import Sample

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "tree.c"
FUNCTIONS = ("insert", "search", "delete")
FIGURE, PUBLISHED_FIGURE = "ticks a probe", "cycles a probe"
ROUNDS, ROUNDS_OF_TARGET = 9, 201
PLAIN, RING, FILE, OURS = "the function without probes, ticks a call", "by hand, memory", "by hand, file", "nfprobe"
PUBLISHED = {"without its storage": (367, 328, 365), "with its storage": (149, 138, 145)}  # of LProfile
Ticks = tuple[float, ...]  # of a call of each of the three


@contextmanager
def running(binary: Path, cpu: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.sched_setaffinity(process.pid, {cpu})
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{ROUNDS_OF_TARGET}\n")
    process.stdin.flush()


def read(process: subprocess.Popen[str]) -> Ticks:
    assert process.stdout is not None
    return tuple(map(float, process.stdout.readline().split()))


def measure(binary: Path, cpu: int) -> Ticks:
    with running(binary, cpu) as process:
        ask(process)
        return read(process)


def measure_probed(binary: Path, cpu: int) -> Ticks:
    """The plain program with its three functions probed while it runs, drained by a monitor in this process."""
    with running(binary, cpu) as process:
        target = Target(process.pid)
        choice = choose(target, None, [f"{binary.name}:{name}_key" for name in FUNCTIONS], [])
        assert len(choice.requests()) == len(FUNCTIONS), choice.refused
        with attached(target, choice, Session(RING_BYTES, NONE), lambda said: None) as monitor:
            ask(process)
            monitor.run(MEASURE_S, lambda: None)
            ticks = read(process)
            monitor.drain.run_dry()
            return (NO_FIGURE,) * len(FUNCTIONS) if lost(monitor) else ticks


def build(folder: Path) -> dict[str, Path]:
    """The program without probes, and with those by hand."""
    options = {PLAIN: "-DPLAIN", RING: "-DRING", FILE: f'-DFILE_NAME="{folder}/records"'}
    built = {}
    for number, (name, option) in enumerate(options.items()):
        built[name] = folder / f"tree{number}"
        subprocess.run(["gcc", "-std=gnu11", "-O2", option, str(SOURCE), "-o", str(built[name])], check=True)
    return built


def run(extent: Extent) -> list[Sample]:
    binaries, cpu = build(extent.folder), extent.cpus[1]
    os.sched_setaffinity(0, {extent.cpus[0]})
    samples = [
        Sample(name, f"LProfile, published, {how}", PUBLISHED_FIGURE, 0, cycles)
        for how, figures in PUBLISHED.items()
        for name, cycles in zip(FUNCTIONS, figures, strict=True)
    ]
    ns = 1e9 / Clock.start().ticks_per_second
    samples.append(Sample("machine", "clock", "ns a tick", 0, ns))
    for number in range(extent.count_rounds(ROUNDS)):
        plain = measure(binaries[PLAIN], cpu)
        ways = {
            FILE: measure(binaries[FILE], cpu),
            RING: measure(binaries[RING], cpu),
            OURS: measure_probed(binaries[PLAIN], cpu),
        }
        for index, name in enumerate(FUNCTIONS):
            samples.append(Sample(name, PLAIN, FIGURE, number, plain[index]))
            for tool, ticks in ways.items():
                samples.append(Sample(name, tool, FIGURE, number, (ticks[index] - plain[index]) / 2))
        print("  " + "; ".join(f"{tool}: {ticks}" for tool, ticks in {PLAIN: plain, **ways}.items()), flush=True)
    return samples
