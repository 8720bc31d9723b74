# SPDX-License-Identifier: Apache-2.0
"""Sessions that keep every call with its counters, and what tests/targets/counted.c says that is true of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Columns, CountersFlag
from otel_nfprobe.recording.recording import RecordingWriter
from tests.support.probed import KeepAll, Probed, Talker, counters_by_call, find_calls

TRUTH = np.dtype([("amount", "<u4"), ("switched", "<u4")])
GLOBS = ("counted*:work", "counted*:inner")
RING_BYTES = 64 << 20


def read_truth(truth: Path) -> np.ndarray:
    """Of each call of the last command: what it counted but for 7 in its inner call, and whether it was disturbed."""
    return np.fromfile(truth, TRUTH)


class KeptCalls(Probed):
    """As Probed, and keeps every call; subclasses say what is done before and while records are drained.

    Attributes:
        columns: what was kept, after the session.
    """

    def __init__(
        self,
        talker: Talker,
        recording: RecordingWriter | None = None,
        globs: Sequence[str] = GLOBS,
        adapter: Path | None = None,
        strategy: str | None = None,
    ) -> None:
        super().__init__(talker.pid, globs, adapter, strategy, RING_BYTES)
        self.talker, self.recording = talker, recording

    def __enter__(self) -> KeptCalls:
        self.monitor.attachment.attach()
        self.monitor.start(Clock.start(), self.recording, None)
        self.keep = self.monitor.drain.statistics = KeepAll()
        self.prepare()
        self._thread = threading.Thread(target=self.monitor.run, args=(None, self.step))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.columns: Columns = self.keep.columns()

    def find_calls(self, name: str) -> np.ndarray:
        """Rows of a function's calls in `columns`, in the order of their starts."""
        return find_calls(self.columns, self.monitor.attachment.names_by_id().index(name))

    def prepare(self) -> None:
        """Called before anything is drained."""

    def step(self) -> None:
        """Called again and again by the thread that drains."""


class Counted(KeptCalls):
    """A session with the target's own pages as counters of its main thread.

    Attributes:
        before: calls before there are counters, by function.
    """

    before: Mapping[str, int] = {"work": 1, "inner": 1}

    def __init__(
        self,
        talker: Talker,
        count: int,
        strategy: str | None = None,
        adapter: Path | None = None,
        recording: RecordingWriter | None = None,
    ) -> None:
        super().__init__(talker, recording, adapter=adapter, strategy=strategy)
        self.count = count

    def __enter__(self) -> Counted:
        super().__enter__()
        self.talker.ask("work 1")  # a thread has an entry in the table once it has written a record
        if self.count:
            self.set(self.count)
        return self

    def set(self, count: int) -> None:
        pages = int(self.talker.ask("where 0"), 16)
        index = next(c.index for c in self.monitor.attachment.session.threads.counts() if c.tid == self.talker.pid)
        assert self.monitor.attachment.session.ask(lib.NFP_COMMAND_COUNT, index, count, pages) == 0

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each call of a function but those `before`, in order: flags, row of its counters, whether it was long.

        A call that may have lasted for more than 32 bits can count is marked, too: here, one that was preempted.
        """
        calls = self.columns.calls
        chosen = self.find_calls(name)[self.before.get(name, 0) :]
        rows = counters_by_call(self.columns)[chosen]
        ticks = calls["end_ticks"][chosen] - calls["start_ticks"][chosen]
        return rows["flags"], rows, ticks > 2**32 // lib.NFP_COUNTS_PER_TICK - 1


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
