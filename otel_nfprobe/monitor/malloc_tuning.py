# SPDX-License-Identifier: Apache-2.0
"""Tunes the C library's malloc, which would otherwise keep memory from an attach and a burst of records.

The analysis and the trial need several times the memory of the session. After the first free of a large array, glibc
raises its mmap threshold and places large arrays among the small ones, and each thread would get an arena of its own.
Does nothing with another C library.
"""

from __future__ import annotations

import ctypes

from otel_nfprobe.elf.filecontent import forget_contents

LARGE_BYTES = 1 << 20  # arrays of at least this size are unmapped when freed
UNUSED_BYTES_MAX = 8 << 20  # at the top of the heap, so that it does not grow and shrink with each drain
ARENAS_MAX = 2
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


def limit_heap() -> None:
    """Limits how much freed memory is kept from now on."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        options = {_MMAP_THRESHOLD: LARGE_BYTES, _TRIM_THRESHOLD: UNUSED_BYTES_MAX, _ARENA_MAX: ARENAS_MAX}
        for option, value in options.items():
            mallopt(option, value)


def give_back() -> None:
    """Returns unused memory to the kernel, and drops caches that can be read again."""
    forget_contents()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
