# SPDX-License-Identifier: Apache-2.0
"""Counters through the real templates, on a processor made of a signal handler: right, or marked, never wrong."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
from otel_nfprobe._core import lib
from probed import KeepAll, Probed, Talker, wait_until

from otel_nfprobe.clock import Clock
from otel_nfprobe.columns import CountersFlag, concatenate
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.report import build_report

pytestmark = pytest.mark.integration

TRUTH = np.dtype([("amount", "<u4"), ("switched", "<u4")])
RING_BYTES = 64 << 20


class Counted(Probed):
    """As Probed, with the target's own pages as counters of its main thread.

    Attributes:
        before: calls before there are counters, by function.
    """

    before: Mapping[str, int] = {"work": 1, "inner": 1}

    def __init__(self, talker: Talker, count: int, strategy: str | None = None) -> None:
        super().__init__(talker.pid, ["counted*:work", "counted*:inner"], strategy=strategy, ring_bytes=RING_BYTES)
        self.talker, self.count = talker, count
        self.recording: RecordingWriter | None = None

    def __enter__(self) -> Counted:
        self.monitor.attach()
        self.monitor.start(Clock.start(), self.recording, None)
        self.keep = self.monitor.drain.statistics = KeepAll()
        self._thread = threading.Thread(target=self.monitor.run, args=(None, lambda: None))
        self._thread.start()
        self.talker.ask("work 1")  # a thread has an entry in the table once it has written a record
        if self.count:
            self.set(self.count)
        return self

    def set(self, count: int) -> None:
        pages = int(self.talker.ask("where 0"), 16)
        index = next(c.index for c in self.monitor.session.thread_counts() if c.tid == self.talker.pid)
        assert self.monitor.session.ask(lib.NFP_COMMAND_COUNT, index, count, pages) == 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.columns = concatenate(self.keep.kept)

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each call of a function but those `before`, in order: flags, row of its counters, whether it was long.

        A call that may have lasted for more than 32 bits can count is marked, too: here, one that was preempted.
        """
        names = self.monitor.names_by_id()
        calls = self.columns.calls
        chosen = np.flatnonzero(calls["function"] == names.index(name))
        chosen = chosen[np.argsort(calls["start_ticks"][chosen], kind="stable")][self.before.get(name, 0) :]
        rows = np.zeros(len(calls), self.columns.counters.dtype)
        rows[self.columns.counters["call"]] = self.columns.counters
        ticks = calls["end_ticks"][chosen] - calls["start_ticks"][chosen]
        return rows["flags"][chosen], rows[chosen], ticks > 2**32 // lib.NFP_COUNTS_PER_TICK - 1


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    return tmp_path / "truth"


@pytest.fixture
def talker(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    truth: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Talker:
    monkeypatch.setenv("TRUTH", str(truth))
    return Talker(spawn(compile_target("counted"), stdin=subprocess.PIPE))


def read_truth(truth: Path) -> np.ndarray:
    return np.fromfile(truth, TRUTH)


def assert_never_wrong(counted: Counted, true: np.ndarray, count: int, name: str = "work") -> int:
    """Returns how many calls were counted."""
    scale = np.arange(1, 7, dtype=np.uint64) * (np.arange(6) < count)
    flags, rows, is_long = counted.rows(name)
    assert len(rows) == len(true)
    valid = (flags & CountersFlag.VALID) != 0
    undisturbed = (true["switched"] == 0) & ~is_long
    assert valid[undisturbed].all()
    whole = (true["amount"].astype(np.uint64) + 7)[:, None] * scale
    assert np.array_equal(rows["inclusive"][valid], whole[valid])
    own = (flags & CountersFlag.SELF_VALID) != 0
    assert (undisturbed & ~own).sum() <= counted.rows("inner")[2].sum()
    assert np.array_equal(rows["self"][own], (whole - 7 * scale)[own])
    assert set(rows["inside"].tolist()) <= {0, 1}
    return int(valid.sum())


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
                file.seek(counted.monitor.probes[0].trampoline)
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
    files = Path(f"/proc/{talker.pid}/fd")
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
            "What the probes themselves count is not taken off"
        ]
        flags = counted.rows("work")[0]
        assert len(flags) == 100
        assert not flags.any()
        assert maps.read_text().count("[perf_event]") == 1  # so that rdpmc stays allowed
        left_open.append(len(list(files.iterdir())))
    assert left_open[0] == left_open[1]


def test_recording_and_report(talker: Talker, truth: Path, tmp_path: Path) -> None:
    """What the target counted itself is what the report says, after a way through rings and a file."""
    header = RecordingHeader(session="1", pid=talker.pid, settings={"counter_choice": "cycles*1,instructions*1"})
    for _ in range(10):
        counted = Counted(talker, 2)
        counted.recording = RecordingWriter(tmp_path / "x.nfprobe", header)
        with counted:
            assert talker.ask("work 100").isdigit()
        counted.recording.finish({})
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
