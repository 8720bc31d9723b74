# SPDX-License-Identifier: Apache-2.0
"""What the scheduler did to a thread: compared with what the kernel counts for it in /proc."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock, sample_pair
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.causes import absence_watch
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceFlag
from otel_nfprobe.recording.recording import ABSENCES, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts
from tests.support.probed import wait_until

pytestmark = pytest.mark.integration

PREEMPTIONS = 20
BUSY = "while True: pass"


def read_counts(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if "ctxt_switches" in line}


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: is_stopped(pid))


def test_every_preemption_is_seen_and_stops_are_told_apart(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    first, second = spawn(sys.executable, "-c", BUSY), spawn(sys.executable, "-c", BUSY)
    cpu = min(os.sched_getaffinity(0))
    for process in (first, second):
        os.sched_setaffinity(process.pid, {cpu})
    stop(first.pid)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(first.pid)
    watch.watch(first.pid)
    before, start = read_counts(first.pid), sample_pair().ticks
    rows = []
    for wanted in (PREEMPTIONS // 2, PREEMPTIONS):
        os.kill(first.pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while read_counts(first.pid)["nonvoluntary_ctxt_switches"] < before["nonvoluntary_ctxt_switches"] + wanted:
            assert time.monotonic() < deadline
            time.sleep(0.005)
            rows.append(watch.read(lambda: {first.pid: 7}))
        stop(first.pid)
    rows.append(watch.read(lambda: {first.pid: 7}))
    found, end, after = np.concatenate(rows), sample_pair().ticks, read_counts(first.pid)
    watch.close()
    preempted = (found["flags"] & AbsenceFlag.PREEMPTED) != 0
    assert watch.lost == 0
    assert preempted.sum() == after["nonvoluntary_ctxt_switches"] - before["nonvoluntary_ctxt_switches"]
    # The last stop has not ended: it is no row yet.
    assert (~preempted).sum() == after["voluntary_ctxt_switches"] - before["voluntary_ctxt_switches"] - 1
    assert set(found["thread"].tolist()) == {7}
    assert set(found["from_cpu"].tolist()) | set(found["to_cpu"].tolist()) == {cpu}
    times = np.stack((found["out_ticks"], found["in_ticks"]), axis=1).ravel().astype(np.int64)
    slack = 26_000  # of the clocks' comparison: 10 us
    assert np.all(np.diff(times) >= -slack)
    assert start - slack < times[0]
    assert times[-1] < end + slack


def test_a_thread_that_is_gone_is_not_watched() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(int(done.stdout))
    assert len(watch.read(dict)) == 0
    watch.close()


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(absence_watch, "_open_event", refuse)
    with pytest.raises(NfprobeError) as error:
        AbsenceWatch(Clock.start(), lambda tid: True).watch(os.getpid())
    assert "perf_event_paranoid is" in error.value.sentence
    assert error.value.sentence.endswith(".")
    assert "\n" not in error.value.sentence


OUT, PREEMPTED = 1 << 13, 3 << 13
LOST = struct.pack("<IHH", 2, 0, 48) + bytes(40)  # PERF_RECORD_LOST


class FakeRing:
    """A thread's buffer, into which a test writes what the kernel would."""

    def __init__(self, watch: AbsenceWatch, tid: int) -> None:
        self._buffer = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self._head = 0
        watch._add(tid, os.open("/dev/null", os.O_RDONLY), self._buffer)

    def put(self, *records: bytes | tuple[int, int]) -> None:
        """Records as they are, or absences: misc, time in ns."""
        for record in records:
            if isinstance(record, tuple):
                record = struct.pack("<IHHIIQII", 14, record[0], 32, 0, 0, record[1], 3, 0)
            for byte in record:  # it may go on at the ring's beginning
                self._buffer[mmap.PAGESIZE + self._head % (2 * mmap.PAGESIZE)] = byte
                self._head += 1
        struct.pack_into("<Q", self._buffer, 1024, self._head)


def test_threads_that_are_read_together() -> None:
    """What was away at the end of one look belongs to what comes back in the next, of the same thread only."""
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    rings = {tid: FakeRing(watch, tid) for tid in (11, 12, 13, 14)}
    indexes = {11: 1, 12: 2, 13: 3}

    def look() -> list[tuple[int, int]]:
        rows = watch.read(lambda: indexes)
        assert (rows["in_ticks"] > rows["out_ticks"]).all()
        return list(zip(rows["thread"].tolist(), rows["flags"].tolist(), strict=True))

    assert look() == []
    rings[11].put((OUT, 1_000_000), (0, 2_000_000), (PREEMPTED, 3_000_000))
    rings[12].put((0, 1_000_000), (OUT, 4_000_000))  # its first record is a switch in
    rings[14].put((OUT, 1_000_000))  # no entry of the thread table
    assert look() == [(1, 0)]
    rings[12].put((0, 5_000_000))
    rings[13].put((OUT, 5_000_000), (0, 6_000_000), (OUT, 7_000_000))
    assert look() == [(2, 0), (3, 0)]
    # The kernel has lost records of 13: what was away does not belong to what comes back, and the next is incomplete.
    rings[11].put((0, 8_000_000))
    rings[13].put(LOST, (0, 9_000_000), (OUT, 10_000_000), (0, 11_000_000))
    assert look() == [(1, AbsenceFlag.PREEMPTED), (3, AbsenceFlag.INCOMPLETE)]
    assert watch.lost == 1
    # What 14 did before it had an entry is its own.
    indexes[14] = 4
    rings[14].put((0, 12_000_000), (OUT, 13_000_000), (0, 14_000_000))
    assert look() == [(4, 0), (4, 0)]
    watch.close()


def test_lost_records_of_the_kernel_are_counted() -> None:
    """What went before them does not belong to what comes back after them, in one look or two."""
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    ring = FakeRing(watch, 11)
    ring.put((OUT, 1_000_000), LOST, (0, 2_000_000), LOST, (PREEMPTED, 3_000_000), (0, 4_000_000), (OUT, 5_000_000))
    rows = watch.read(lambda: {11: 1})
    assert rows["flags"].tolist() == [AbsenceFlag.PREEMPTED | AbsenceFlag.INCOMPLETE]
    assert watch.lost == 2
    ring.put((0, 6_000_000))
    assert watch.read(lambda: {11: 1})["flags"].tolist() == [0]
    ring.put(bytes(32))  # nothing that can be: what follows is not read, either
    assert len(watch.read(lambda: {11: 1})) == 0
    watch.close()


def test_records_that_go_on_at_the_beginning_of_a_buffer() -> None:
    """More than one buffer's worth, in pieces that end anywhere, of several threads."""
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    rings, times = [FakeRing(watch, tid) for tid in range(40)], []
    for turn in range(1, 120):
        for ring in rings:
            ring.put(*((OUT, 1000 * turn + 10 * number) if number % 2 == 0 else (0, 1000 * turn + 10 * number)
                       for number in range(2 * (turn % 7))))  # fmt: skip
            ring.put(LOST)
        rows = watch.read(lambda: {tid: tid for tid in range(40)})
        assert rows["thread"].tolist() == [tid for tid in range(40) for _ in range(turn % 7)]
        times.append(len(rows))
    assert sum(times) * 64 > 2 * 8192
    assert watch.lost == 119 * 40
    watch.close()


def test_a_thread_that_takes_the_place_of_another_one() -> None:
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    FakeRing(watch, 11).put((OUT, 1_000_000))
    assert len(watch.read(lambda: {11: 1})) == 0
    watch._remove(11)
    FakeRing(watch, 12).put((0, 2_000_000), (OUT, 3_000_000), (0, 4_000_000))
    assert watch.read(lambda: {11: 1, 12: 2})["thread"].tolist() == [2]
    watch.close()


def test_rows_are_those_of_the_core() -> None:
    fields = dict(ffi.typeof("struct nfp_absence").fields or ())
    offsets = [field.offset for field in fields.values()]
    assert offsets == [ABSENCE.fields[name][1] for name in ABSENCE.names]  # type: ignore[index, union-attr]
    assert ffi.sizeof("struct nfp_absence") == ABSENCE.itemsize
    assert (lib.NFP_ABSENCE_PREEMPTED, lib.NFP_ABSENCE_INCOMPLETE) == (AbsenceFlag.PREEMPTED, AbsenceFlag.INCOMPLETE)


def test_recordings_keep_them(tmp_path: Path) -> None:
    rows = np.zeros(3, ABSENCE)
    rows["out_ticks"], rows["in_ticks"], rows["thread"] = [5, 9, 20], [7, 11, 25], [0, 1, 0]
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    for part in (rows[:2], rows[2:], rows[:0]):
        writer.absences(part)
    writer.finish({})
    reader = RecordingReader(tmp_path / "r")
    assert [block.type for block in reader.blocks()].count(ABSENCES) == 2
    assert read_facts(reader).absences.tolist() == rows.tolist()
