# SPDX-License-Identifier: Apache-2.0
"""The session's memory of a target as it could be after the target wrote into it, from a seed."""

from __future__ import annotations

import mmap
import os
import random
from typing import Any

from otel_nfprobe._core import ffi
from otel_nfprobe.shm.session import (
    ARENA_OFFSET,
    FIXED_BYTES,
    PROBE_COUNT,
    PROBE_TABLE_OFFSET,
    PROGRAM_OFFSET,
    RING_OFFSET,
    THREAD_COUNT,
    THREAD_TABLE_OFFSET,
)

EDGES = (0, 1, 2, 15, 255, 1023, 1024, 4095, 4096, 65536, PROBE_COUNT, ARENA_OFFSET, 1 << 31, 1 << 32, 1 << 47, 1 << 63)
ENTRY = "struct nfp_probe"
ENTRY_BYTES = ffi.sizeof(ENTRY)
ARENA_BYTES = ffi.sizeof("struct nfp_arena")
THREAD_BYTES = 256
RINGS = 8  # that are written to


def number(chance: random.Random, bits: int) -> int:
    """A number that goes wrong where a count, a size, an offset or an address is meant."""
    if chance.random() < 0.3:
        return chance.getrandbits(bits)
    return (chance.choice(EDGES) + chance.choice((-1, 0, 0, 1))) % (1 << bits)


class SharedMemory:
    """A session's memory, written as its target can write it."""

    def __init__(self, path: str) -> None:
        file = os.open(path, os.O_RDWR)
        self.ring_bytes = (os.fstat(file).st_size - RING_OFFSET) // THREAD_COUNT
        self._fixed = mmap.mmap(file, FIXED_BYTES)
        self._rings = mmap.mmap(file, RINGS * self.ring_bytes, offset=RING_OFFSET)
        os.close(file)
        self.header = ffi.cast("struct nfp_session_header *", ffi.from_buffer(self._fixed))
        self.entries = ffi.cast(f"{ENTRY} *", ffi.from_buffer(self._fixed) + PROBE_TABLE_OFFSET)
        self.used = int(self.header.probes)
        self._end = PROBE_TABLE_OFFSET + max(1, self.used) * ENTRY_BYTES
        self._good = self._fixed[: self._end], bytes(self._rings)

    def restore(self) -> None:
        """As it was when this object was made."""
        self._fixed[: self._end], self._rings[:] = self._good

    def mutate(self, chance: random.Random) -> None:
        """Some damage."""
        ways = (self._words, self._bits, self._threads, self._threads, self._probes, self._probes, self._arenas)
        for _ in range(chance.choice((1, 2, 5))):
            chance.choice((*ways, self._programs, self._records))(chance)

    def scribble(self, chance: random.Random) -> None:
        """One write, as a stray one."""
        start, size = chance.choice(
            ((24, 4072), (PROGRAM_OFFSET, 4096), (THREAD_TABLE_OFFSET, 64 * THREAD_BYTES), (PROBE_TABLE_OFFSET, 4096))
        )
        place = start + chance.randrange(size // 8) * 8
        self._fixed[place : place + 8] = number(chance, 64).to_bytes(8, "little")

    def _words(self, chance: random.Random) -> None:
        """Of the header; those that say what it is stay mostly."""
        fields = ("state", "epoch", "threads", "probes", "arenas", "tls_offset", "request", "reply", "result", "used")
        wide = ("kept_address", "helper_address", "arena_used", "helper_tid", "target_pid", "total_bytes", "magic")
        for _ in range(chance.choice((1, 3))):
            name = chance.choice(fields if chance.random() < 0.7 else wide[: chance.choice((5, 5, 5, 7))])
            if name == "used":
                self.header.probes = chance.randrange(2 * self.used + 2)
                continue
            bits = 8 * ffi.sizeof(type_of(name))
            setattr(self.header, name, signed(number(chance, bits), bits) if name == "result" else number(chance, bits))

    def _bits(self, chance: random.Random) -> None:
        for _ in range(chance.choice((1, 10, 100))):
            place = chance.randrange(24, self._end)
            self._fixed[place] ^= 1 << chance.randrange(8)

    def _threads(self, chance: random.Random) -> None:
        tids = (*known_tids(int(self.header.target_pid)), 1, os.getpid(), 0, 0xFFFFFFFF)
        self.header.threads = chance.choice((3, 64, 1023, 1024, 0xFFFFFFFF))
        for _ in range(chance.choice((3, 300))):
            row = THREAD_TABLE_OFFSET + chance.randrange(min(64, THREAD_COUNT)) * THREAD_BYTES
            if chance.random() < 0.3:
                self._fixed[row : row + THREAD_BYTES] = chance.randbytes(THREAD_BYTES)
            state_and_tid = chance.choice((0, 1, 1, 1)), chance.choice(tids)
            self._fixed[row : row + 8] = b"".join(word.to_bytes(4, "little") for word in state_and_tid)
            place = row + chance.randrange(1, THREAD_BYTES // 8) * 8
            self._fixed[place : place + 8] = number(chance, 64).to_bytes(8, "little")

    def _probes(self, chance: random.Random) -> None:
        if not self.used:
            return
        for _ in range(chance.choice((1, 10, 100))):
            entry = self.entries + chance.randrange(self.used)
            if chance.random() < 0.3:
                ffi.buffer(entry)[:] = bytes(ffi.buffer(self.entries + chance.randrange(self.used)))
            what = chance.choice(("site", "island", "trampoline", "length", "kind", "old", "new", "armed"))
            if what in ("site", "island", "trampoline"):
                near = (int(getattr(entry, what)) + chance.randrange(-64, 65)) % (1 << 64)
                setattr(entry, what, near if chance.random() < 0.7 else number(chance, 64))
            elif what in ("old", "new"):
                (entry.old_bytes if what == "old" else entry.new_bytes)[chance.randrange(8)] = chance.randrange(256)
            else:
                setattr(entry, what, chance.choice((0, 1, 2, 3, 5, 8, 31, 32, 33, 255)))
        if chance.random() < 0.05:  # a full one
            self.header.probes = chance.choice((PROBE_COUNT, PROBE_COUNT + 1, 0xFFFFFFFF))

    def _arenas(self, chance: random.Random) -> None:
        count = max(1, min(64, int(self.header.arenas)))
        for _ in range(chance.choice((1, 4))):
            entry = self.header.arena[chance.randrange(count)]
            name = chance.choice(("address", "offset", "bytes", "used"))
            old = int(getattr(entry, name))
            near = (old + chance.choice((-4096, -1, 1, 4096, 1 << 20))) % (1 << 64)
            setattr(entry, name, near if chance.random() < 0.6 else number(chance, 64))
        if chance.random() < 0.3:
            self.header.arenas = chance.choice((0, count + 1, 63, 64, 65, 0xFFFFFFFF))
        elif count < 64 and chance.random() < 0.5:  # one more, at the place of another
            ffi.memmove(self.header.arena + count, self.header.arena + chance.randrange(count), ARENA_BYTES)
            self.header.arenas = count + 1

    def _programs(self, chance: random.Random) -> None:
        self._fixed[PROGRAM_OFFSET : PROGRAM_OFFSET + 4096] = chance.randbytes(4096)

    def _records(self, chance: random.Random) -> None:
        place = chance.randrange(len(self._rings) // 4096) * 4096
        self._rings[place : place + 4096] = chance.randbytes(4096)


def signed(value: int, bits: int) -> int:
    """The same bits as a signed number."""
    return value - (1 << bits) if value >> bits - 1 else value


def type_of(name: str) -> Any:
    """Type of a field of the header."""
    return dict(ffi.typeof("struct nfp_session_header").fields)[name].type


def known_tids(pid: int) -> list[int]:
    """Threads of a process."""
    try:
        return [int(entry) for entry in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []
