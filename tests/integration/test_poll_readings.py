# SPDX-License-Identifier: Apache-2.0
"""Readings of receive calls on a processor made of a signal handler: right, or marked, never wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import CountersFlag
from otel_nfprobe.counters.choice import CounterChoice
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.report.report import build_report
from tests.support.changing import Changing, Worker, assert_counted_as_changed, own
from tests.support.counted import Counted, assert_never_wrong, read_truth
from tests.support.probed import Talker

pytestmark = pytest.mark.integration

ADAPTER = Path(__file__).resolve().parent.parent / "targets" / "counted.yaml"


class CountedPolls(Counted):
    """As Counted, with a receive function."""

    def __init__(self, talker: Talker, count: int) -> None:
        super().__init__(talker, count, adapter=ADAPTER)


def read_polls(truth: Path) -> np.ndarray:
    """Of the polls that returned something."""
    calls = read_truth(truth)
    return calls[calls["amount"] % 2 == 1]


def test_a_switch_at_every_point(talker: Talker, truth: Path) -> None:
    true, count = [], 3
    with CountedPolls(talker, count) as counted:

        def poll(command: str) -> None:
            while True:
                talker.ask(command)
                talker.ask("poll 1")
                if len(found := read_polls(truth)):
                    true.append(found)
                    return

        poll("point -1")
        points = int(talker.ask("occasions 0"))
        assert points == 8 * count + 1  # as of any call
        for number in range(points):
            poll(f"point {number}")
            poll(f"torn {number}")
    counted.assert_exact()
    found = np.concatenate(true)
    assert_never_wrong(counted, found, count, "take")
    valid = (counted.rows("take")[0] & CountersFlag.VALID) != 0
    assert found["switched"][1:].all()
    assert not valid[1:].any()
    assert valid[0] or counted.rows("take")[2][0]


def test_random_absences(talker: Talker, truth: Path) -> None:
    with CountedPolls(talker, 5) as counted:
        talker.ask("chance 10")
        talker.ask("poll 8000")
    counted.assert_exact()
    true = read_polls(truth)
    assert 200 < assert_never_wrong(counted, true, 5, "take") < len(true) - 200
    assert 200 < true["switched"].sum() < len(true) - 200


class PollingWorker(Worker):
    """Has the target poll."""

    def work(self, calls: int) -> None:
        """See Worker."""
        self.talker.ask(f"poll {calls}")
        self.true.append(read_polls(self.path))


def test_changed_while_polls_run(talker: Talker, truth: Path, tmp_path: Path) -> None:
    """Counters come, change and go: no byte of code changes, no count is wrong, and a recording says the same."""
    recording = RecordingWriter(tmp_path / "x.nfp", RecordingHeader(session="1", pid=talker.pid))
    changes = [own(0, 1), own(3, 4, 5), CounterChoice(), own(1, 2, 3, 4)]
    with Changing(talker, recording, adapter=ADAPTER) as session:
        worker = PollingWorker(talker, truth)
        worker.work_through(session, changes)
    recording.finish({})
    session.assert_exact()
    amounts = np.concatenate(worker.true)["amount"].astype(np.uint64) + 7
    assert_counted_as_changed(session.rows("take"), amounts, changes, 100)
    sums = session.monitor.drain.counter_sums
    assert sums is not None
    document = build_report(RecordingReader(tmp_path / "x.nfp")).document
    found = {entry["name"]: entry["counters"] for entry in document["functions"]}
    assert found["take"] == sums.of_function(session.monitor.attachment.names_by_id().index("take"))
    assert document["batches"]["counters"] == sums.of_batches()
