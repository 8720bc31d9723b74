# SPDX-License-Identifier: Apache-2.0
"""The ring written by BPF programs (BPF_MAP_TYPE_RINGBUF), read through its mapped pages.

    one page: consumer position | one page: producer position | the records, mapped twice in a row

Each record is a length with two flag bits, a word, and the payload. All of ours have the same length.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np

from otel_nfprobe.base.columns import Rows

BUSY = 1 << 31  # reserved, not yet committed
CALL = np.dtype([("length", "<u4"), ("page", "<u4"), ("duration_ns", "<u8"), ("thread", "<u8")])


class BpfRing:
    """One ring of records of dtype CALL.

    Args:
        descriptor: of the map.
        ring_bytes: a power of two, at least a page.

    Raises:
        OSError: it cannot be mapped.
    """

    def __init__(self, descriptor: int, ring_bytes: int) -> None:
        page = mmap.PAGESIZE
        self._mask = ring_bytes - 1
        self._reader = mmap.mmap(descriptor, page)
        self._writer = mmap.mmap(descriptor, page + 2 * ring_bytes, prot=mmap.PROT_READ, offset=page)
        self._read_to = np.frombuffer(self._reader, "<u8", 1)  # stored as one word
        self._written_to = np.frombuffer(self._writer, "<u8", 1)

    def take(self) -> Rows:
        """Returns a copy of the records since the last call, in the order of their reservation."""
        first, last = int(self._read_to[0]), int(self._written_to[0])
        count = (last - first) // CALL.itemsize
        rows: Rows = np.frombuffer(self._writer, CALL, count, mmap.PAGESIZE + (first & self._mask)).copy()
        busy = np.flatnonzero(rows["length"] & BUSY)
        if len(busy):
            rows = rows[: busy[0]]
        self._read_to[0] = first + len(rows) * CALL.itemsize
        return rows

    def close(self) -> None:
        """Unmaps it."""
        del self._read_to, self._written_to
        for pages in (self._reader, self._writer):
            with suppress(BufferError):
                pages.close()
