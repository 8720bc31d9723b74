# SPDX-License-Identifier: Apache-2.0
"""Test targets that take commands on standard input, and a monitor in this process that counts their calls."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Columns, concatenate
from otel_nfprobe.linux import closing
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.pipeline.pipeline import PipelineCounts
from otel_nfprobe.pipeline.statistics import Statistics
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target

ANSWER_S = 120.0


class Talker:
    """A target that answers each line on its standard input with one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.pid = process.pid
        self._heard = b""
        assert self.hear() == "ready"
        assert wait_until(self.is_listening), self.where()

    def is_listening(self) -> bool:
        """Whether it waits for the next command: blocked in read, which is system call 0."""
        return Path(f"/proc/{self.pid}/syscall").read_text().startswith("0 ")

    def say(self, line: str) -> None:
        """Sends a command and does not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """The next line; "" when the target has ended."""
        assert self.process.stdout is not None
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
            assert readable, f"the target has hung: {self.where()}"
            more = os.read(self.process.stdout.fileno(), 4096)
            if not more:
                break
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def ask(self, line: str) -> str:
        """Sends a command and returns the answer."""
        self.say(line)
        return self.hear()

    def where(self) -> str:
        """What each thread of the target is doing, for a message."""
        found = []
        with suppress(OSError):  # the process, or one of its threads, may just have ended
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                found.append(f"{task.name}: {(task / 'syscall').read_text().strip()}")
        return ", ".join(found)


def keep_calls(monitor: Monitor) -> list[Columns]:
    """Every call that the monitor drains from now on, take by take, in a list that grows."""
    kept: list[Columns] = []
    statistics = monitor.drain.statistics
    add = statistics.add

    def keep(columns: Columns) -> None:
        kept.append(Columns(columns.calls.copy()))
        add(columns)

    statistics.add = keep  # type: ignore[method-assign]
    return kept


class KeepAll(Statistics):
    """Keeps every call."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Columns] = []

    def add(self, columns: Columns) -> None:
        super().add(columns)
        self.kept.append(columns)

    def columns(self) -> Columns:
        """All that was kept."""
        return concatenate(self.kept)


def find_calls(columns: Columns, function: int) -> np.ndarray:
    """Rows of a function's calls, in the order of their starts."""
    found = np.flatnonzero(columns.calls["function"] == function)
    return found[np.argsort(columns.calls["start_ticks"][found], kind="stable")]


def counters_by_call(columns: Columns) -> np.ndarray:
    """The counters of each call, zeros where it was not counted."""
    rows = np.zeros(len(columns.calls), columns.counters.dtype)
    rows[columns.counters["call"]] = columns.counters
    return rows


class Probed:
    """A session on a target: the probes are on inside the `with`, and everything is counted after it.

    Attributes:
        calls: whole calls by function name.
        counts: what became of the records.
        lost: lost records by class, in threads with a ring.
        unregistered: the same, in threads without one.
    """

    def __init__(
        self,
        pid: int,
        globs: Sequence[str],
        adapter: Path | None = None,
        strategy: str | None = None,
        ring_bytes: int = 8 << 20,
        drained: bool = True,
    ) -> None:
        self.target = Target(pid)
        check_target(self.target)
        chosen = choose_adapter(str(adapter), self.target) if adapter else None
        self.choice = choose(self.target, chosen, globs, [], strategy)
        self.said: list[str] = []
        self.monitor = Monitor(Attachment(self.target, self.choice, ring_bytes, self.said.append), "all")
        self.drained = drained

    def __enter__(self) -> Probed:
        self.monitor.attachment.attach()
        try:
            self.monitor.start(Clock.start(), None, None)
        except BaseException:
            self.monitor.attachment.abandon()
            raise
        self._thread = threading.Thread(target=self.monitor.run, args=(None, lambda: None))
        if self.drained:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.monitor.attachment.stopping.set()
        if self.drained:
            self._thread.join()
        self.monitor.detach()
        session, drain = self.monitor.attachment.session, self.monitor.drain
        self.threads = session.threads.counts()
        lost = [thread.lost for thread in self.threads]
        self.lost = tuple(sum(column) for column in zip(*lost, strict=True)) if lost else (0, 0, 0)
        self.unregistered = session.unregistered()
        self.torn = session.torn
        self.counts: PipelineCounts = drain.pipeline.counts()
        names = self.monitor.attachment.names_by_id()
        self.calls: dict[str, int] = {}
        for row in drain.statistics.functions():
            name = names[row["function"]]
            self.calls[name] = self.calls.get(name, 0) + int(row["count"])
        self.not_restored = self.monitor.attachment.not_restored
        self.monitor.attachment.close()

    def assert_exact(self) -> None:
        """Nothing was lost, every entry has its exit, the target is as it was."""
        assert self.not_restored == []
        assert (self.lost, self.unregistered) == ((0, 0, 0), (0, 0, 0))
        assert self.torn == 0
        assert (self.counts.unpaired_entries, self.counts.unpaired_exits) == (0, 0)
        assert (self.counts.open, self.counts.invalid) == (0, 0)


def cpu_ticks(pid: int) -> int:
    """Processor time that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wait_until(condition: object, patience_s: float = 60.0) -> bool:
    """Calls `condition` until it is true; False when it never is."""
    assert callable(condition)
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:  # asked before the last call: who had no processor meanwhile has another try
            return False
        time.sleep(0.01)
    return True


def events_are_closed() -> bool:
    """Whether no perf event of an earlier session is left to the thread that closes them (linux/closing.py)."""
    return not closing._is_closing


def has_started(pid: int) -> bool:
    """Whether a program that does nothing but sleep is there: its libraries are loaded, it is in clock_nanosleep."""
    return Path(f"/proc/{pid}/syscall").read_text().startswith("230 ")
