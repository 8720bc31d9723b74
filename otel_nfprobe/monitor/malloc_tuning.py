# SPDX-License-Identifier: Apache-2.0
"""The C library's heap, which else keeps what an attach and a burst of records have left behind.

The analysis and the trial need several times what the session needs. Large arrays would come to lie among the small
ones as soon as one of them was freed, because glibc takes that as a sign that such sizes are usual, and every thread
would get an arena of its own. Does nothing where the C library is another one.
"""

from __future__ import annotations

import ctypes

from otel_nfprobe.elf.filecontent import forget_contents

LARGE_BYTES = 1 << 20  # an array of this size is unmapped when it is freed
UNUSED_BYTES_MAX = 8 << 20  # at the heap's end, so that it does not grow and shrink with each take
ARENAS_MAX = 2
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of mallopt(3)


def limit_heap() -> None:
    """Bounds what is kept of freed memory, from now on."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        options = {_MMAP_THRESHOLD: LARGE_BYTES, _TRIM_THRESHOLD: UNUSED_BYTES_MAX, _ARENA_MAX: ARENAS_MAX}
        for option, value in options.items():
            mallopt(option, value)


def give_back() -> None:
    """Gives the kernel what is not used, and forgets what can be read again."""
    forget_contents()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
