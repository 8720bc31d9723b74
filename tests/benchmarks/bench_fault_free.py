# SPDX-License-Identifier: Apache-2.0
"""What is said of a target into which nobody has put a fault: how often is a function named for a packet later than
p99.9, and can it be true?

The oracle is the kernel's own trace of the target's CPU, taken by perf beside the session: interrupts and softirqs, who
ran instead, and run times. Where paravirtual time accounting is on, a thread's run time leaves out what the host of a
virtual machine stole, so wall time between two updates minus run time is steal time; an update comes with each tick, so
a theft is known to a tick (4 ms at 250 Hz), not to the microsecond.

A name is *contradicted* when that noise, inside the batch that is blamed, explains at least half of the excess that the
function is blamed for; where theft is part of it, as far as one tick can tell. What is not contradicted may be true, or
be something that the kernel does not see either (the host's exits, firmware, a neighbour's use of the caches).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import NONE, UNKNOWN, concatenate, latency_ticks, life_start_ticks
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.latency_causes import STOOD_STILL, CauseKind, find_causes
from otel_nfprobe.causes.lateness import LatenessStatistics
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.benchmarks.busy_testpmd import busy_testpmd
from tests.benchmarks.rounds import find_cpus, make_parser, write_figures
from tests.support.kernel_trace import EVENTS, Noise, kernel_trace, read_trace

ROOT = Path(__file__).resolve().parents[2]
FIREWALL = ROOT / "examples" / "firewall"
LATE = 0.999
START_S = 0.3  # attaching stops the target, and its first records meet memory that was never touched
HALF = 0.5


class Names:
    """What was said of the late packets of some runs, and what the kernel's trace says of that."""

    def __init__(self) -> None:
        self.late = self.named = self.contradicted = self.confirmed = 0
        self.kinds: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()
        self.noises: Counter[str] = Counter()
        self.wrong_batches: set[tuple[int, int]] = set()  # packets of one batch share their fate
        self.seconds = 0.0

    def add(self, recording: Path, noise: Noise, run: int) -> None:
        """What the report says of packets later than p99.9 of all, as the report finds them."""
        reader = RecordingReader(recording)
        facts = read_facts(reader)
        statistics, sample, takes = LatenessStatistics(), BatchSample(), []
        with Pipeline(facts.roles) as pipeline:
            for taken in replay(reader, facts, pipeline):
                statistics.add(taken)
                sample.add(taken)
                takes.append(taken)
        columns, clock = concatenate(takes), facts.make_clock()
        begin = int(columns.batches["start_ticks"].min())
        self.seconds += float(np.ptp(columns.batches["start_ticks"])) / clock.ticks_per_second
        known = columns.packets["disposition"] != UNKNOWN
        is_late = (latency_ticks(columns) >= statistics.find_late_ticks(LATE)) & known
        late = np.flatnonzero(is_late & (life_start_ticks(columns) > begin + START_S * clock.ticks_per_second))
        to_raw = RawTimes(RawClock(clock), clock.ticks_per_second)
        for cause in find_causes(columns, late, sample.baseline(), facts.absences):
            self.late += 1
            kind = CauseKind(int(cause["kind"]))
            self.kinds[kind.name.lower()] += 1
            if cause["function"] == NONE and kind not in STOOD_STILL:
                continue
            batch = columns.batches[cause["batch"]]
            span = to_raw.ns(int(batch["start_ticks"])), to_raw.ns(int(batch["end_ticks"]))
            excess_ns = int(cause["excess_ticks"]) / clock.ticks_per_second * 1e9
            parts = {name: noise.during(name, *span) for name in noise.spans}
            is_noise = sum(parts.values()) >= HALF * min(excess_ns, span[1] - span[0])
            if kind in STOOD_STILL:  # the other way round: the trace must show it, or it shows nothing
                self.confirmed += is_noise
                continue
            self.named += 1
            self.functions[facts.function_names[cause["function"]]] += 1
            if is_noise:
                self.contradicted += 1
                self.noises[max(parts, key=lambda name: parts[name])] += 1
                self.wrong_batches.add((run, int(cause["batch_id"])))

    def facts(self) -> dict[str, Any]:
        hours = self.seconds / 3600
        return {
            "seconds": round(self.seconds, 1),
            "late_packets": self.late,
            "kinds": dict(self.kinds.most_common()),
            "named": self.named,
            "functions": dict(self.functions.most_common(6)),
            "contradicted": self.contradicted,
            "contradicted_by": dict(self.noises.most_common()),
            "preemptions_confirmed": self.confirmed,
            "wrong_batches_per_hour": round(len(self.wrong_batches) / hours) if hours else 0,
        }


class RawTimes:
    """Ticks as CLOCK_MONOTONIC_RAW ns, by the rate of the session's clock."""

    def __init__(self, clock: RawClock, ticks_per_second: float) -> None:
        self._rate = 1e9 / ticks_per_second
        self._raw_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        self._ticks = int(clock.ticks(np.array([self._raw_ns], np.uint64))[0])

    def ns(self, ticks: int) -> int:
        return self._raw_ns + round((ticks - self._ticks) * self._rate)


@contextmanager
def testpmd_worker(cpu: int) -> Iterator[tuple[int, int, list[str]]]:
    """A testpmd that forwards what its driver plays for ever: process, worker thread, options of attach."""
    with busy_testpmd() as testpmd:
        (tid,) = worker_tids(testpmd.pid)
        os.sched_setaffinity(tid, {cpu})
        yield testpmd.pid, tid, ["--packets", "slow"]


@contextmanager
def firewall_worker(cpu: int) -> Iterator[tuple[int, int, list[str]]]:
    """examples/firewall at 60,000 packets/s without its faults."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["make", "-s", "-C", str(FIREWALL), f"BUILD={folder}"], check=True)
        words = [f"{folder}/firewall", "--rate", "60000", "--slow-every", "0", "--worker-cpu", str(cpu)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            while not (tids := worker_tids(process.pid)):
                time.sleep(0.01)
            yield process.pid, tids[0], ["--adapter", str(FIREWALL / "firewall.yaml"), "--packets", "all"]
        finally:
            process.kill()
            process.wait()


def worker_tids(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(task.name) for task in tasks if "worker" in (task / "comm").read_text()]


TARGETS = {"testpmd": testpmd_worker, "firewall": firewall_worker}


def measure(name: str, cpu: int, seconds: float, runs: int) -> dict[str, Any]:
    """So many sessions on one target, each beside the kernel's trace."""
    names = Names()
    with TARGETS[name](cpu) as (pid, tid, options), tempfile.TemporaryDirectory() as folder:
        for run in range(runs):
            recording, trace = Path(folder, f"{run}.nfprobe"), Path(folder, f"{run}.perf")
            words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--for", f"{seconds}s", *options]
            words += ["--record", str(recording), "--ring-size", "64MiB", "--trial", "0s"]
            with kernel_trace(cpu, trace, EVENTS):
                subprocess.run(words, check=True, capture_output=True)
            names.add(recording, read_trace(trace, tid), run)
            recording.unlink()
    return {"target": name} | names.facts()


def steal_share(before: list[int]) -> float:
    """Returns the steal time since then, as a share of the processors' time."""
    spent = [now - then for now, then in zip(cpu_times(), before, strict=True)]
    return spent[7] / max(1, sum(spent))


def cpu_times() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all CPUs, hundredths of a second."""
    return [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    runs, seconds = (1, 1.0) if arguments.short else (arguments.runs, arguments.seconds)
    (_, cpu), found = find_cpus(arguments.short), []
    for name in TARGETS:
        before = cpu_times()
        found.append(measure(name, cpu, seconds, runs) | {"host_took": round(steal_share(before), 4)})
        print(json.dumps(found[-1]), flush=True)
    write_figures(arguments.json, found)


if __name__ == "__main__":
    main()
