# SPDX-License-Identifier: Apache-2.0
"""Faults put into examples/firewall from outside, their log, and whether nfprobe names them. The log never comes
from nfprobe: the firewall writes what it can know by itself (faults.c), the debugger below what it did."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from otel_nfprobe.base.clock import sample_pair
from otel_nfprobe.base.columns import NONE, concatenate, latency_ticks, life_start_ticks
from otel_nfprobe.causes.baseline import Baseline, BatchSample
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay

START_S = 0.3  # attaching stops the target, and its first records meet memory that was never touched
SEIZE, INTERRUPT, CONT, DETACH = 0x4206, 0x4207, 7, 17
WALL = 0x40000000
CLASSIFY = 2  # enum fw_stage
HOG = """
import time
while True:
    start = time.monotonic()
    while time.monotonic() - start < {busy}:
        pass
    time.sleep({idle})
"""

# What nfprobe must say of each kind of fault: kinds and function.
EXPECTED = {
    "pause": ({"own", "queue"}, "fw_classify"),
    "flow": ({"own", "queue"}, "fw_classify"),
    "output": ({"own", "queue"}, "fw_output"),
    "burst": ({"burst"}, None),
    "preempted": ({"preemption"}, None),
}
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


class Debugger(threading.Thread):
    """Stops one thread while it is in a certain place, now and then, as a person with a debugger would.

    Args:
        tid: the worker.
        is_there: whether the stopped thread is there.
        pause_s: how long it is held.
        every_s: between two pauses, on average.

    Attributes:
        pauses: start and end in ticks; others: stops in other places, which were let go at once.
    """

    def __init__(self, tid: int, is_there: Callable[[], bool], pause_s: float, every_s: float, seed: int) -> None:
        super().__init__()
        self.pauses: list[tuple[int, int]] = []
        self.others: list[tuple[int, int]] = []
        self.failure = ""
        self._tid, self._is_there = tid, is_there
        self._pause_s, self._every_s = pause_s, every_s
        self._random = random.Random(seed)
        self._ending = threading.Event()

    def run(self) -> None:
        if not self._seize():
            return
        while not self._ending.wait(self._every_s * self._random.uniform(0.5, 1.5)):
            while not self._stop_once() and not self._ending.is_set():
                time.sleep(0.0002)
        self._release()

    def pause_now(self) -> None:
        """Stops the thread once, in the calling thread, as soon as it is there."""
        assert self._seize(), self.failure
        while not self._stop_once():
            time.sleep(0.0002)
        self._release()

    def _seize(self) -> bool:
        if _libc.ptrace(SEIZE, self._tid, None, None):
            self.failure = f"PTRACE_SEIZE: {os.strerror(ctypes.get_errno())}"
        return not self.failure

    def _release(self) -> None:
        _libc.ptrace(INTERRUPT, self._tid, None, None)
        os.waitpid(self._tid, WALL)
        _libc.ptrace(DETACH, self._tid, None, None)

    def end(self) -> None:
        self._ending.set()
        self.join()

    def _stop_once(self) -> bool:
        start = sample_pair().ticks
        _libc.ptrace(INTERRUPT, self._tid, None, None)
        os.waitpid(self._tid, WALL)
        inside = self._is_there()
        if inside:
            time.sleep(self._pause_s)
        _libc.ptrace(CONT, self._tid, None, None)
        (self.pauses if inside else self.others).append((start, sample_pair().ticks))
        return inside


def is_classifying(pid: int, stage_address: int) -> bool:
    """Whether the firewall's worker says so in `fw_stage`."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(stage_address)
        return int.from_bytes(memory.read(4), "little") == CLASSIFY


def start_hog(cpu: int, busy_s: float, idle_s: float) -> subprocess.Popen[bytes]:
    """A program that wants the same CPU, for a part of the time."""
    return subprocess.Popen(
        [sys.executable, "-c", HOG.format(busy=busy_s, idle=idle_s)],
        preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
    )


@dataclass
class Truth:
    """Faults by kind as start and end in ticks, and the times in which the queue was never empty."""

    faults: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    bursts: list[tuple[int, int]] = field(default_factory=list)  # time, packets
    backlogs: list[tuple[int, int]] = field(default_factory=list)
    _arrays: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, debugger: Debugger | None) -> Truth:
        """Of the firewall's log and the debugger's."""
        truth = cls()
        for line in path.read_text().splitlines():
            kind, *words = line.split()
            if len(words) != 2:
                continue  # cut: the firewall ended there
            start, end = map(int, words)
            if kind == "backlog":
                truth.backlogs.append((start, end))
            elif kind == "burst":
                truth.bursts.append((start, end))
            else:
                truth.faults.setdefault(kind, []).append((start, end))
        if debugger is not None:
            truth.faults["pause"] = debugger.pauses
            truth.faults["elsewhere"] = debugger.others
            truth._forget_explained(debugger.pauses + debugger.others)
        return truth

    def _forget_explained(self, known: list[tuple[int, int]]) -> None:
        unknown = self.faults.get("unknown", [])
        self.faults["unknown"] = [
            span for span in unknown if not any(span[0] < end and start < span[1] for start, end in known)
        ]
        # The firewall cannot tell a stop from a preemption when it met both.
        spans = self.faults.get("preempted", [])
        mixed = [span for span in spans if any(span[0] < end and start < span[1] for start, end in known)]
        self.faults["mixed"] = mixed
        self.faults["preempted"] = [span for span in spans if span not in set(mixed)]

    def _array(self, kind: str, spans: list[tuple[int, int]]) -> np.ndarray:
        if kind not in self._arrays:
            self._arrays[kind] = np.array(spans, np.int64).reshape(-1, 2)
        return self._arrays[kind]

    def window(self, arrival: int, done: int) -> tuple[int, int]:
        """A packet's life, and before it the time in which its queue was not empty."""
        spans = self._array("backlog", self.backlogs)
        since = spans[(spans[:, 0] <= done) & (spans[:, 1] >= arrival), 0]
        return min([arrival, *since.tolist()]), done

    def amounts(self, arrival: int, done: int, packet_ticks: float) -> Counter[str]:
        """What each kind of fault can have cost a packet, in ticks."""
        start, end = self.window(arrival, done)
        amounts: Counter[str] = Counter()
        for kind, spans in self.faults.items():
            times = self._array(kind, spans).clip(start, end)
            amounts[kind] = int((times[:, 1] - times[:, 0]).sum())
        amounts["burst"] = round(sum(count for at, count in self.bursts if start <= at <= arrival) * packet_ticks)
        return +amounts


@dataclass
class Verdict:
    """How many late packets have a known truth, and what nfprobe said of them, and of each kind of fault should."""

    expected: Mapping[str, tuple[set[str], str | None]] = field(default_factory=lambda: EXPECTED)
    late: int = 0
    judged: int = 0
    right: int = 0
    wrong: int = 0
    by_fault: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    mistakes: list[str] = field(default_factory=list)

    def judge(self, amounts: Counter[str], late_ticks: float, kind: str, function: str | None, where: str) -> None:
        """Compares one packet's cause with the truth; faults of nearly the same size may both be named."""
        self.late += 1
        largest = max(amounts.values(), default=0)
        if largest < 0.7 * late_ticks:
            self.unjudged["nothing"] += 1
            return
        true = {fault for fault, ticks in amounts.items() if ticks >= 0.5 * min(largest, late_ticks)}
        if not true <= self.expected.keys():
            self.unjudged.update(true)
            return  # the machine stood still, or the debugger stopped it elsewhere: nobody can know
        self.judged += 1
        self.by_fault.update(true)
        if any(kind in self.expected[fault][0] and function == self.expected[fault][1] for fault in true):
            self.right += 1
        elif kind != "unknown":
            self.wrong += 1
            self.mistakes.append(f"{where}: {kind} {function}, but {dict(amounts)} of {late_ticks:.0f}")

    def add(self, other: Verdict) -> None:
        for name in ("late", "judged", "right", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.by_fault += other.by_fault
        self.unjudged += other.unjudged
        self.mistakes += other.mistakes

    def __str__(self) -> str:
        counts = f"{self.late} late, {self.judged} judged, {self.right} right, {self.wrong} wrong"
        return f"{counts}, {dict(self.by_fault)}; not judged {dict(self.unjudged)}"


def find_packet_ticks(batches: np.ndarray) -> float:
    """What a packet usually costs in full batches."""
    full = batches[batches["size"] >= 32]
    return float(np.median((full["end_ticks"] - full["start_ticks"]) / full["size"])) if len(full) else 0.0


class Found:
    """What a recording says of its late packets."""

    def __init__(self, path: Path, truth: Truth) -> None:
        reader = RecordingReader(path)
        self.facts: RecordingFacts = read_facts(reader)
        self.truth = truth
        sample, takes = BatchSample(), []
        with Pipeline(self.facts.roles) as pipeline:
            for columns in replay(reader, self.facts, pipeline):
                sample.add(columns)
                takes.append(columns)
        self.columns = concatenate(takes)
        self.baseline: Baseline = sample.baseline()
        self.packet_ticks = find_packet_ticks(self.columns.batches)
        self.begin = int(self.columns.batches["start_ticks"].min())
        self._starts = life_start_ticks(self.columns)

    def late_causes(self, quantile: float, since_ticks: int = 0) -> Iterator[tuple[int, np.void]]:
        """All packets later than a quantile, but for those of the begin, and the cause of each."""
        latency = latency_ticks(self.columns)
        begin = self.begin + START_S * self.facts.make_clock().ticks_per_second
        counted = self._starts > max(begin, since_ticks)
        if (counted & (latency > 0)).any():
            late = np.flatnonzero((latency >= np.quantile(latency[counted & (latency > 0)], quantile)) & counted)
            causes = find_causes(self.columns, late, self.baseline, self.facts.absences)
            yield from zip(late.tolist(), causes, strict=True)

    def life(self, packet: int) -> tuple[int, int]:
        return int(self._starts[packet]), int(self.columns.packets["done_ticks"][packet])

    @staticmethod
    def kind(cause: np.void) -> str:
        return CauseKind(int(cause["kind"])).name.lower()

    def judge(self, quantile: float, expected: Mapping[str, tuple[set[str], str | None]] = EXPECTED) -> Verdict:
        """Compares the causes of all packets later than a quantile with the truth."""
        verdict, names = Verdict(expected), self.facts.function_names
        for packet, cause in self.late_causes(quantile):
            function = names[cause["function"]] if cause["function"] != NONE else None
            self.compare(verdict, self.life(packet), self.kind(cause), function, f"packet {packet}")
        return verdict

    def compare(self, verdict: Verdict, life: tuple[int, int], kind: str, function: str | None, where: str) -> None:
        late = life[1] - life[0] - self.baseline.latency_ticks
        if self.truth.window(*life)[0] < self.begin:
            return  # what happened before the session began is not in it
        verdict.judge(self.truth.amounts(*life, self.packet_ticks), late, kind, function, where)
