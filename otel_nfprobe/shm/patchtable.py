# SPDX-License-Identifier: Apache-2.0
"""Patch table: what a monitor has changed in a target, and what stood there before, in the monitor's own memory.

What is put back is taken from here. The probe table in the session's memory is a copy for a monitor that comes after
this one was killed, and for `nfprobe status`: the target can write it, so nothing is ever taken from there again once
the session is open. What it says then are claims, which evidence.py compares with the files.
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
        count: of entries it has room for.
        used: of those that say something.

    Attributes:
        claimed: entries that an earlier monitor left armed, as the session's memory has it.
    """

    def __init__(self, shared: Any, count: int, used: int) -> None:
        self._shared = ffi.cast("struct nfp_probe *", shared)
        self._buffer = ffi.from_buffer(mmap.mmap(-1, count * ENTRY_BYTES))  # pages that are never touched cost nothing
        self._own = ffi.cast("struct nfp_probe *", self._buffer)
        self._count = count
        ffi.memmove(self._own, self._shared, used * ENTRY_BYTES)
        self.claimed = {index for index in range(used) if self._own[index].armed}

    def entry(self, index: int) -> Any:
        """The entry at `index`, writable (struct nfp_probe)."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._own + index

    def publish(self, index: int) -> None:
        """Copies an entry to the session's memory, before the target is changed as it says."""
        ffi.memmove(self._shared + index, self.entry(index), ENTRY_BYTES)

    def mark(self, index: int, armed: bool) -> None:
        """Says whether the changed bytes of an entry are, or may be, in place."""
        self.entry(index).armed = armed
        self.publish(index)
        if not armed:
            self.claimed.discard(index)
