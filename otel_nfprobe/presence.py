# SPDX-License-Identifier: Apache-2.0
"""Presence: whether the program that was attached to still runs. Reads only. Called by monitor.py.

A process ends, or starts another program by exec and keeps its pid: its old memory is gone, and with it
everything of ours. An open /proc/PID/mem stays bound to the memory that the process had when it was opened,
so it tells the second case without doubt: the kernel gives no byte of memory that is gone, and an error for
an address at which nothing is mapped.
"""

from __future__ import annotations

import errno
import os
import select

from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.target import Target

ANY_ADDRESS = 0  # nothing is mapped there: living memory answers with an error


class Presence:
    """One process and the memory it has now.

    Args:
        target: what was checked and planned for.

    Raises:
        NfprobeError: the process has ended.
    """

    def __init__(self, target: Target) -> None:
        self._pid = target.pid
        try:
            self._process = os.pidfd_open(target.pid)
        except OSError as error:
            raise NfprobeError(f"Process {target.pid} has ended.", "pgrep -a NAME") from error
        try:
            self._memory = os.open(f"/proc/{target.pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            os.close(self._process)
            raise NfprobeError(
                f"Memory of process {target.pid} cannot be opened: {error.strerror}.", f"nfprobe doctor {target.pid}"
            ) from error

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        readable, _, _ = select.select([self._process], [], [], 0)
        return bool(readable)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of what was attached to is left."""
        return _is_gone(self._memory) or self.has_ended

    @property
    def is_replaced(self) -> bool:
        """Whether the process lives on with another program."""
        if not _is_gone(self._memory) or self.has_ended:
            return False
        try:
            fresh = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            # No memory any more, or no process; else a program that this user may not look into.
            return error.errno not in (errno.ESRCH, errno.ENOENT)
        try:
            return not _is_gone(fresh)  # that of a process which is about to end is gone, too
        finally:
            os.close(fresh)

    def close(self) -> None:
        """Gives the descriptors back."""
        os.close(self._process)
        os.close(self._memory)


def _is_gone(memory: int) -> bool:
    try:
        return os.pread(memory, 1, ANY_ADDRESS) == b""
    except OSError:
        return False
