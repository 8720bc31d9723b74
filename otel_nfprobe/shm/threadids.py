# SPDX-License-Identifier: Apache-2.0
"""Thread IDs: maps a target's thread IDs to the monitor's, and checks which of them exist.

The IDs in a session's thread table are written by the target, which may write anything. Before the monitor opens
anything for a thread ID, and before it takes a thread for ended, it asks the kernel about this very ID: nothing is
concluded from a listing of /proc/PID/task, which omits living threads while others end.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.linux.namespaces import namespace_ids

PROC = Path("/proc")
TRANSLATE = 0x8004B706  # NS_GET_PID_FROM_PIDNS, Linux 6.11
ABSENCES = 3  # consecutive listings without a thread that is only known by its inner ID
TID_MAX = 0x7FFFFFFF


class ThreadIds:
    """The threads of one target.

    Args:
        pid: the target, in the monitor's PID namespace.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._listed: dict[int, int] = {}  # by inner ID
        self._absent: dict[int, int] = {}  # consecutive listings without an inner ID
        try:
            self._is_nested = len(namespace_ids(PROC / str(pid))) > 1
        except OSError:
            self._is_nested = False
        self._may_translate = self._is_nested

    def are_gone(self, tids: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Returns which IDs are not threads of the target at this moment; IDs in the monitor's PID namespace, same
        shape.
        """
        tids = np.ascontiguousarray(tids, np.uint32)
        gone = np.zeros(tids.shape, np.bool_)
        pointers = ffi.from_buffer("uint32_t[]", tids), ffi.from_buffer("uint8_t[]", gone, require_writable=True)
        lib.nfp_threads_gone(self.pid, pointers[0], tids.size, pointers[1])
        return gone

    def holds(self, tid: int) -> bool:
        """Returns whether the target has this thread at this moment.

        Also to be called after opening something for an ID: between a check and an open, the thread may end and its ID
        be reused by another process.
        """
        return 0 < tid <= TID_MAX and not self.are_gone(np.array([tid], np.uint32))[0]

    def outer(self, inner: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Maps to thread IDs in the monitor's PID namespace, 0 where the target has no such known thread; same shape.

        An ID that the target made up, or of an ended thread, is returned unchanged where both share a PID namespace:
        check with `holds` and `are_gone`.
        """
        if not self._is_nested:
            return inner
        return np.array([self._translate(tid) for tid in inner.tolist()], np.uint32)

    def surely_gone(self, inner: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Returns which of these IDs, in the target's PID namespace, have ended for certain; same shape."""
        outer = self.outer(inner)
        gone = self.are_gone(outer)
        if not self._is_nested or self._may_translate:
            return gone
        for tid in inner[~gone].tolist():
            self._absent.pop(tid, None)
        for place in np.flatnonzero(gone):
            tid = int(inner[place])
            self._absent[tid] = self._absent.get(tid, 0) + 1
            gone[place] = self._absent[tid] >= ABSENCES
        return gone

    def _translate(self, tid: int) -> int:
        if not 0 < tid <= TID_MAX:
            return 0
        if self._may_translate:
            try:
                return self._ask_kernel(tid)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return 0
                self._may_translate = False  # an older kernel
        return self._look_up(tid)

    def _ask_kernel(self, tid: int) -> int:
        namespace = os.open(PROC / str(self.pid) / "ns" / "pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return fcntl.ioctl(namespace, TRANSLATE, tid)
        finally:
            os.close(namespace)

    def _look_up(self, tid: int) -> int:
        known = self._listed.get(tid)
        if known is None or not self._is_called(known, tid):  # a new thread may reuse an old one's ID
            self._listed.pop(tid, None)
            self._list()
        return self._listed.get(tid, 0)

    def _is_called(self, outer: int, inner: int) -> bool:
        try:
            return namespace_ids(PROC / str(self.pid) / "task" / str(outer))[-1] == inner
        except OSError:
            return False

    def _list(self) -> None:
        try:
            tasks: Sequence[Path] = list((PROC / str(self.pid) / "task").iterdir())
        except OSError:
            return
        for task in tasks:
            try:
                self._listed[namespace_ids(task)[-1]] = int(task.name)
            except OSError:
                continue  # ended in the meantime
