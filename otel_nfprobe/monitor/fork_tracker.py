# SPDX-License-Identifier: Apache-2.0
"""Fork tracker: finds processes that were forked from a measured one and still run its program. Reads only.

The session's memory file stays mapped in a forked child and its descendants, even when a process between them has
ended, and is unmapped by an exec. New processes are found in /proc.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.leftover import mapped_sessions
from otel_nfprobe.target.target import has_ended, read_text

if TYPE_CHECKING:
    from otel_nfprobe.monitor.monitor import Monitor

FINISHED_KEPT = 16  # finished sessions on children: their own children may still be found
ENDED, REPLACED, SHARED, COPY = "ended", "replaced", "on its parent's memory", "copy"


@dataclass
class Family:
    """The target of a session and its followed children.

    Attributes:
        target: the session that the others descend from.
        members: sessions on children, in order of their start, by the inode of their memory file.
    """

    target: Monitor
    members: dict[int, Monitor] = field(default_factory=dict)
    _finished: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = {self.target.attachment.session.inode: self.target}
        self._before = mapped_sessions(self.target.attachment.target.pid)

    def add(self, monitor: Monitor) -> None:
        """Adds a child that is measured from now on."""
        self.members[monitor.attachment.session.inode] = monitor

    def finish(self, monitor: Monitor) -> None:
        """Marks a child's session as finished; the oldest finished ones are forgotten."""
        self._finished.append(monitor.attachment.session.inode)
        while len(self._finished) > FINISHED_KEPT:
            self.members.pop(self._finished.pop(0), None)

    def source_of(self, pid: int) -> Monitor | None:
        """Returns the session whose probes a copy has: that of the process which forked it. None: unknown."""
        mapped = mapped_sessions(pid)
        if not mapped <= self._before | self.members.keys():
            return None
        return next((monitor for inode, monitor in reversed(list(self.members.items())) if inode in mapped), None)

    def has(self, pid: int) -> bool:
        """Returns whether a process maps the session's memory: it, or an ancestor, was forked from a member."""
        return not self.members.keys().isdisjoint(mapped_sessions(pid))

    def judge(self, pid: int) -> str:
        """Classifies a found process: ENDED, REPLACED, SHARED or COPY."""
        if has_ended(pid):
            return ENDED
        if not self.has(pid):
            return REPLACED if os.path.exists(f"/proc/{pid}") else ENDED
        source = self.source_of(pid)
        return SHARED if source is not None and _runs_on_memory_of(source, pid) else COPY


class Search:
    """Finds new copies of one family's program."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._pid = pid = family.target.attachment.target.pid
        self._program = _program_of(pid)
        self._known: set[int] = {pid}
        self._newest = ""

    def look(self) -> list[int]:
        """Returns copies that appeared since the last call; on the first call, all of them."""
        newest = read_text("/proc/loadavg").split()[-1:]  # the last process or thread ID that was assigned
        if newest and newest[0] == self._newest:
            return []
        pids = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}
        fresh, self._known = pids - self._known, pids | {self._pid}
        self._newest = newest[0] if newest else ""
        return [pid for pid in sorted(fresh) if _program_of(pid) == self._program and self._family.has(pid)]


def _program_of(pid: int) -> tuple[int, int] | None:
    try:
        status = os.stat(f"/proc/{pid}/exe")
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _runs_on_memory_of(source: Monitor, pid: int) -> bool:
    """Returns whether a process shares the source's memory (vfork or the like): nothing may be changed through it."""
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            return any(os.pread(memory.fileno(), 8, source.attachment.session.kept_address))
    except (OSError, OverflowError, NfprobeError):
        return True
