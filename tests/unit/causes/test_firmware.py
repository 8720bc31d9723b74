# SPDX-License-Identifier: Apache-2.0
"""System management interrupts by scripted counts: no machine makes one when it is asked to. The reading itself is
checked with another event of the same source, the time stamp counter."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.causes.firmware import DEVICE, FirmwareTime, FirmwareWatch
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceKind, is_unplaced, name_absence, place_steal_time
from tests.support.absences import make_steal
from tests.unit.causes.test_latency_causes import WORK, Story


def make_rows(*found: tuple[int, int, int], thread: int = 0) -> Rows:
    """Of (start, end, count)."""
    rows = np.zeros(len(found), ABSENCE)
    rows["kind"], rows["thread"] = AbsenceKind.FIRMWARE, thread
    rows["out_ticks"], rows["in_ticks"], rows["code"] = np.array(found).T
    return rows


# ---- counts ---------------------------------------------------------------------------------------------------------


class ScriptedWatch(FirmwareWatch):
    """Counts as a test says, one time later at each reading."""

    def __init__(self, device: Path) -> None:
        super().__init__(str(device))
        self.counts: dict[int, int] = {}
        self.time = 1000

    def _read(self, cpu: int) -> tuple[int, int]:
        self.time += 1
        return self.time, self.counts[cpu]


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedWatch:
    (tmp_path / "events").mkdir()
    (tmp_path / "type").write_text("11\n")
    (tmp_path / "events" / "smi").write_text("event=0x04\n")
    monkeypatch.setattr(
        "otel_nfprobe.causes.firmware.open_event", lambda *_, **__: os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    )
    return ScriptedWatch(tmp_path)


def test_a_row_for_each_thread_on_a_cpu_whose_count_has_risen(watch: ScriptedWatch) -> None:
    watch.counts = {0: 7, 1: 7}
    threads = {4: 0, 5: 1, 6: 0}
    assert len(watch.read(threads)) == 0  # what was before is not ours
    watch.counts[0] = 10
    rows = watch.read(threads)
    assert rows["thread"].tolist() == [4, 6]
    assert set(rows["code"].tolist()) == {3}
    assert (rows["out_ticks"] < rows["in_ticks"]).all()
    assert (rows["to_cpu"] == 0).all()
    assert len(watch.read(threads)) == 0
    watch.close()


def test_a_cpu_that_threads_have_left_is_not_counted(watch: ScriptedWatch) -> None:
    watch.counts = {0: 0, 1: 0}
    watch.read({4: 0, 5: 1})
    assert set(watch.followed) == {0, 1}
    watch.read({5: 1})
    assert set(watch.followed) == {1}
    watch.close()
    assert not watch.followed


def test_a_count_that_goes_back_says_nothing(watch: ScriptedWatch) -> None:
    watch.counts = {0: 9}
    watch.read({4: 0})
    watch.counts[0] = 2
    assert len(watch.read({4: 0})) == 0
    watch.close()


@pytest.mark.parametrize("content", ["", "event=smi", "umask=0x4"])
def test_an_event_that_is_described_in_another_way(tmp_path: Path, content: str) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "type").write_text("11\n")
    (tmp_path / "events" / "smi").write_text(content)
    watch = FirmwareWatch(str(tmp_path))
    assert watch.refusal == "the kernel describes msr/smi/ in another way"
    assert len(watch.read({4: 0})) == 0


def test_a_machine_without_it(tmp_path: Path) -> None:
    watch = FirmwareWatch(str(tmp_path))
    assert watch.refusal == "this machine has no event msr/smi/"
    assert len(watch.read({4: 0})) == 0


def test_a_real_event_of_the_same_source() -> None:
    if not Path(DEVICE, "events", "tsc").exists():
        pytest.skip("this processor has no event msr/tsc/")
    watch, cpu = FirmwareWatch(event="tsc"), min(os.sched_getaffinity(0))
    assert len(watch.read({4: cpu})) == 0
    rows = watch.read({4: cpu})
    assert not watch.refusal
    assert len(rows) == 1
    assert rows["code"][0] > 1000
    assert rows["out_ticks"][0] < rows["in_ticks"][0]
    watch.close()


# ---- causes ---------------------------------------------------------------------------------------------------------


def waiting() -> Story:
    """The last packet waits for 2700 ticks, in which its thread polls."""
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=6300)
    return story


def test_what_nothing_explains_is_the_firmwares() -> None:
    story = waiting()
    story.rows.append(make_rows((6500, 8500, 2)))
    cause = story.cause(2)
    assert (cause["kind"], cause["function"], cause["batch_id"]) == (CauseKind.FIRMWARE, NONE, 102)
    assert cause["by"] == b"2 system management interrupts"
    assert cause["parts"]["ticks"].sum() + cause["rest_ticks"] == cause["late_ticks"]


@pytest.mark.parametrize("rows", [make_rows((1000, 2000, 2)), make_rows((6500, 8500, 2), thread=1)])
def test_those_of_other_times_and_cpus_explain_nothing(rows: Rows) -> None:
    story = waiting()
    story.rows.append(rows)
    assert story.cause(2)["kind"] == CauseKind.UNKNOWN


def test_a_slow_function_stays_the_cause() -> None:
    story = Story()
    story.batch(1000, (100, 900, 100))
    story.rows.append(make_rows((0, 3000, 1)))
    cause = story.cause(0)
    assert (cause["kind"], cause["function"]) == (CauseKind.OWN, WORK)


def test_time_outside_of_probed_functions_is_the_firmwares() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    start, _, size, thread, flags = story.batches[0]
    story.batches[0], story.packets[0] = (start, 2300, size, thread, flags), (0, 2300, 0)
    assert story.cause(0)["kind"] == CauseKind.OWN
    story.rows.append(make_rows((0, 3000, 1)))
    cause = story.cause(0)
    assert (cause["kind"], cause["by"]) == (CauseKind.FIRMWARE, b"a system management interrupt")


def test_such_rows_are_no_steal_time() -> None:
    rows = make_rows((6500, 8500, 2))
    assert is_unplaced(rows).all()
    assert name_absence(rows[0]) == "2 system management interrupts"
    both = np.concatenate((rows, make_steal(0, 3000, 500)))
    assert sorted(place_steal_time(both)["kind"].tolist()) == sorted(both["kind"].tolist())
    assert FirmwareTime(both).count(0, 8000, 9000) == 2
    assert not FirmwareTime(make_steal(0, 3000, 500))
