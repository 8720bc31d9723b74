# SPDX-License-Identifier: Apache-2.0
"""Thread numbers of a target in a pid namespace of its own, and what the monitor calls the same threads."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
KINDS = ("pid", "mnt", "user", "net")


def namespace_ids(folder: Path) -> list[int]:
    """A task's numbers, from the reader's pid namespace to the task's own, the last.

    Args:
        folder: of the process or thread in /proc.

    Raises:
        OSError: it has ended.
    """
    for line in (folder / "status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [int(folder.name)]


def foreign_namespaces(pid: int) -> list[str]:
    """Kinds of namespaces that a process does not share with this one; those that cannot be read left out."""
    found = []
    for kind in KINDS:
        try:
            own, its = os.readlink(f"/proc/self/ns/{kind}"), os.readlink(f"/proc/{pid}/ns/{kind}")
        except OSError:
            continue
        if own != its:
            found.append(kind)
    return found


def root_directory(pid: int) -> str:
    """The process's root directory as this process sees it: "/" without chroot; "" when it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return ""


class OuterThreads:
    """From the thread numbers that a target sees to those that the monitor sees.

    Args:
        pid: the target, as the monitor sees it.
    """

    def __init__(self, pid: int) -> None:
        self._tasks = PROC / str(pid) / "task"
        self._outer: dict[int, int] = {}
        try:
            self._is_nested = len(namespace_ids(PROC / str(pid))) > 1
        except OSError:
            self._is_nested = False

    def outer(self, tid: int) -> int:
        """The monitor's number of a thread; the target's own when the thread ended before it was looked at."""
        if not self._is_nested:
            return tid
        known = self._outer.get(tid)
        if known is None or not (self._tasks / str(known)).exists():  # a new thread may have an old one's number
            self._look()
        return self._outer.setdefault(tid, tid)

    def _look(self) -> None:
        try:
            tasks = list(self._tasks.iterdir())
        except OSError:
            return
        for task in tasks:
            try:
                self._outer[namespace_ids(task)[-1]] = int(task.name)
            except OSError:
                continue  # ended meanwhile
