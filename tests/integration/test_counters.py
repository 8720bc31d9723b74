# SPDX-License-Identifier: Apache-2.0
"""Counters through the real templates, on a processor made of a signal handler: right, or marked, never wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import CountersFlag
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.report.report import build_report
from tests.support.counted import Counted, assert_never_wrong, read_truth
from tests.support.probed import Talker, wait_until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_exact_values(talker: Talker, truth: Path, count: int) -> None:
    with Counted(talker, count, "relocated" if count % 2 else "in-stack") as counted:
        for width in (40, 48, 64):
            talker.ask(f"width {width}")
            assert talker.ask("work 200").isdigit()
            if width == 40:
                first = read_truth(truth)
            elif width == 48:
                second = read_truth(truth)
    counted.assert_exact()
    true = np.concatenate((first, second, read_truth(truth)))
    # Each command wraps at the hardware's width.
    assert assert_never_wrong(counted, true, count) >= 600 - counted.rows("work")[2].sum()


def test_a_switch_at_every_point(talker: Talker, truth: Path) -> None:
    """One call for each place where the kernel may change the pages, all at once or while a probe looks at them."""
    true, count = [], 3
    with Counted(talker, count) as counted:
        talker.ask("point -1")
        talker.ask("work 1")
        true.append(read_truth(truth))
        points = int(talker.ask("occasions 0"))
        assert points == 8 * count + 1  # before and after each reading of two calls, and amid the outer one
        for kind in ("point", "torn"):
            for number in range(points):
                talker.ask(f"{kind} {number}")
                talker.ask("work 1")
                true.append(read_truth(truth))
    counted.assert_exact()
    found = np.concatenate(true)
    assert_never_wrong(counted, found, count)
    assert found["switched"][1:].all()
    flags, _, is_long = counted.rows("work")
    inner = counted.rows("inner")[0]
    valid = (flags & CountersFlag.VALID) != 0
    # A probe has looked at the lock before the first point, and looks again behind the last one: nothing is harmless.
    assert not valid[1:].any()
    assert valid[0] or is_long[0]
    assert ((inner & CountersFlag.VALID) != 0).sum() > points // 2


def test_random_switches(talker: Talker, truth: Path) -> None:
    """Before, between and after readings, and inside calls."""
    with Counted(talker, 5) as counted:
        talker.ask("chance 10")
        assert talker.ask("work 10000").isdigit()
    counted.assert_exact()
    true = read_truth(truth)
    valid = assert_never_wrong(counted, true, 5)
    assert 500 < valid < 9_500
    assert 500 < true["switched"].sum() < 9_500


def test_a_counter_that_does_not_count(talker: Talker) -> None:
    """In its error state, or of another kind of core: nobody reads it, and nothing is made up."""
    with Counted(talker, 2) as counted:
        before = int(talker.ask("where 1"), 16)
        talker.ask("off 0")
        talker.ask("off 1")
        talker.ask("work 50")
        assert int(talker.ask("where 1"), 16) == before
    flags = counted.rows("work")[0]
    assert len(flags) == 50
    assert not flags.any()


def test_counters_come_and_go_while_threads_run(talker: Talker) -> None:
    """No code changes: what is patched stays the same bytes."""
    with Counted(talker, 1) as counted:
        memory = Path(f"/proc/{talker.pid}/mem")
        codes = []
        for number in (3, 0, 6, 0, 2):
            counted.set(number)
            talker.ask("work 100")
            with memory.open("rb") as file:
                file.seek(counted.monitor.attachment.probes[0].trampoline)
                codes.append(file.read(64))
    counted.assert_exact()
    assert len(set(codes)) == 1
    _, rows, is_long = counted.rows("work")
    used = (rows["inclusive"] > 0).sum(axis=1)
    expected = np.repeat((3, 0, 6, 0, 2), 100)
    assert ((used == expected) | is_long).all()
    assert not is_long.all()


def test_pages_of_the_real_kernel(talker: Talker) -> None:
    """The whole way of the descriptors, with events of the kernel that no processor counts: nothing is made up."""
    counters = choose_counters("task-clock,page-faults").counters
    maps = Path(f"/proc/{talker.pid}/maps")
    files, tasks = Path(f"/proc/{talker.pid}/fd"), Path(f"/proc/{talker.pid}/task")
    left_open: list[int] = []
    for _ in range(2):
        counted = Counted(talker, 0)
        counted.monitor.counters = counters
        with counted:
            assert wait_until(lambda: maps.read_text().count("[perf_event]") >= 2)
            readings = talker.ask("where 1")
            talker.ask("work 100")
            assert talker.ask("where 1") == readings  # a page without an index is not read
        counted.assert_exact()
        assert [said.partition(":")[0] for said in counted.said] == [
            "The counts of the probes themselves are not subtracted"
        ]
        flags = counted.rows("work")[0]
        assert len(flags) == 100
        assert not flags.any()
        assert wait_until(lambda: len(list(tasks.iterdir())) == 1)  # the helper thread closes its own until it ends
        assert maps.read_text().count("[perf_event]") == 1  # so that rdpmc stays allowed
        left_open.append(len(list(files.iterdir())))
    assert left_open[0] == left_open[1]


def test_recording_and_report(talker: Talker, truth: Path, tmp_path: Path) -> None:
    """What the target counted itself is what the report says, after a way through rings and a file."""
    header = RecordingHeader(session="1", pid=talker.pid, settings={"counter_choice": "cycles*1,instructions*1"})
    for _ in range(10):
        recording = RecordingWriter(tmp_path / "x.nfprobe", header)
        with Counted(talker, 2, recording=recording) as counted:
            assert talker.ask("work 100").isdigit()
        recording.finish({})
        if not counted.rows("work")[2].any() and not counted.rows("inner")[2].any():
            break  # nobody was preempted for long
    document = build_report(RecordingReader(tmp_path / "x.nfprobe")).document
    found = {function["name"]: function["counters"] for function in document["functions"]}
    total = int(read_truth(truth)["amount"].sum()) + 7 * 100
    assert (found["work"]["cycles"]["total"], found["work"]["instructions"]["total"]) == (total, 2 * total)
    assert found["work"]["cycles"]["self"] == total - 7 * 100
    assert found["inner"]["cycles"]["mean"] == 7
    assert found["work"]["ipc"] == 2
    assert found["work"]["cycles"]["calls"] == 100
