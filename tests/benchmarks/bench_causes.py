# SPDX-License-Identifier: Apache-2.0
"""Who is blamed for late packets while faults are put into network functions from outside: how often is it right?

Each run is some seconds of a session on a paced network function (paced_nfs.py), with one kind of fault
(outside_faults.py), beside the kernel's own trace of its CPU; a session has five of them. What is said of each packet
later than the 99.9th percentile is compared with two truths, of which nothing comes from nfprobe:

* the fault's own log, where it covers most of what the packet was late. Of interrupts and page faults the log says
  when, the trace for how long;
* otherwise the trace, where interrupts, other tasks or steal time explain most of it.

What neither explains, or two of them equally, is not judged. For memory that another CPU crowds there is no truth:
printed is whom most packets were laid on, and with which share.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.base.clock import sample_pair
from otel_nfprobe.base.columns import NONE
from tests.benchmarks.rounds import find_cpus, make_parser, write_figures
from tests.support import outside_faults
from tests.support.culprit import START_S, Found, Truth
from tests.support.kernel_trace import EVENTS, Noise, kernel_trace, read_trace
from tests.support.outside_faults import Spans, preloaded_mapper
from tests.support.paced_nfs import PACED, PacedNf

SECONDS = 4.0
RUNS = 5  # of a session
LATE = 0.999
MOST, HALF = 0.7, 0.5
PROGRAMS = {"firewall": "firewall", "testpmd": "dpdk-testpmd", "ovs": "ovs-vswitchd-dpdk", "mosquitto": "mosquitto"}
BESIDE = "crowd_memory"  # the fault without a truth
STOOD = {"own", "queue"}


@dataclass(frozen=True)
class Expected:
    """What has to be said of a fault: one of these causes, and by whom if that is known; for how long it was at work:
    as its log says, or as the trace says of interrupts with these names inside of its intervals. Of one that is not
    exact the log says only when it can have been at work: it covers what the trace does not explain otherwise. An
    interrupt in which the host took the CPU is both.
    """

    fault: str
    kinds: frozenset[str]
    by: str = ""
    traced: tuple[str, ...] = ()
    exact: bool = True


CALLS = ("call_function", "call_function_single")
FAULTS = {
    expected.fault: expected
    for expected in (
        Expected("take_turns", frozenset({"preemption"}), "the hog"),
        Expected("take_cpu", frozenset({"preemption"}), "the hog"),
        Expected("expire_timers", frozenset({"interrupt"}), "timer", ("local_timer",), exact=False),
        Expected("map_memory", frozenset({"interrupt"}), "call_function", CALLS, exact=False),
        Expected("receive_on_cpu", frozenset({"interrupt", "preemption"}), "", (*CALLS, "softirq NET_RX"), exact=False),
        # The code of examples/firewall's generator goes as well: what it then sends late comes as a burst.
        Expected("evict", frozenset({"fault", "burst"}), exact=False),
        Expected("stop", frozenset({*STOOD, "fault"})),
        Expected(BESIDE, frozenset()),
    )
}
BY_TRACE = {  # causes that the trace's noise has, where no fault's log covers a packet
    "interrupt": {"interrupt"},
    "softirq": {"interrupt", *STOOD},  # of the thread's own system call: the function that made it is right, too
    "switched out": {"preemption"},
    "steal": {"host"},
    "slept": {"fault", "wait", *STOOD},
}


class RawMoments:
    """CLOCK_MONOTONIC_RAW as ticks, by pairs of both that were taken during a run."""

    def __init__(self) -> None:
        self._pairs: list[tuple[int, int]] = []

    def note(self) -> None:
        best: tuple[int, int, int] | None = None
        for _ in range(16):
            first, raw_ns, last = sample_pair(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW), sample_pair()
            if best is None or last.ticks - first.ticks < best[0]:
                best = last.ticks - first.ticks, (first.ticks + last.ticks) // 2, raw_ns
        assert best is not None
        self._pairs.append((best[1], best[2]))

    def ticks(self, raw_ns: np.ndarray) -> np.ndarray:
        (first, first_ns), (last, last_ns) = self._pairs[0], self._pairs[-1]
        rate = (last - first) / (last_ns - first_ns)
        return first + np.rint((raw_ns - first_ns) * rate).astype(np.int64)


@dataclass
class Score:
    """Packets with a truth, by whether it was said."""

    judged: int = 0
    right: int = 0
    unknown: int = 0
    mistakes: Counter[str] = field(default_factory=Counter)

    def judge(self, right: bool, said: str, truth: str) -> None:
        self.judged += 1
        self.right += right
        self.unknown += not right and said.startswith("unknown")
        if not right:
            self.mistakes[f"{said}, but {truth}"] += 1

    def facts(self) -> dict[str, Any]:
        wrong = self.judged - self.right - self.unknown
        return {
            "judged": self.judged,
            "right": self.right,
            "wrong": wrong,
            "unknown": self.unknown,
            "mistakes": dict(self.mistakes.most_common(4)),
        }


class Judge:
    """Compares what recordings say with the log of one fault and the kernel's trace."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self.late = 0
        self.logged, self.traced = Score(), Score()
        self.named: Counter[str] = Counter()

    def add(self, recording: Path, nf: PacedNf, spans: Spans, noise: Noise, moments: RawMoments) -> None:
        truth = Truth()
        if nf.log is not None:
            truth.backlogs = Truth.read(nf.log, None).backlogs
        found = Found(recording, truth)
        per_tick = found.facts.make_clock().ticks_per_second / 1e9
        intervals = {
            kind: rows for kind in BY_TRACE if len(rows := _to_ticks(noise.spans.get(kind, []), moments, per_tick))
        }
        logged = np.array(spans if self._expected.kinds else [], np.int64).reshape(-1, 2)
        work = np.column_stack((logged, logged[:, 1] - logged[:, 0]))
        if self._expected.traced:
            rows = [row for name in self._expected.traced for row in noise.by_name.get(name, [])]
            work = _find_inside(logged, _to_ticks(rows, moments, per_tick))
        for packet, cause in found.late_causes(LATE, spans[0][0] if spans else 0):
            life = found.life(packet)
            window = truth.window(*life)
            late = life[1] - life[0] - found.baseline.latency_ticks
            if late <= 0 or window[0] < found.begin:
                continue
            self.late += 1
            said = _describe(found, cause)
            self.named[said] += 1
            traced = {kind: amount for kind, rows in intervals.items() if (amount := _overlap(rows, *window))}
            if not nf.polls:  # when a CPU ends to be idle is not in its trace
                traced = {kind: ticks for kind, ticks in traced.items() if kind == "steal"}
            self._judge(said, late, _overlap(work, *window), traced)

    def _judge(self, said: str, late: float, logged: float, traced: dict[str, float]) -> None:
        expected, kind = self._expected, said.split(" ")[0]
        of_fault = ("slept", "interrupt", "softirq") if expected.traced else ("slept",)
        others = sum(ticks for noise, ticks in traced.items() if noise not in of_fault)
        if logged >= MOST * late and (expected.exact or others < HALF * late):
            self.logged.judge(kind in expected.kinds and expected.by in said, said, expected.fault)
            return
        if (logged >= HALF * late and expected.exact) or not traced:
            return
        sizes = sorted(traced.values())
        largest = max(traced, key=lambda name: traced[name])
        if traced[largest] >= MOST * late and (len(sizes) < 2 or sizes[-2] < HALF * late):
            self.traced.judge(kind in BY_TRACE[largest], said, f"{largest} by the trace")

    def facts(self) -> dict[str, Any]:
        total = max(self.late, 1)
        return {
            "fault": self._expected.fault,
            "late": self.late,
            "logged": self.logged.facts(),
            "traced": self.traced.facts(),
            "said": {said: round(count / total, 3) for said, count in self.named.most_common(4)},
        }


def _describe(found: Found, cause: np.void) -> str:
    """`preemption the hog`, `own fw_output`."""
    by = cause["by"].decode("utf-8", "replace")
    function = found.facts.function_names[cause["function"]] if cause["function"] != NONE else ""
    return " ".join(word for word in (found.kind(cause), function, by) if word)


def _to_ticks(rows: Sequence[tuple[int, int, int]], moments: RawMoments, per_tick: float) -> np.ndarray:
    """Returns start, end and amount of noise, in the order of their starts."""
    table = np.array(rows, np.int64).reshape(-1, 3)
    if not len(table):
        return table
    table = table[np.argsort(table[:, 0], kind="stable")]
    return np.column_stack((moments.ticks(table[:, 0]), moments.ticks(table[:, 1]), np.rint(table[:, 2] * per_tick)))


def _find_inside(spans: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the rows that began while the fault was at work."""
    at = np.searchsorted(spans[:, 0], rows[:, 0], side="right") - 1
    return rows[(at >= 0) & (rows[:, 0] <= spans[at, 1])] if len(spans) else rows[:0]


def _overlap(rows: np.ndarray, start: int, end: int) -> float:
    """Returns ticks of noise in an interval: of each row as much as can lie in there."""
    times = rows[:, :2].clip(start, end)
    return float(np.minimum(times[:, 1] - times[:, 0], rows[:, 2]).sum())


def run_session(
    nf: PacedNf, expected: Expected, folder: Path, seconds: float, seeds: Sequence[int], judge: Judge
) -> None:
    """One session with one kind of fault, once for each seed."""
    recording, trace = folder / f"{seeds[0]}.nfprobe", folder / f"{seeds[0]}.perf"
    words = [sys.executable, "-m", "otel_nfprobe", "attach", str(nf.pid), "--for", "600s", *nf.options]
    words += ["--packets", "all", "--ring-size", "64MiB", "--trial", "0s", "--record", str(recording)]
    moments = RawMoments()
    with kernel_trace(nf.cpu, trace, EVENTS):
        monitor = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        assert monitor.stderr is not None
        said = []
        while "attached to" not in (line := monitor.stderr.readline()):
            said.append(line)
            if not line:
                raise SystemExit("".join(said))
        time.sleep(START_S)
        moments.note()
        spans: Spans = []
        for seed in seeds:
            spans += getattr(outside_faults, expected.fault)(nf, seconds, seed)
        moments.note()
    monitor.send_signal(2)
    _, errors = monitor.communicate(timeout=120)
    if monitor.returncode:
        raise SystemExit(errors)
    judge.add(recording, nf, spans, read_trace(trace, nf.tid), moments)
    recording.unlink()
    trace.unlink()


def measure(name: str, cpu: int, faults: list[str], seconds: float, seeds: int) -> list[dict[str, Any]]:
    """All runs on one network function."""
    found = []
    with (
        preloaded_mapper(PROGRAMS[name], cpu),
        PACED[name](cpu) as nf,
        tempfile.TemporaryDirectory() as folder,
    ):
        for fault in faults:
            judge = Judge(FAULTS[fault])
            for first in range(0, seeds, RUNS):
                some = range(first, min(seeds, first + RUNS))
                run_session(nf, FAULTS[fault], Path(folder), seconds, some, judge)
            found.append({"nf": nf.name} | judge.facts())
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--nf", choices=PACED, action="append")
    parser.add_argument("--fault", choices=FAULTS, action="append")
    arguments = parser.parse_args()
    names, faults = arguments.nf or list(PACED), arguments.fault or list(FAULTS)
    seconds, seeds = SECONDS, arguments.seeds
    _, cpu = find_cpus(arguments.short)
    if arguments.short:
        names, faults, seconds, seeds = names[:1], faults[:2], 1.0, 1
    found = [row for name in names for row in measure(name, cpu, faults, seconds, seeds)]
    write_figures(arguments.json, found)


if __name__ == "__main__":
    main()
