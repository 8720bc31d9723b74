# SPDX-License-Identifier: Apache-2.0
"""Liveness: whether the program that was attached to still runs. Reads only.

A process ends, or starts another program by exec and keeps its pid: its old memory is gone, and with it everything
injected. The descriptor of its memory (memory.py) detects the second case reliably: the kernel returns no byte of
memory that is gone, but an error for an unmapped address of living memory.
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


class Liveness:
    """One process and the program that was running in it.

    Args:
        target: checked and planned for.

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
        """Returns whether the process is gone."""
        if not self._says_ended():
            return False
        time.sleep(EXEC_S)  # during an exec by another thread than the first, the process appears to have ended
        return self._says_ended()

    def _says_ended(self) -> bool:
        readable, _, _ = select.select([self._process], [], [], 0)
        return bool(readable)

    def await_exec(self) -> None:
        """Waits briefly until a process that seemed to have ended has done so, or has started another program."""
        deadline = time.monotonic() + EXEC_PATIENCE_S
        while not self.is_gone and time.monotonic() < deadline:
            time.sleep(EXEC_S)

    @property
    def is_gone(self) -> bool:
        """Returns whether nothing of the attached program is left."""
        return self._memory.is_gone or self.has_ended

    @property
    def is_replaced(self) -> bool:
        """Returns whether the process continues with another program."""
        return self._memory.is_gone and not self.has_ended and has_memory(self._pid)

    def close(self) -> None:
        """Closes its descriptor."""
        os.close(self._process)


def replaced(pid: int) -> str:
    """Returns the sentence for a target that has started another program."""
    return f"Process {pid} has started another program (exec), which has no probes."
