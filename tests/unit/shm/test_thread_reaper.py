# SPDX-License-Identifier: Apache-2.0
"""Which thread table entries are free to be given away."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from otel_nfprobe.base.columns import RECORD, THREAD
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from otel_nfprobe.shm import thread_reaper as ended
from otel_nfprobe.shm import threadids
from otel_nfprobe.shm.session import THREAD_COUNT
from otel_nfprobe.shm.thread_reaper import EndedThreads
from otel_nfprobe.shm.threadids import ThreadIds
from otel_nfprobe.shm.threadtable import ThreadTable

GONE = 0x3FFFFFFF  # no such thread
EXIT_TAG = 1 << 24  # NFP_EXIT of function 0
HEADER = RecordingHeader("0.1.0", "s1", 42, "/bin/nf", "host", 123, 2.6e9, {}, {})
FUNCTION = FunctionInfo(0, 0, "/bin/nf", 0x1000, 64, "fw_parse", "dynsym", "in-stack call")


class FakeSession:
    """A thread table that a target has written, and threads of this very process."""

    def __init__(self, claims: Sequence[tuple[int, int, int, bool]], pid: int = 0) -> None:
        self.rows = np.zeros(THREAD_COUNT, THREAD)
        self.ids = ThreadIds(pid or os.getpid())
        self.threads = ThreadTable(self.rows, self.ids, SimpleNamespace(threads=THREAD_COUNT))
        for claim in claims:
            self.claim(*claim)

    def claim(self, index: int, tid: int, start_ticks: int, has_counters: bool = False) -> None:
        row = self.rows[index : index + 1]
        row["state"], row["tid"], row["start_ticks"], row["batches"] = 1, tid, start_ticks, has_counters

    def used_entries(self) -> int:
        return int((self.rows["state"] != 0).sum())


def look(session: FakeSession) -> EndedThreads:
    return EndedThreads(session)  # type: ignore[arg-type]


def find(claims: Sequence[tuple[int, int, int, bool]]) -> list[int]:
    """What is found and confirmed."""
    threads = look(FakeSession(claims))
    return threads.confirm(threads.find())


@pytest.fixture
def second_thread() -> Iterator[int]:
    """The number of a second thread of this process."""
    end, numbers = threading.Event(), Queue[int]()
    thread = threading.Thread(target=lambda: (numbers.put(threading.get_native_id()), end.wait()))
    thread.start()
    yield numbers.get(timeout=60)
    end.set()
    thread.join()


def test_only_threads_that_are_gone() -> None:
    assert find([(0, threading.get_native_id(), 5, False), (1, GONE, 6, False)]) == [1]


def test_a_listing_that_misses_a_living_thread(second_thread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's listing of threads ends early when the thread under its cursor ends."""
    own, listed = threading.get_native_id(), Path.iterdir

    def miss(folder: Path) -> Iterator[Path]:
        return (path for path in listed(folder) if path.name != str(second_thread))

    def miss_name(folder: str) -> list[str]:
        return [name for name in os_listdir(folder) if name != str(second_thread)]

    os_listdir = os.listdir
    monkeypatch.setattr(Path, "iterdir", miss)
    monkeypatch.setattr(os, "listdir", miss_name)
    assert find([(0, own, 5, False), (1, second_thread, 6, False), (2, GONE, 7, False)]) == [2]


def test_threads_of_another_process_are_none_of_the_target() -> None:
    assert find([(0, 1, 5, False), (1, threading.get_native_id(), 6, False)]) == [0]


def test_numbers_that_no_thread_can_have() -> None:
    assert find([(0, 0xFFFFFFFF, 5, False), (1, 1 << 31, 6, False)]) == [0, 1]


def test_thread_id_used_again() -> None:
    own = threading.get_native_id()
    assert find([(0, own, 9, False), (1, own, 5, False), (2, own, 7, True)]) == [1]


def test_an_entry_that_changed_meanwhile_is_not_confirmed() -> None:
    session = FakeSession([(0, GONE, 5, False), (1, GONE + 1, 6, False), (2, GONE + 2, 6, False)])
    threads = look(session)
    found = threads.find()
    session.claim(0, threading.get_native_id(), 9)
    session.claim(1, GONE + 1, 8)
    assert (found, threads.confirm(found)) == ([0, 1, 2], [2])


def test_an_entry_whose_thread_is_back_is_not_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number has gone to a new thread, which may have the entry's ring by what the table says."""
    session = FakeSession([(0, GONE, 5, False)])
    threads = look(session)
    found = threads.find()
    monkeypatch.setattr(session.ids, "surely_gone", lambda tids: np.zeros(tids.shape, np.bool_))
    assert (found, threads.confirm(found)) == ([0], [])


def test_packet_counters_are_kept_while_there_is_room() -> None:
    assert find([(0, GONE, 5, True), (1, GONE + 1, 6, False)]) == [1]
    crowd = [(index, GONE + index, 5, True) for index in range(ended.KEPT_ENTRIES + 1)]
    assert find(crowd) == list(range(len(crowd)))


def test_not_at_every_call() -> None:
    threads = look(FakeSession([(0, GONE, 5, False)]))
    assert (threads.find(), threads.find()) == ([0], [])


def test_the_fewer_entries_are_free_the_sooner_it_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(ended.time, "monotonic", lambda: now[0])
    for count, pause_s in ((1, 1.0), (ended.CROWDED_ENTRIES, 895 / 10000), (900, 123 / 10000)):
        session = FakeSession([(1000, threading.get_native_id(), 5, False)])
        threads = look(session)
        assert threads.find() == []
        for index in range(count):  # they come and go between two looks
            session.claim(index, GONE + index, 5)
        now[0] += 0.99 * pause_s
        assert threads.find() == []
        now[0] += 0.02 * pause_s
        assert len(threads.find()) == count


@pytest.fixture
def nested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the threads of process 500, which is number 1 in a namespace of its own."""
    tasks = tmp_path / "500" / "task"
    for name, number in (("500", 1), ("501", 7)):
        (tasks / name).mkdir(parents=True)
        (tasks / name / "status").write_text(f"Name:\tx\nNSpid:\t{name}\t{number}\n")
    (tmp_path / "500" / "status").write_text("NSpid:\t500\t1\n")
    monkeypatch.setattr(threadids, "PROC", tmp_path)
    return tasks


def are_gone_but(*living: int) -> Callable[..., NDArray[np.bool_]]:
    return lambda self, tids: ~np.isin(tids, living)


def test_target_in_another_pid_namespace(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own numbers are the last ones of NSpid, where the kernel does not translate."""
    monkeypatch.setattr(ThreadIds, "are_gone", are_gone_but(500, 501))

    def refuse(*unused: object) -> int:
        raise OSError(errno.ENOTTY, "Inappropriate ioctl for device")

    monkeypatch.setattr(ThreadIds, "_ask_kernel", refuse)
    session = FakeSession([(0, 1, 5, False), (1, 7, 5, False), (2, 501, 5, False)], 500)
    assert [claim.tid for claim in session.threads.living()] == [500, 501]  # not 501 for the third
    threads = look(session)
    found = []
    for _ in range(threadids.ABSENCES):  # one listing may have missed it
        threads._looked_at = 0
        found.append(threads.confirm(threads.find()))
    assert found == [[], [], [2]]


def test_numbers_that_the_kernel_translates(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def translate(self: ThreadIds, tid: int) -> int:
        if tid == 501:
            raise OSError(errno.ESRCH, "No such process")
        return {1: 500, 7: 900}[tid]

    monkeypatch.setattr(ThreadIds, "are_gone", are_gone_but(500))
    monkeypatch.setattr(ThreadIds, "_ask_kernel", translate)
    session = FakeSession([(0, 1, 5, False), (1, 7, 5, False), (2, 501, 5, False)], 500)
    assert [claim.tid for claim in session.threads.living()] == [500]
    threads = look(session)
    assert threads.confirm(threads.find()) == [1, 2]


def test_replay_ends_threads_too(tmp_path: Path) -> None:
    """A call that was open when its thread ended is not taken for one of the next thread on that ring."""
    path = tmp_path / "ended.nfprobe"
    writer = RecordingWriter(path, HEADER)
    writer.functions([FUNCTION])
    for tid, low_rsp in ((11, 0x2000), (12, 0x1000)):
        writer.threads([ThreadInfo(0, tid, "worker")])
        entry = np.array([(100 * tid, 0, low_rsp)], RECORD)
        writer.records(0, entry)
        if tid == 11:
            writer.threads([ThreadInfo(0, 0, "")])
        else:
            writer.records(0, np.array([(100 * tid + 50, EXIT_TAG, low_rsp)], RECORD))
    writer.finish({})
    reader = RecordingReader(path)
    facts = read_facts(reader)
    pipeline = Pipeline(facts.roles)
    columns = list(replay(reader, facts, pipeline))
    calls = np.concatenate([part.calls for part in columns])
    assert facts.threads[0].tid == 12
    assert (pipeline.counts().calls, pipeline.counts().open) == (1, 1)
    assert [int(call["depth"]) for call in calls if call["start_ticks"] == 1200] == [0]
