# SPDX-License-Identifier: Apache-2.0
"""Presence: whether the program that was attached to still runs. Reads only.

A process ends, or starts another program by exec and keeps its pid: its old memory is gone, and with it
everything of ours. The descriptor of the memory that was looked at (memory.py) tells the second case without doubt:
the kernel gives no byte of memory that is gone, and an error for an address at which nothing is mapped.
"""

from __future__ import annotations

import os
import select
import time

from otel_nfprobe.base.errors import EndedError
from otel_nfprobe.linux.memory import has_memory
from otel_nfprobe.target.target import Target

EXEC_S = 0.01
EXEC_PATIENCE_S = 1.0


class Presence:
    """One process and the program that was looked at in it.

    Args:
        target: what was checked and planned for.

    Raises:
        EndedError: the process has ended.
    """

    def __init__(self, target: Target) -> None:
        self._pid = target.pid
        try:
            self._process = os.pidfd_open(target.pid)
        except OSError as error:
            raise EndedError.of(target.pid) from error
        self._memory = target.memory

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        if not self._says_ended():
            return False
        time.sleep(EXEC_S)  # while another thread than the first one execs it looks as if the process had ended
        return self._says_ended()

    def _says_ended(self) -> bool:
        readable, _, _ = select.select([self._process], [], [], 0)
        return bool(readable)

    def await_exec(self) -> None:
        """Waits, not for long, until a process that seemed to have ended has, or has started another program."""
        deadline = time.monotonic() + EXEC_PATIENCE_S
        while not self.is_gone and time.monotonic() < deadline:
            time.sleep(EXEC_S)

    @property
    def is_gone(self) -> bool:
        """Whether nothing of what was attached to is left."""
        return self._memory.is_gone or self.has_ended

    @property
    def is_replaced(self) -> bool:
        """Whether the process lives on with another program."""
        return self._memory.is_gone and not self.has_ended and has_memory(self._pid)

    def close(self) -> None:
        """Gives its descriptor back."""
        os.close(self._process)


def replaced(pid: int) -> str:
    """What a person is told of a target that has started another program."""
    return f"Process {pid} has started another program (exec), which has no probes."
