# SPDX-License-Identifier: Apache-2.0
"""Patch table: what a monitor has changed in a target, and the original bytes, in the monitor's own memory.

Restoring uses this table. The probe table in the session's memory is a copy for `nfprobe status`, and for a later
monitor if this one is killed: the target can write to it, so it is never read back once the session is open. Its
contents are claims, which evidence.py compares with the files.
"""

from __future__ import annotations

import mmap
from typing import Any

from otel_nfprobe._core import ffi

ENTRY_BYTES = ffi.sizeof("struct nfp_probe")


class PatchTable:
    """The entries of one session.

    Args:
        shared: address of the table in the session's memory.
        count: capacity in entries.
        used: number of entries in use.

    Attributes:
        claimed: entries that an earlier monitor left armed, according to the session's memory.
    """

    def __init__(self, shared: Any, count: int, used: int) -> None:
        self._shared = ffi.cast("struct nfp_probe *", shared)
        self._buffer = ffi.from_buffer(mmap.mmap(-1, count * ENTRY_BYTES))  # untouched pages cost nothing
        self._own = ffi.cast("struct nfp_probe *", self._buffer)
        self._count = count
        ffi.memmove(self._own, self._shared, used * ENTRY_BYTES)
        self.claimed = {index for index in range(used) if self._own[index].armed}

    def entry(self, index: int) -> Any:
        """Returns the entry at `index`, writable (struct nfp_probe)."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._own + index

    def publish(self, index: int) -> None:
        """Copies an entry to the session's memory, before the target is changed accordingly."""
        ffi.memmove(self._shared + index, self.entry(index), ENTRY_BYTES)

    def mark(self, index: int, armed: bool) -> None:
        """Marks whether the changed bytes of an entry are, or may be, in place."""
        self.entry(index).armed = armed
        self.publish(index)
        if not armed:
            self.claimed.discard(index)
