# SPDX-License-Identifier: Apache-2.0
"""What a session does when `nfprobe counters` asks it: says its counters, or reads other ones from now on."""

from __future__ import annotations

import os
from dataclasses import dataclass

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.session_options import check_counting, decide
from otel_nfprobe.counters.choice import CounterChoice
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.shm.control import Answer, Control, Request


@dataclass
class _CounterChange:
    choice: CounterChoice
    sentences: list[str]


class SessionControl:
    """Answers for one session, until it is closed."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        inode = os.fstat(monitor.attachment.session.descriptor).st_ino
        self._control = Control(inode, self._prepare, self._act)
        self.step, self.close = self._control.step, self._control.close

    def _prepare(self, request: Request) -> _CounterChange | None:
        names = request.get("counters")
        if names is None:
            return None
        if not isinstance(names, str):
            raise UsageError("Counters are asked for by names.", "nfprobe counters --help")
        choice, sentences = decide(names)
        check_counting(self._monitor.attachment.target, choice)
        return _CounterChange(choice, sentences)

    def _act(self, change: _CounterChange | None) -> Answer:
        said = [] if change is None else [*change.sentences, *self._monitor.change_counters(change.choice)]
        monitor = self._monitor
        return {
            "pid": monitor.attachment.target.pid,
            "counters": [counter.name for counter in monitor.counters],
            "software": [counter.name for counter in monitor.software_counters],
            "changes": monitor.counting.change,
            "said": said,
        }
