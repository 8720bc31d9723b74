# SPDX-License-Identifier: Apache-2.0
"""Sessions in this process on tests/targets/forks.c and what it forks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.forks import ChildMonitor, Forks
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, Talker, wait_until

PATIENCE_S = 90.0
OWN = ["forks-*:step", "forks-*:mixed"]


class Counted:
    """A session on a child whose calls are counted by function name."""

    def __init__(self, monitor: ChildMonitor) -> None:
        self.monitor = monitor

    def start(self) -> None:
        self.monitor.attachment.attach()
        self.monitor.start(Clock.start(), None, None)

    def run(self, progress: Callable[[], None]) -> None:
        self.monitor.run(None, progress)
        self.monitor.detach()

    def finish(self) -> dict[str, Any]:
        monitor = self.monitor
        names, counts = monitor.attachment.names_by_id(), monitor.drain.pipeline.counts()
        lost = [thread.lost for thread in monitor.attachment.session.threads.counts()]
        summary = {
            "pid": monitor.attachment.target.pid,
            "calls": {names[row["function"]]: int(row["count"]) for row in monitor.drain.statistics.functions()},
            "exact": (counts.unpaired_entries, counts.unpaired_exits, counts.invalid, sum(map(sum, lost))),
            "target_ended": monitor.attachment.has_gone,
            "not_restored": monitor.attachment.not_restored,
        }
        monitor.attachment.close()
        return summary


class Following(Probed):
    """As Probed; what the target forks is followed. `children` has their summaries by pid after the end."""

    def __enter__(self) -> Following:
        super().__enter__()
        self.forks = Forks(self.monitor, Counted, self.said.append)
        self.forks.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.forks.stop()
        super().__exit__(kind, error, trace)
        self.forks.end()
        self.children = {summary["pid"]: summary for summary in self.forks.summaries}

    def wait_for(self, pids: Sequence[int]) -> None:
        """Waits until these children, and no others, are measured."""
        assert wait_until(lambda: self.forks.measured == sorted(pids), PATIENCE_S), (self.forks.measured, self.said)


def fork(talker: Talker, command: str) -> list[int]:
    """Process ids of the children that the command makes, in the order of their numbers."""
    return [int(word) for word in talker.ask(command).split()]


def code_of(pid: int) -> dict[str, bytes]:
    """The executable bytes of each module of a process."""
    target = Target(pid)
    return {
        f"{module.path}@{start:#x}": target.read(start, end - start)
        for module in target.modules()
        if not module.is_probe_library
        for start, end in module.executable_ranges
    }


def is_as_before(pid: int, before: dict[str, bytes]) -> bool:
    """Whether the code of a child is what its parent's was before the session."""
    after = code_of(pid)
    return all(after.get(place) == content for place, content in before.items())
