# SPDX-License-Identifier: Apache-2.0
"""What a thread's CPU did instead, and where it slept: compared with a target's own log and the kernel's run times."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.causes import absence_events, absence_watch, cpu_watch
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.linux.rawclock import RawClock
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, name_absence
from tests.support.flood import stop_for
from tests.support.kernel_trace import kernel_trace
from tests.support.probed import wait_until

pytestmark = pytest.mark.integration

BUSY = "while True: pass"
HOG = """
import time
open("/proc/self/comm", "w").write("the hog")
while True:
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    time.sleep(0.02)
"""
EVENTS = 20  # of the target's log that are compared


class Watched:
    """A process whose first thread is watched; rows are kept."""

    def __init__(self, process: subprocess.Popen[str], works: bool = True) -> None:
        self.clock = Clock.start()
        self.watch = AbsenceWatch(self.clock, lambda tid: True)
        self.pid, self.rows = process.pid, [np.empty(0, absence_watch.ABSENCE)]
        self.watch.watch(self.pid)
        assert self.watch.unseen is None
        if works:
            self.watch.follow_work([self.pid])

    def look(self) -> Rows:
        self.rows.append(self.watch.read(lambda: {self.pid: 7}))
        return self.rows[-1]

    def all(self) -> Rows:
        return np.concatenate(self.rows)


@pytest.fixture
def watch(spawn: Callable[..., subprocess.Popen[str]]) -> Iterator[Callable[..., Watched]]:
    made: list[Watched] = []

    def start(*words: object, works: bool = True, cpu: int | None = None) -> Watched:
        process = spawn(*words)
        if cpu is not None:
            os.sched_setaffinity(process.pid, {cpu})
        made.append(Watched(process, works))
        made[-1].process = process  # type: ignore[attr-defined]
        return made[-1]

    yield start
    for one in made:
        one.watch.close()


@pytest.mark.parametrize("priority", ["the same", "higher"])
def test_a_hog_is_named_though_others_run_first(
    priority: str, watch: Callable[..., Watched], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A hog and a task that runs for a moment, again and again, on the CPU of a busy thread."""
    cpu = max(os.sched_getaffinity(0))
    busy = watch(sys.executable, "-c", BUSY, cpu=cpu)
    assert wait_until(lambda: busy.look() is not None and bool(busy.watch.cpus.followed))
    hog = spawn(sys.executable, "-c", HOG)
    short = spawn(sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)")
    for process in (hog, short):
        os.sched_setaffinity(process.pid, {cpu})
    if priority == "higher":
        os.setpriority(os.PRIO_PROCESS, hog.pid, -15)
    with kernel_trace(cpu, tmp_path / "trace", ["sched:sched_switch"]):
        busy.look()
        busy.rows.clear()
        # Until the hog was named often enough.
        assert wait_until(lambda: busy.look() is not None and np.count_nonzero(busy.all()["code"] == hog.pid) > 10)
    rows = busy.all()
    rows = rows[(rows["kind"] == AbsenceKind.SWITCH) & ((rows["flags"] & AbsenceFlag.PREEMPTED) != 0)]
    told, right = compare(rows, read_runs(tmp_path / "trace"), RawClock(busy.clock), busy.pid)
    assert told
    assert right >= 0.85 * told  # perf loses some of its own records on a busy machine
    named = rows[rows["code"] == hog.pid]
    assert len(named)
    assert any(name_absence(row).startswith(f"the hog (tid {hog.pid})") for row in named)


def read_runs(trace: Path) -> list[tuple[int, int, int]]:
    """Begin and end (raw ns) of each run of a task, and its thread ID, as perf says."""
    words = ["perf", "script", "-i", str(trace), "--ns", "-F", "time,trace"]
    lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [re.match(r"\s*(\d+)\.(\d{9}): .* next_pid=(\d+) ", line) for line in lines]
    at = [(int(one[1]) * 10**9 + int(one[2]), int(one[3])) for one in found if one]
    return [(begin, end, tid) for (begin, tid), (end, _) in pairwise(at)]


def compare(rows: Rows, runs: list[tuple[int, int, int]], raw: RawClock, tid: int) -> tuple[int, int]:
    """Of the rows that the trace covers: how many there are, and how many name the task that ran longest (or as long as
    the longest, to a twentieth).
    """
    begins = raw.ticks(np.array([begin for begin, _, _ in runs], np.uint64)).astype(np.int64)
    ends = raw.ticks(np.array([end for _, end, _ in runs], np.uint64)).astype(np.int64)
    tids = np.array([one for _, _, one in runs])
    told = right = 0
    for row in rows:
        out, back = int(row["out_ticks"]), int(row["in_ticks"])
        if out < begins[0] or back > ends[-1]:
            continue
        inside = np.minimum(ends, back) - np.maximum(begins, out)
        sums = {one: int(inside[(tids == one) & (inside > 0)].sum()) for one in np.unique(tids) if one != tid}
        told += 1
        right += sums.get(int(row["code"]), 0) >= 0.95 * max(sums.values())
    return told, right


def find_rows(target: Watched, counts: bool = False) -> list[Rows]:
    """The main thread's rows in each event of the target's log; `counts`: of those with major faults."""
    process = target.process  # type: ignore[attr-defined]
    raw = RawClock(target.clock)
    assert wait_until(lambda: len(target.look()) > 0 and bool(target.watch.cpus.followed))
    since_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
    found: list[Rows] = []
    lines: list[list[int]] = []
    while len(lines) < EVENTS:
        line = [int(word) for word in process.stdout.readline().split()]
        target.look()
        if line[0] > since_ns and (line[2] or not counts):
            lines.append(line)
    process.send_signal(signal.SIGKILL)
    target.look()
    rows = target.all()
    for line in lines:
        begin, end = raw.ticks(np.array(line[:2], np.uint64)).astype(np.int64).tolist()
        inside = (rows["in_ticks"].astype(np.int64) > begin) & (rows["out_ticks"].astype(np.int64) < end)
        found.append(rows[inside])
    return found


def share(found: list[Rows], is_right: Callable[[np.void], bool]) -> float:
    """Of the events: how many are told by one of their rows."""
    return sum(any(map(is_right, rows)) for rows in found) / len(found)


def test_a_page_of_an_evicted_file(
    compile_target: Callable[..., Path], watch: Callable[..., Watched], tmp_path: Path
) -> None:
    file = tmp_path / "evicted.bin"
    file.write_bytes(os.urandom(1 << 18))
    os.sync()
    found = find_rows(watch(compile_target("sleeper"), "fault", file), counts=True)

    def is_right(row: np.void) -> bool:
        is_major = row["kind"] == AbsenceKind.FAULT and bool(row["flags"] & AbsenceFlag.MAJOR)
        return is_major and name_absence(row).endswith("evicted.bin")

    assert share(found, is_right) > 0.8


def test_a_system_call_that_blocks(
    compile_target: Callable[..., Path], watch: Callable[..., Watched], tmp_path: Path
) -> None:
    file = tmp_path / "synced.bin"
    file.write_bytes(bytes(1 << 18))
    found = find_rows(watch(compile_target("sleeper"), "fsync", file))

    def is_right(row: np.void) -> bool:
        name = name_absence(row)
        return row["kind"] == AbsenceKind.CALL and name.startswith("fsync: ") and name.endswith("synced.bin")

    assert share(found, is_right) > 0.8


def test_a_pipe_that_is_empty(compile_target: Callable[..., Path], watch: Callable[..., Watched]) -> None:
    found = find_rows(watch(compile_target("sleeper"), "pipe"))
    slept = [rows for rows in found if AbsenceKind.CALL in rows["kind"]]
    assert len(slept) > 0.8 * len(found)

    def is_right(row: np.void) -> bool:
        return name_absence(row).startswith("read: ") and "pipe:[" in name_absence(row)

    assert share(slept, is_right) > 0.8


def test_a_lock_that_another_thread_holds(compile_target: Callable[..., Path], watch: Callable[..., Watched]) -> None:
    found = find_rows(watch(compile_target("sleeper"), "lock"))
    waits = [rows for rows in found if AbsenceKind.WAIT in rows["kind"]]
    assert len(waits) > 0.8 * len(found)
    # Who released it: the thread that held it, where its wake-up was on a CPU that was watched by then.
    assert share(waits, lambda row: "ended by slowlock (tid " in name_absence(row)) > 0.7


def test_a_stop_is_no_sleep(watch: Callable[..., Watched]) -> None:
    stopped = watch(sys.executable, "-c", BUSY)

    def find_stops() -> Rows:
        stopped.look()
        rows = stopped.all()
        return rows[(rows["flags"] & AbsenceFlag.STOPPED) != 0]

    for number in range(5):
        stop_for(stopped.pid, 0.05)
        # It is over when the process has a processor again.
        assert wait_until(lambda number=number: len(find_stops()) > number)  # type: ignore[misc]
    stops = find_stops()
    assert len(stops) == 5
    assert {name_absence(row) for row in stops} == {"stopped by a signal or a debugger"}
    lasted = (stops["in_ticks"] - stops["out_ticks"]) / stopped.clock.ticks_per_second
    assert (lasted > 0.045).all()


def test_fresh_pages(compile_target: Callable[..., Path], watch: Callable[..., Watched]) -> None:
    """Each of 64 pages that were given back is one minor page fault."""
    found = find_rows(watch(compile_target("sleeper"), "fresh"))
    faults = [rows[rows["kind"] == AbsenceKind.FAULT] for rows in found]
    counts = [len(np.unique(rows["address"] >> 12)) for rows in faults]
    assert np.median(counts) == 64
    assert not any((rows["flags"] & AbsenceFlag.MAJOR).any() for rows in faults)


def test_without_the_right_to_see_cpus_the_first_task_is_named(
    watch: Callable[..., Watched], spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cpu_watch, "_open_tracepoint", refuse)
    cpu = max(os.sched_getaffinity(0))
    busy, other = watch(sys.executable, "-c", BUSY, cpu=cpu), spawn(sys.executable, "-c", BUSY)
    os.sched_setaffinity(other.pid, {cpu})
    assert wait_until(lambda: len(busy.look()) > 0 and other.pid in busy.all()["code"])
    assert wait_until(lambda: len(busy.look()) > 0 and busy.watch.cpus.refusal is not None)
    assert not busy.all()["part_ticks"][busy.all()["kind"] == AbsenceKind.SWITCH].any()
    (sentence,) = busy.watch.take_notices()
    assert sentence.startswith("Of tasks that run instead of a thread the first one is recorded, not the longest: Perm")
    assert not busy.watch.take_notices()  # said once


def test_a_thread_that_is_refused_later_is_told(
    watch: Callable[..., Watched], spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, other = watch(sys.executable, "-c", BUSY), spawn(sys.executable, "-c", BUSY)
    assert not busy.watch.take_notices()

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(absence_watch, "open_traced", refuse)
    busy.watch.watch(other.pid)
    (sentence,) = busy.watch.take_notices()
    assert sentence.startswith("Interrupts and steal time are not recorded (perf_event_open: Permission denied")


def test_without_events_of_cpus_a_thread_has_its_own(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a CPU goes offline meanwhile."""

    def refuse(event: absence_events.TracedEvent, tid: int, cpu: int) -> int:
        if cpu >= 0 and event.tells == absence_events.Tells.SLEEPS:  # the last of them
            raise OSError(19, "No such device")
        return absence_events.open_traced(event, tid, cpu)

    monkeypatch.setattr(absence_watch, "open_traced", refuse)
    watch, busy = AbsenceWatch(Clock.start(), lambda tid: True), spawn(sys.executable, "-c", BUSY)
    watch.watch(busy.pid)
    assert (watch._watched[busy.pid].cpus, watch.unseen) == (frozenset(), None)
    rows: list[Rows] = []

    def is_seen() -> bool:
        rows.append(watch.read(lambda: {busy.pid: 7}))
        return bool(np.isin(AbsenceKind.VECTOR, np.concatenate(rows)["kind"]))

    assert wait_until(is_seen)
    watch.close()


def test_threads_with_work_get_tracepoints_before_others(
    watch: Callable[..., Watched], spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence_watch, "TRACED_MAX", 1)
    idle, working = watch(sys.executable, "-c", BUSY, works=False), spawn(sys.executable, "-c", BUSY)
    idle.watch.watch(working.pid)
    assert [len(idle.watch._watched[pid].tracepoints) > 0 for pid in (idle.pid, working.pid)] == [True, False]
    idle.watch.follow_work([working.pid])
    assert [len(idle.watch._watched[pid].tracepoints) > 0 for pid in (idle.pid, working.pid)] == [False, True]
