# SPDX-License-Identifier: Apache-2.0
"""The table of arenas in a session's header, read once: the target may have changed what an earlier monitor wrote.

From then on the monitor uses its own copy; the header is written for later monitors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.shm.session import ARENA_BYTES, ARENA_OFFSET, Session
from otel_nfprobe.target.target import Mapping

ARENA_COUNT = 64
PAGE_BYTES = 4096
ADDRESS_END = 1 << 47


class Arena:
    """One arena.

    Attributes:
        address: in the target.
        offset: in the session's memory file; 0: it is a file of its own.
        bytes: its size.
    """

    def __init__(self, entry: Any, address: int, offset: int, size_bytes: int, used_bytes: int) -> None:
        self._entry = entry
        self.address, self.offset, self.bytes = address, offset, size_bytes
        self._used = min(used_bytes, size_bytes)

    @property
    def used(self) -> int:
        """Bytes allocated, from its start."""
        return self._used

    @used.setter
    def used(self, used_bytes: int) -> None:
        self._used = self._entry.used = min(used_bytes, self.bytes)

    def is_mapped(self, session: Session, maps: Sequence[Mapping]) -> bool:
        """Returns whether the target has mapped it executable at this place, according to the kernel."""
        end = self.address + self.bytes
        for mapping in maps:
            if mapping.start <= self.address and end <= mapping.end and mapping.is_executable:
                place = mapping.inode, mapping.offset + self.address - mapping.start
                return not self.offset or place == (session.inode, self.offset)
        return False

    def is_sound(self, given_bytes: int) -> bool:
        """Returns whether it lies in the allocated part of the memory file, in whole pages."""
        in_file = not self.offset or ARENA_OFFSET <= self.offset <= ARENA_OFFSET + given_bytes - self.bytes
        whole = not any(number % PAGE_BYTES for number in (self.address, self.offset, self.bytes))
        return in_file and whole and self.bytes > 0 and 0 < self.address <= ADDRESS_END - self.bytes


def read_arenas(session: Session) -> tuple[list[Arena], int]:
    """Returns the arenas of a session, and the number of bytes they take in its memory file.

    Raises:
        NfprobeError: they overlap, or lie at impossible places.
    """
    header = session.header
    count, given_bytes = int(header.arenas), int(header.arena_used)
    if count > ARENA_COUNT or given_bytes > ARENA_BYTES or given_bytes % PAGE_BYTES:
        raise damaged(session)
    entries = [header.arena[index] for index in range(count)]
    arenas = [Arena(item, int(item.address), int(item.offset), int(item.bytes), int(item.used)) for item in entries]
    in_target = [(arena.address, arena.address + arena.bytes) for arena in arenas]
    in_file = [(arena.offset, arena.offset + arena.bytes) for arena in arenas if arena.offset]
    if not all(arena.is_sound(given_bytes) for arena in arenas) or _overlap(in_target) or _overlap(in_file):
        raise damaged(session)
    return arenas, given_bytes


def add_arena(session: Session, index: int, address: int, offset: int, size_bytes: int, used_bytes: int) -> Arena:
    """Writes the entry of a new arena, and marks it as present."""
    entry = session.header.arena[index]
    entry.address, entry.offset, entry.bytes, entry.used = address, offset, size_bytes, used_bytes
    session.header.arenas = index + 1
    return Arena(entry, address, offset, size_bytes, used_bytes)


def damaged(session: Session) -> NfprobeError:
    """Returns the error for a damaged table."""
    return NfprobeError(f"The arena table in process {session.pid} is damaged.", f"nfprobe doctor {session.pid}")


def _overlap(ranges: list[tuple[int, int]]) -> bool:
    return any(end > start for (_, end), (start, _) in pairwise(sorted(ranges)))
