# SPDX-License-Identifier: Apache-2.0
"""Which thread table entries are free to be given away."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe import ended
from otel_nfprobe.columns import RECORD
from otel_nfprobe.ended import EndedThreads
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.replay import read_facts, replay
from otel_nfprobe.sessionfacts import FunctionInfo, ThreadInfo

GONE = 0x3FFFFFFF  # no such thread
EXIT_TAG = 1 << 24  # NFP_EXIT of function 0
HEADER = RecordingHeader("0.1.0", "s1", 42, "/bin/nf", "host", 123, 2.6e9, {}, {})
FUNCTION = FunctionInfo(0, 0, "/bin/nf", 0x1000, 64, "fw_parse", "dynsym", "in-stack call")


class FakeSession:
    """Claims of threads of this very process."""

    def __init__(self, claims: list[tuple[int, int, int, bool]]) -> None:
        self.pid = os.getpid()
        self.claims = claims

    def thread_indexes(self) -> range:
        return range(len(self.claims))

    def thread_claims(self) -> list[tuple[int, int, int, bool]]:
        return self.claims


def find(claims: list[tuple[int, int, int, bool]]) -> list[int]:
    return EndedThreads(FakeSession(claims)).find()  # type: ignore[arg-type]


def test_only_threads_that_are_gone() -> None:
    assert find([(0, threading.get_native_id(), 5, False), (1, GONE, 6, False)]) == [1]


def test_thread_id_used_again() -> None:
    own = threading.get_native_id()
    assert find([(0, own, 9, False), (1, own, 5, False), (2, own, 7, True)]) == [1]


def test_packet_counters_are_kept_while_there_is_room() -> None:
    assert find([(0, GONE, 5, True), (1, GONE + 1, 6, False)]) == [1]
    crowd = [(index, GONE + index, 5, True) for index in range(ended.KEPT_ENTRIES + 1)]
    assert find(crowd) == list(range(len(crowd)))


def test_not_at_every_call() -> None:
    threads = EndedThreads(FakeSession([(0, GONE, 5, False)]))  # type: ignore[arg-type]
    assert (threads.find(), threads.find()) == ([0], [])


def test_target_in_another_pid_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own numbers are the last ones of NSpid."""
    for name, nested in (("500", 1), ("501", 7)):
        (tmp_path / "500" / "task" / name).mkdir(parents=True)
        (tmp_path / "500" / "task" / name / "status").write_text(f"Name:\tx\nNSpid:\t{name}\t{nested}\n")
    (tmp_path / "500" / "status").write_text("NSpid:\t500\t1\n")
    monkeypatch.setattr(ended, "PROC", tmp_path)
    session = FakeSession([(0, 1, 5, False), (1, 7, 5, False), (2, 501, 5, False)])
    session.pid = 500
    assert EndedThreads(session).find() == [2]  # type: ignore[arg-type]


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
