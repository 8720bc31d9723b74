# SPDX-License-Identifier: Apache-2.0
"""What the scheduler did to a thread: compared with what the kernel counts for it in /proc."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.base.clock import Clock, sample_pair
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.causes import absence_watch
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.linux import tracepoints
from otel_nfprobe.pipeline.absences import ABSENCE, INTERRUPTS, AbsenceFlag, AbsenceKind, name_absence
from otel_nfprobe.recording.recording import ABSENCES, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts
from tests.support.perf_records import LOST, make_sample, make_switch
from tests.support.probed import events_are_closed, wait_until

pytestmark = pytest.mark.integration

PREEMPTIONS = 20
BUSY = "while True: pass"
HERTZ_MIN = 100  # of any kernel's tick
LOST_RECORDS = "The kernel lost records of what kept threads from running: some causes may be wrong."


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
    found = found[found["kind"] == AbsenceKind.SWITCH]
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


def count_events() -> int:
    """Perf events that this process has open."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself, or it is closed at this moment
            links.append(os.readlink(path))
    return sum("[perf_event]" in link for link in links)


def test_closing_leaves_nothing_open(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    assert wait_until(events_are_closed)  # else some of those before are not there afterwards
    busy, before = spawn(sys.executable, "-c", BUSY), count_events()
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(busy.pid)
    watch.follow_work({busy.pid})
    assert wait_until(lambda: len(watch.read(lambda: {busy.pid: 7})) > 0)
    watch.read(lambda: {busy.pid: 7})  # follows the CPU that was found
    assert count_events() > before + 20
    watch.close()
    assert wait_until(lambda: count_events() == before)


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(absence_watch, "open_switches", refuse)
    with pytest.raises(NfprobeError) as error:
        AbsenceWatch(Clock.start(), lambda tid: True).watch(os.getpid())
    assert "perf_event_paranoid is" in error.value.sentence
    assert error.value.sentence.endswith(".")
    assert "\n" not in error.value.sentence


def test_without_tracefs_switches_are_seen_and_a_sentence_says_what_is_not(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracepoints, "FOLDERS", (tmp_path / "absent",))
    busy = spawn(sys.executable, "-c", BUSY)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(busy.pid)
    assert watch.unseen is not None
    assert watch.unseen.sentence == "Interrupts and steal time are not recorded: tracefs is not mounted."
    assert watch.unseen.next_command.startswith("mount -t tracefs ")
    stop(busy.pid)
    os.kill(busy.pid, signal.SIGCONT)
    rows: list[Rows] = []

    def is_seen() -> bool:
        rows.append(watch.read(lambda: {busy.pid: 7}))
        return any(AbsenceKind.SWITCH in part["kind"] for part in rows)

    assert wait_until(is_seen)
    watch.close()
    assert set(np.concatenate(rows)["kind"].tolist()) <= {AbsenceKind.SWITCH, AbsenceKind.FAULT}


OUT, PREEMPTED = 1 << 13, 3 << 13


class FakeRing:
    """A thread's buffer, into which a test writes what the kernel would."""

    def __init__(self, watch: AbsenceWatch, tid: int) -> None:
        self._buffer = mmap.mmap(-1, 3 * mmap.PAGESIZE)
        self._head = 0
        watch._add(tid, os.open("/dev/null", os.O_RDONLY), self._buffer)

    def add_second(self, watch: AbsenceWatch, tid: int) -> FakeRing:
        """The thread's second buffer."""
        second = object.__new__(FakeRing)
        second._buffer, second._head = mmap.mmap(-1, 3 * mmap.PAGESIZE), 0
        watch._add_buffer(watch._watched[tid], second._buffer)
        return second

    def put(self, *records: bytes | tuple[int, int]) -> None:
        """Records as they are, or absences: misc, time in ns."""
        for record in records:
            if isinstance(record, tuple):
                record = make_switch(*record)
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
    assert watch.take_notices() == [LOST_RECORDS]
    ring.put((0, 6_000_000))
    assert watch.read(lambda: {11: 1})["flags"].tolist() == [0]
    ring.put(bytes(40))  # nothing that can be: what follows is not read, either
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
    watch._remove([11])
    FakeRing(watch, 12).put((0, 2_000_000), (OUT, 3_000_000), (0, 4_000_000))
    assert watch.read(lambda: {11: 1, 12: 2})["thread"].tolist() == [2]
    watch.close()


def sample(watch: AbsenceWatch, role: int, time_ns: int, code: int = 0, value: int = 0, text: bytes = b"") -> bytes:
    """A sample of the first tracepoint of this role, with the fields where this kernel has them."""
    tracepoints = [watch._reader.tracepoints[i] for i in range(watch._reader.tracepoint_count)]
    (tracepoint, *_) = [t for t in tracepoints if t.role == role and (role == DURATION or t.code_at != NO_FIELD)]
    data = bytearray(100)
    struct.pack_into("<HHI", data, 0, tracepoint.id, 0, 11)
    for at, form, content in ((tracepoint.code_at, "<I", code), (tracepoint.value_at, "<Q", value)):
        if at != NO_FIELD:
            struct.pack_into(form, data, at, content)
    if tracepoint.name_at != NO_FIELD:
        struct.pack_into("16s", data, tracepoint.name_at, text)
    if tracepoint.name_location_at != NO_FIELD:
        struct.pack_into("<I", data, tracepoint.name_location_at, len(text) << 16 | 64)
        struct.pack_into("32s", data, 64, text)
    return make_sample(time_ns, bytes(data))


BEGIN, END, DURATION = lib.NFP_TRACEPOINT_BEGIN, lib.NFP_TRACEPOINT_END, lib.NFP_TRACEPOINT_DURATION
NO_FIELD = lib.NFP_TRACEPOINT_NO_FIELD
NEXT_TASK, RUN_TIME = lib.NFP_TRACEPOINT_SWITCH, lib.NFP_TRACEPOINT_RUN_TIME


@pytest.fixture
def traced() -> Iterator[tuple[AbsenceWatch, FakeRing]]:
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    assert not watch.unseen
    yield watch, FakeRing(watch, 11)
    watch.close()


def look_at(watch: AbsenceWatch) -> list[tuple[int, int, str, int]]:
    """Rows as read: begin and end (us), what the CPU did, stolen (us)."""
    rate = watch._clock._clock.ticks_per_second / 1e6
    rows = watch.read(lambda: {11: 1})
    base = int(watch._clock.ticks(np.zeros(1, np.uint64))[0])
    us = [[round((int(row[name]) - base) / rate) for name in ("out_ticks", "in_ticks")] for row in rows]
    return [
        (out, back, name_absence(row), round(int(row["part_ticks"]) / rate))
        for (out, back), row in zip(us, rows, strict=True)
    ]


def test_of_nested_interrupts_each_has_its_own_time(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    ring.put(
        sample(watch, BEGIN, 10_000, 36, text=b"virtio1-req.0"),
        sample(watch, DURATION, 14_000, value=1000),
        sample(watch, END, 20_000, 36),
        (OUT | 1 << 14, 30_000),
        (0, 40_000),
        sample(watch, END, 50_000, 36),  # its begin was not seen
    )
    assert look_at(watch) == [
        (10, 13, "interrupt 36 virtio1-req.0", 0),
        (13, 14, "non-maskable interrupt", 0),
        (14, 20, "interrupt 36 virtio1-req.0", 0),
        (30, 40, "", 0),
    ]


def test_two_buffers_are_read_in_the_order_of_time(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    second = ring.add_second(watch, 11)
    second.put(sample(watch, BEGIN, 10_000, 36, text=b"eth0"), sample(watch, END, 20_000, 36))
    second.put(sample(watch, RUN_TIME, 1_000_000, 11, 950_000), sample(watch, RUN_TIME, 5_000_000, 11, 3_000_000))
    ring.put(sample(watch, NEXT_TASK, 29_000, 71, text=b"hog"), (PREEMPTED, 30_000), (0, 40_000))
    assert look_at(watch) == [
        (10, 20, "interrupt 36 eth0", 0),
        (30, 40, "hog (tid 71)", 0),
        (1000, 5000, "the hypervisor", 1000),
    ]
    # A record that comes late overlaps with nothing.
    ring.put((OUT, 6_000_000), (0, 7_000_000))
    assert len(look_at(watch)) == 1
    second.put(sample(watch, BEGIN, 6_500_000, 36, text=b"eth0"), sample(watch, END, 7_200_000, 36))
    assert look_at(watch) == [(7000, 7200, "interrupt 36 eth0", 0)]


def test_a_flood_of_interrupts_hides_no_preemption(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    second = ring.add_second(watch, 11)
    second.put(sample(watch, BEGIN, 10_000, 36, text=b"eth0"), LOST, sample(watch, END, 90_000, 36))
    ring.put(sample(watch, NEXT_TASK, 29_000, 71, text=b"hog"), (PREEMPTED, 30_000), (0, 80_000))
    assert [row[:3] for row in look_at(watch)] == [(30, 80, "hog (tid 71)")]
    second.put(LOST)
    ring.put((PREEMPTED, 100_000))
    assert look_at(watch) == []
    second.put(LOST)
    ring.put((0, 200_000))
    assert watch.read(lambda: {11: 1})["flags"].tolist() == [AbsenceFlag.PREEMPTED | AbsenceFlag.INCOMPLETE]
    assert watch.lost == 3


def test_the_task_that_runs_instead_is_named(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    ring.put(sample(watch, NEXT_TASK, 9_000, 71, text=b"kworker/1:2"), (PREEMPTED, 10_000), (0, 20_000))
    ring.put((OUT, 30_000), (0, 40_000))  # its sample was lost
    ring.put(sample(watch, NEXT_TASK, 49_000, 0, text=b"swapper/1"), (OUT, 50_000), (0, 60_000))
    assert [name for *_, name, _ in look_at(watch)] == ["kworker/1:2 (tid 71)", "", "the idle task"]


def test_steal_time_is_what_neither_the_thread_nor_interrupts_had(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    ring.put(
        sample(watch, RUN_TIME, 1_000_000, 11, 500_000),  # since when is not known
        sample(watch, RUN_TIME, 5_000_000, 11, 4_000_000),
        sample(watch, BEGIN, 6_000_000, 36, text=b"eth0"),
        sample(watch, END, 6_500_000, 36),
        sample(watch, RUN_TIME, 9_000_000, 11, 1_000_000),
        sample(watch, RUN_TIME, 9_500_000, 12, 1),  # another thread's
        sample(watch, RUN_TIME, 13_000_000, 11, 1 << 63),  # nothing that can be
        (PREEMPTED, 14_000_000),
        (0, 20_000_000),
        sample(watch, RUN_TIME, 24_000_000, 11, 3_000_000),
    )
    assert [row for row in look_at(watch) if row[2] == "the hypervisor"] == [
        (5000, 9000, "the hypervisor", 2500),
        (20_000, 24_000, "the hypervisor", 1000),
    ]


def find_steal_time(
    traced: tuple[AbsenceWatch, FakeRing], missing_us: dict[int, int], interrupted_us: dict[int, int], usual: list[int]
) -> list[tuple[int, int]]:
    """Ticks of 4 ms by number: what is missing from the run time before it, and the time of an interrupt behind it.

    Returns:
        end of each tick in which something was stolen, and how much, in us.
    """
    watch, ring = traced
    found = []
    for tick in range(1, 40):
        at = 4_000_000 * tick
        ring.put(
            sample(watch, RUN_TIME, at, 11, 4_000_000 - 1000 * missing_us.get(tick, usual[0])),
            sample(watch, BEGIN, at + 10_000, 36, text=b"eth0"),
            sample(watch, END, at + 10_000 + 1000 * interrupted_us.get(tick, usual[1]), 36),
        )
        found += [(back, took) for _, back, name, took in look_at(watch) if name == "the hypervisor"]
    return found


def test_where_run_times_contain_interrupts_steal_time_in_one_is_seen(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    """As on kernels without IRQ_TIME_ACCOUNTING: what was stolen is missing from a run time, and nothing else."""
    missing, interrupted = {30: 2000, 35: 1900}, {29: 2010, 34: 2010}
    assert find_steal_time(traced, missing, interrupted, [0, 10]) == [(120_000, 2000), (140_000, 1900)]


def test_where_run_times_lack_interrupts_these_are_not_stolen(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    missing = {30: 1102, 35: 2002}
    assert find_steal_time(traced, missing, {34: 2000}, [102, 100]) == [(120_000, 1002)]


BEGIN_FAULT, MINOR, MAJOR = 101, 102, 103  # IDs of the events of page faults


def give_fault_events(watch: AbsenceWatch) -> None:
    for at, id_ in enumerate((BEGIN_FAULT, MINOR, MAJOR)):
        watch._events[watch._watched[11].place].fault_ids[at] = id_


def test_page_faults_begin_and_end_and_have_interrupts_in_them(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    give_fault_events(watch)
    ring.put(
        make_sample(10_000, id_=BEGIN_FAULT, address=0x5000),
        make_sample(12_000, id_=MINOR, address=0x5000),
        make_sample(20_000, id_=BEGIN_FAULT, address=0x6000),
        sample(watch, BEGIN, 22_000, 36, text=b"eth0"),
        sample(watch, END, 25_000, 36),
        (OUT, 30_000),
        (0, 90_000),
        make_sample(95_000, id_=MAJOR, address=0x6000),
        make_sample(99_000, id_=MINOR, address=0x7000),  # its begin was not seen
    )
    assert [row[:3] for row in look_at(watch)] == [
        (10, 12, "page fault"),
        (20, 22, "page fault"),
        (22, 25, "interrupt 36 eth0"),
        (25, 30, "page fault"),
        (30, 90, "major page fault"),
        (90, 95, "major page fault"),
    ]


def test_a_major_fault_whose_begin_was_not_seen_is_the_sleep_before_its_end(
    traced: tuple[AbsenceWatch, FakeRing],
) -> None:
    watch, ring = traced
    give_fault_events(watch)
    ring.put((OUT, 30_000), (0, 90_000), make_sample(95_000, id_=MAJOR, address=0x6000))
    ring.put((OUT, 100_000), (0, 200_000), make_sample(9_000_000, id_=MAJOR, address=0x6000))  # too long ago
    ring.put((PREEMPTED, 9_100_000), (0, 9_200_000), make_sample(9_201_000, id_=MAJOR))
    assert [row[2] for row in look_at(watch)] == ["major page fault", "", ""]


def test_what_a_throttled_tracepoint_misses_is_marked(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    throttle, unthrottle = (struct.pack("<IHHQQQ", kind, 0, 32, 0, 0, 0) for kind in (5, 6))
    ring.put(sample(watch, BEGIN, 10_000, 36), throttle, unthrottle, sample(watch, END, 20_000, 36))
    ring.put((OUT, 30_000), (0, 40_000))
    assert watch.read(lambda: {11: 1})["flags"].tolist() == [AbsenceFlag.INCOMPLETE]
    assert (watch.lost, watch.throttled) == (0, 1)


def test_samples_of_any_bytes_are_read_within_their_bounds(traced: tuple[AbsenceWatch, FakeRing]) -> None:
    watch, ring = traced
    rng = random.Random(5)
    ids = [watch._reader.tracepoints[i].id for i in range(watch._reader.tracepoint_count)]
    for _ in range(3000):
        bytes_ = 8 * rng.randrange(20)
        data = struct.pack("<H", rng.choice(ids)) + rng.randbytes(bytes_)
        frames = [rng.randrange(1 << 64) for _ in range(rng.choice([0, 0, 3, 200]))]
        stated = rng.choice([len(data), 0, rng.randrange(1 << 32)])
        made = bytearray(make_sample(rng.randrange(1 << 60), data, rng.randrange(4), 0, frames, 7, stated))
        if rng.random() < 0.3:  # so many frames that no record is long enough for them
            struct.pack_into("<Q", made, 56, rng.randrange(1 << 64))
        ring.put(bytes(made))
        rows = watch.read(lambda: {11: 1})
        assert len(rows) <= 2
        for row in rows:
            name_absence(row)


@pytest.mark.parametrize("events_of", ["CPUs", "threads"])
def test_interrupts_of_a_busy_thread_are_those_of_the_kernel(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch, events_of: str
) -> None:
    """The timer's interrupts on a CPU that one busy thread has for itself, counted by /proc/interrupts."""
    busy, cpu = spawn(sys.executable, "-c", BUSY), min(os.sched_getaffinity(0))
    os.sched_setaffinity(busy.pid, {cpu})
    if events_of == "threads":
        monkeypatch.setattr(absence_watch, "CPUS_EACH", 0)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)

    def count() -> int:
        (line,) = [
            line for line in Path("/proc/interrupts").read_text().splitlines() if line.strip().startswith("LOC:")
        ]
        return int(line.split()[1 + cpu])

    def ran_s() -> float:
        return int(Path(f"/proc/{busy.pid}/schedstat").read_text().split()[0]) / 1e9

    before = count()  # of at least all that the watch can see
    watch.watch(busy.pid)
    ran_before_s, rows, deadline = ran_s(), [], time.monotonic() + 2
    while time.monotonic() < deadline:
        time.sleep(0.02)
        rows.append(watch.read(lambda: {busy.pid: 7}))
    taken, busy_s = count() - before, ran_s() - ran_before_s
    watch.close()
    found = np.concatenate(rows)
    timers = found[(found["kind"] == AbsenceKind.VECTOR) & (found["code"] == 0)]
    assert 0.8 * HERTZ_MIN * busy_s <= len(timers) <= taken + 2
    plain = found[found["kind"] != AbsenceKind.STEAL]
    assert np.all(plain["in_ticks"] >= plain["out_ticks"])
    assert np.all(np.diff(plain["out_ticks"].astype(np.int64)) >= 0)


def look_for_interrupts(watch: AbsenceWatch, tids: dict[int, int]) -> set[int]:
    """Returns those of the threads that were interrupted in half a second."""
    watch.end_gone()
    watch.read(lambda: tids)
    time.sleep(0.5)
    rows = watch.read(lambda: tids)
    return set(rows["thread"][np.isin(rows["kind"], INTERRUPTS)].tolist())


def test_interrupts_follow_a_thread_to_other_cpus(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Events of CPUs tell those of each thread, of no other one, and wherever it is moved."""
    cpus = sorted(os.sched_getaffinity(0))
    pipe = subprocess.PIPE
    busy, idle, other = (spawn(sys.executable, "-c", code, stdin=pipe) for code in (BUSY, "input()", BUSY))
    for process in (busy, idle):
        os.sched_setaffinity(process.pid, cpus[:1])
    os.sched_setaffinity(other.pid, cpus[-1:])
    stop(other.pid)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    for process in (busy, idle, other):
        watch.watch(process.pid)
    tids = {busy.pid: 1, idle.pid: 2, other.pid: 3}
    assert watch._watched[busy.pid].cpus == set(cpus[:1])
    assert wait_until(lambda: look_for_interrupts(watch, tids) == {1})
    os.sched_setaffinity(busy.pid, cpus[-1:])
    assert wait_until(lambda: look_for_interrupts(watch, tids) == {1})
    assert watch._watched[busy.pid].cpus == set(cpus[-1:])
    os.kill(other.pid, signal.SIGCONT)  # both on one CPU
    assert wait_until(lambda: look_for_interrupts(watch, tids) == {1, 3})
    assert wait_until(events_are_closed)
    descriptors = len(os.listdir("/proc/self/fd"))
    os.sched_setaffinity(busy.pid, cpus[:1])
    look_for_interrupts(watch, tids)
    assert wait_until(lambda: len(os.listdir("/proc/self/fd")) == descriptors)
    watch.close()


def test_threads_beyond_those_that_share_a_cpu_have_interrupts_too(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(absence_watch, "SHARERS_MAX", 1)
    cpu = min(os.sched_getaffinity(0))
    threads = [spawn(sys.executable, "-c", BUSY) for _ in range(2)]
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    for thread in threads:
        os.sched_setaffinity(thread.pid, {cpu})
        watch.watch(thread.pid)
    assert [len(watch._watched[thread.pid].cpus) for thread in threads] == [1, 0]
    tids = {thread.pid: number for number, thread in enumerate(threads)}
    assert wait_until(lambda: look_for_interrupts(watch, tids) == {0, 1})
    watch.close()


SENDING = """
import socket, sys, threading
line = threading.Thread(target=sys.stdin.readline)
line.start()
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
while line.is_alive():
    receiver.sendto(b"x", receiver.getsockname())
    receiver.recv(1)
while True:
    pass
"""


def test_softirqs_of_the_network_are_left_out_while_there_are_many(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are back when the thread sends no more; other interrupts are recorded all the time."""
    monkeypatch.setattr(absence_watch, "OFF_S", 0.2)
    monkeypatch.setattr(absence_watch, "SOFTIRQS_MAX", 100)  # whatever else runs here
    sending = spawn(sys.executable, "-c", SENDING, stdin=subprocess.PIPE)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(sending.pid)

    def count(seconds: float) -> tuple[int, int]:
        """Softirqs of the network, and interrupts of the processor."""
        watch.read(lambda: {sending.pid: 7})  # of before
        rows, deadline = [], time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.005)
            rows.append(watch.read(lambda: {sending.pid: 7}))
        found = np.concatenate(rows)
        is_network = (found["kind"] == AbsenceKind.SOFTIRQ) & np.isin(found["code"], (2, 3))
        return int(is_network.sum()), int((found["kind"] == AbsenceKind.VECTOR).sum())

    def look() -> tuple[int, int]:
        watch.end_gone()
        return count(0.3)

    assert wait_until(lambda: look()[0] > 0)
    assert wait_until(lambda: look()[0] == 0)
    assert count(0.5)[1] > 0
    assert wait_until(lambda: look()[0] > 0)  # from time to time it looks whether there are still too many
    assert wait_until(lambda: look()[0] == 0)
    sending.stdin.write("\n")
    sending.stdin.flush()
    assert wait_until(lambda: look()[1] > 0 and not watch._watched[sending.pid].without_network.until)
    watch.close()


NAPPING = """
import sys, threading, time
line = threading.Thread(target=sys.stdin.readline)
line.start()
while line.is_alive():
    for _ in range(2000):
        pass
    time.sleep(1e-4)
while True:
    pass
"""


def test_of_many_sleeps_a_part_has_a_place(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are absences; in which system call the thread slept is asked of one in so many."""
    monkeypatch.setattr(absence_watch, "SLEEPS_MAX", 100)
    napping = spawn(sys.executable, "-c", NAPPING, stdin=subprocess.PIPE)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(napping.pid)
    watch.wait_for_names()

    def look() -> tuple[int, int]:
        """Sleeps, and those of them with a place."""
        watch.read(lambda: {napping.pid: 7})
        rows, deadline = [], time.monotonic() + 0.5
        while time.monotonic() < deadline:
            time.sleep(0.005)
            rows.append(watch.read(lambda: {napping.pid: 7}))
        found = np.concatenate(rows)
        found = found[np.isin(found["kind"], (AbsenceKind.SWITCH, AbsenceKind.CALL))]
        asleep = found[(found["flags"] & AbsenceFlag.PREEMPTED) == 0]
        return len(asleep), int((asleep["kind"] == AbsenceKind.CALL).sum())

    def has_place(least: float, most: float) -> bool:
        """Whether of enough sleeps such a share has a place; a busy machine may lose records of some."""
        sleeps, placed = look()
        return sleeps > 100 and least * sleeps < placed <= most * sleeps

    assert wait_until(lambda: has_place(0.9, 1.0))
    watch.end_gone()
    assert wait_until(lambda: has_place(0.0, 0.5))
    watch.close()


def test_a_thread_that_sleeps_often_is_watched_without_interrupts(
    spawn: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sleep costs it something for each event of its own. They are back when it sleeps no more."""
    monkeypatch.setattr(absence_watch, "CPUS_EACH", 0)
    monkeypatch.setattr(absence_watch, "SLEEPS_INTERRUPTED", 100)  # whatever else runs here
    monkeypatch.setattr(absence_watch, "OFF_S", 0.2)
    napping = spawn(sys.executable, "-c", NAPPING, stdin=subprocess.PIPE)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(napping.pid)

    assert wait_until(lambda: not look_for_interrupts(watch, {napping.pid: 7}))
    notice = "Interrupts of threads that sleep more than 100 times a second are not recorded."
    assert notice in watch.take_notices()  # it looks seldom, so that records may be lost, too
    napping.stdin.write("\n")
    napping.stdin.flush()
    assert wait_until(lambda: look_for_interrupts(watch, {napping.pid: 7}))
    assert notice not in watch.take_notices()
    watch.close()


def test_run_times_of_a_busy_thread_are_those_of_the_kernel(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """An update with each tick, none more than once: together with switches and steal time they fill the time."""
    busy = spawn(sys.executable, "-c", BUSY)
    watch = AbsenceWatch(Clock.start(), lambda tid: True)
    watch.watch(busy.pid)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        time.sleep(0.02)
        watch.read(lambda: {busy.pid: 7})
    updates = watch._reader.with_interrupts + watch._reader.without_interrupts
    ran_s = int(Path(f"/proc/{busy.pid}/schedstat").read_text().split()[0]) / 1e9
    watch.close()
    assert watch.throttled == 0
    # Not all: interrupts between two updates may be too short to tell anything.
    assert updates >= 0.2 * HERTZ_MIN * ran_s


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
