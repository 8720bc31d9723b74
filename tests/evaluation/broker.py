# SPDX-License-Identifier: Apache-2.0
"""Table 5: what measuring a message broker costs its messages, as an eBPF study of such a broker did it.

A publisher and subscriber (tests/targets/broker_pair.c) sends 100,000 messages 60 us apart through mosquitto, which
runs unmodified on a CPU of its own, and takes the time of each from send to receipt, always in the same way. Meanwhile
each of the methods notes when the broker has received and when it sends: three reads and one write for a message. The
difference of the medians is what a method costs. Each round is a new broker for each method; the order changes.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

import numpy as np

from otel_nfprobe.elf.elf import ElfImage
from tests.benchmarks.busy_testpmd import Session
from tests.benchmarks.rounds import NO_FIGURE
from tests.benchmarks.uprobe_peer import AT_ENTRY, AT_EXIT, uprobes
from tests.evaluation import peers
from tests.evaluation.extent import Extent
from tests.evaluation.samples import Sample, missing
from tests.support.mqtt import Broker

TARGETS = Path(__file__).resolve().parents[1] / "targets"
MESSAGES, MESSAGES_SHORT, GAP_NS = 100_000, 2_000, 60_000
ROUNDS = 5
CASE, FIGURE = "message from send to receipt", "ns"
NONE, MEMORY, FILE, BPF, OURS, TRACED = (
    "nothing",
    "preloaded wrappers, memory",
    "preloaded wrappers, file",
    "eBPF uprobes, counting",
    "nfprobe, the same functions",
    "nfprobe attach, its defaults",
)
PERCENTILES = (50, 99)
RECEIVES, SENDS = "net__read", "net__write"  # of mosquitto, which exports them
PUBLISHED = {MEMORY: 120, FILE: 568, BPF: 934}  # ns that the study found, over 8,423


class Running(Protocol):
    """A process, or who has started it."""

    @property
    def pid(self) -> int: ...


Method = Callable[[Running], AbstractContextManager[object]]


def find_offset(binary: Path, name: str) -> int:
    """Of an exported function, in the file."""
    image = ElfImage(str(binary), binary.read_bytes())
    address = next(symbol.address for symbol in image.symbols if symbol.name == name)
    return next(
        address - segment.address + segment.offset
        for segment in image.segments
        if segment.address <= address < segment.address + segment.file_bytes
    )


@contextmanager
def watch_by_bpf(broker: Running) -> Iterator[None]:
    binary = Path(f"/proc/{broker.pid}/exe").resolve()
    with ExitStack() as stop:
        stop.enter_context(uprobes(broker.pid, binary, [find_offset(binary, RECEIVES)], (AT_EXIT,)))
        stop.enter_context(uprobes(broker.pid, binary, [find_offset(binary, SENDS)], (AT_ENTRY,)))
        yield


def watch_by_nfprobe(*options: str) -> Method:
    """In a process of its own, as people run it.

    Raises:
        ValueError: records were lost.
    """

    @contextmanager
    def watch(broker: Running) -> Iterator[None]:
        session = Session(broker.pid, *options)
        try:
            yield
        finally:
            lost = session.end()["records"]["lost"]
        if any(lost.values()):
            raise ValueError("records were lost")

    return watch


def make_methods(folder: Path) -> dict[str, tuple[dict[str, str], Method]]:
    """By name: the broker's environment, and what is done once it runs."""
    library = {"LD_PRELOAD": str(folder / "libbrokerlog.so")}
    named = ("--adapter", "none", "--functions", f"mosquitto:{RECEIVES}", "--functions", f"mosquitto:{SENDS}")
    return {
        NONE: ({}, lambda broker: nullcontext()),
        MEMORY: (library, lambda broker: nullcontext()),
        FILE: ({**library, "BROKER_LOG": str(folder / "broker.log")}, lambda broker: nullcontext()),
        BPF: ({}, watch_by_bpf),
        OURS: ({}, watch_by_nfprobe(*named, "--packets", "none")),
        TRACED: ({}, watch_by_nfprobe()),
    }


def measure(extent: Extent, environment: dict[str, str], watch: Method) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Nanoseconds of each message, the first tenth left out."""
    count = MESSAGES_SHORT if extent.is_short else MESSAGES
    times = extent.folder / "times"
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder), environment)
        try:
            os.sched_setaffinity(broker.pid, {extent.cpus[1]})
            words = [extent.folder / "broker_pair", broker.port, count, GAP_NS, times]
            with watch(broker):
                subprocess.run(list(map(str, words)), check=True, timeout=120)
        finally:
            broker.end()
    return np.fromfile(times, dtype="<u8").astype(float)[count // 10 :]


def build(folder: Path) -> None:
    compile_c = ["gcc", "-std=gnu11", "-O2"]
    subprocess.run([*compile_c, str(TARGETS / "broker_pair.c"), "-o", str(folder / "broker_pair")], check=True)
    words = [*compile_c, "-shared", "-fPIC", str(TARGETS / "broker_log.c"), "-o", str(folder / "libbrokerlog.so")]
    subprocess.run(words, check=True)


def run(extent: Extent) -> list[Sample]:
    if shutil.which("mosquitto") is None:
        return [missing(CASE, NONE, f"{FIGURE}, p50", "mosquitto is not installed: scripts/set-up test")]
    build(extent.folder)
    os.sched_setaffinity(0, {extent.cpus[0]})
    methods, samples = make_methods(extent.folder), []
    if reason := peers.UPROBES.find_missing():
        del methods[BPF]
        samples.append(missing(CASE, BPF, f"{FIGURE}, p50", reason))
    for number in range(extent.count_rounds(ROUNDS)):
        for name in random.sample(list(methods), len(methods)):
            samples += _measure_one(extent, name, *methods[name], number)
    order = list(make_methods(extent.folder))
    return sorted(samples, key=lambda sample: (order.index(sample.tool), sample.round))


def _measure_one(extent: Extent, name: str, environment: dict[str, str], watch: Method, number: int) -> list[Sample]:
    """The percentiles of one round of one method."""
    try:
        times = measure(extent, environment, watch)
    except (ValueError, OSError) as error:
        return [Sample(CASE, name, f"{FIGURE}, p{part}", number, NO_FIGURE, str(error)) for part in PERCENTILES]
    found = {part: float(np.percentile(times, part)) for part in PERCENTILES}
    print(f"  {name}: " + ", ".join(f"p{part} {value:,.0f} ns" for part, value in found.items()), flush=True)
    return [Sample(CASE, name, f"{FIGURE}, p{part}", number, value) for part, value in found.items()]
