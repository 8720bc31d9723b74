# SPDX-License-Identifier: Apache-2.0
"""Arenas: the memory of trampolines. The target maps each read-execute within reach of one module; only the monitor
maps it writable. An arena is an ELF file readable by profilers (arenafile.py) if the target sees a directory for it,
otherwise a part of the session's memory file. Arenas are never unmapped while the target lives: a thread may be
executing inside.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from otel_nfprobe._core import lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.arenafile import ArenaFile, make_file
from otel_nfprobe.probes.codemap import HEAD_BYTES, CodeObject, build_head
from otel_nfprobe.shm.session import ARENA_BYTES, ARENA_OFFSET, Session
from otel_nfprobe.target.target import Mapping, Target

# ---- table of the arena ---------------------------------------------------------------------------------------------
# The table of arenas in a session's header, read once: the target may have changed what an earlier monitor wrote.
#
# From then on the monitor uses its own copy; the header is written for later monitors.


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


# ---- the arena ------------------------------------------------------------------------------------------------------


MODULE_ROOM_BYTES = 64 << 20  # that are not used of what a jump can reach
GUARD_BYTES = 64 << 10
STACK_ROOM_BYTES = 64 << 20  # space for a stack to grow
ARENA_STEP_BYTES = 1 << 20
FILES_MAX = 48  # the other arenas are memory, which can take more code at a later attach
LOWEST_ADDRESS = 1 << 20


class NoRoomError(NfprobeError):
    """No room; a smaller amount of code may fit."""


class Arenas:
    """The arenas of one session. All addresses are the target's.

    Raises:
        NfprobeError: the session's header describes impossible arenas.
    """

    def __init__(self, session: Session, target: Target) -> None:
        self._session = session
        self._target = target
        self._mapped: dict[int, Any] = {}
        self._files: dict[int, ArenaFile] = {}
        self._entries, self._used_bytes = read_arenas(session)
        self._absent: set[int] = set()  # arenas not mapped where the header says
        self._check_mapped(range(len(self._entries)))

    def entry(self, arena: int) -> Arena:
        """Returns the entry of an arena."""
        return self._entries[arena]

    def write(self, arena: int, start: int, content: bytes) -> None:
        """Writes bytes into an arena.

        Raises:
            NfprobeError: there is no room for them.
        """
        if arena in self._files:
            self._files[arena].write(start, content)
        else:
            self.mapping(arena)[start : start + len(content)] = content

    def mapping(self, arena: int) -> Any:
        """Returns its bytes, writable, if it is memory and not a file."""
        if arena not in self._mapped:
            entry = self.entry(arena)
            self._mapped[arena] = self._session.map_arena(entry.offset, entry.bytes)
        return self._mapped[arena]

    def holds(self, address: int, module: Module) -> bool:
        """Returns whether an address is in written arena code within reach of a module."""
        return _within_reach(address, 0, module.low, module.high) and any(
            entry.address <= address < entry.address + entry.used
            for index, entry in enumerate(self._entries)
            if index not in self._absent
        )

    def _check_mapped(self, arenas: Collection[int]) -> None:
        """Checks that the target has mapped the arenas executable, according to the kernel, before code is written."""
        maps = self._target.maps() if arenas else []
        self._absent.update(index for index in arenas if not self._entries[index].is_mapped(self._session, maps))

    def near(self, module: Module, size_bytes: int, in_file: bool = True) -> int:
        """Returns an arena with this much room within reach of a module.

        Args:
            in_file: it may be a file, which `finish` closes for further code.

        Raises:
            NoRoomError: no free piece is large enough.
            NfprobeError: the arenas are used up, or the target may not map executable memory.
        """
        low, high = module.low, module.high
        for index, arena in enumerate(self._entries):
            fits = arena.used + size_bytes <= arena.bytes and index not in self._absent
            # A file is written by one monitor only, once.
            mine = arena.offset != 0 or (in_file and index in self._files)
            if fits and mine and _within_reach(arena.address, arena.bytes, low, high):
                return index
        size_bytes = -(-(size_bytes + HEAD_BYTES) // ARENA_STEP_BYTES) * ARENA_STEP_BYTES
        return self._make(low, high, size_bytes, in_file)

    def _map_file(self, index: int, address: int, size_bytes: int) -> bool:
        if index >= FILES_MAX:
            return False
        file = make_file(self._target, size_bytes)
        if file is None:
            return False
        self._session.write_message(file.path)
        if self._session.ask(lib.NFP_COMMAND_MAP_FILE, address, size_bytes) != 0:
            file.remove()
            return False
        self._entries.append(add_arena(self._session, index, address, 0, size_bytes, HEAD_BYTES))
        self._files[index] = file
        return True

    def finish(self, arena: int, code: CodeObject, start: int) -> None:
        """Completes an arena whose code is described by the object at offset `start`: a file accepts no more code."""
        if arena in self._files:
            entry = self.entry(arena)
            used_bytes = -(-entry.used // HEAD_BYTES) * HEAD_BYTES
            self.write(arena, 0, build_head(code, start, (entry.address, used_bytes)))
            self._files.pop(arena).finish(used_bytes)
            entry.used = entry.bytes

    def _make(self, low: int, high: int, size_bytes: int, in_file: bool) -> int:
        index, offset = len(self._entries), self._used_bytes
        if index >= ARENA_COUNT or offset + size_bytes > ARENA_BYTES:
            raise NfprobeError(
                "The trampoline memory of this target is used up.", "nfprobe attach PID --functions FEWER"
            )
        for address in find_gaps(self._target.maps(), low, high, size_bytes):
            if in_file and self._map_file(index, address, size_bytes):
                return index
            result = self._session.ask(lib.NFP_COMMAND_MAP_ARENA, address, ARENA_OFFSET + offset, size_bytes)
            if result == 0:
                self._used_bytes = self._session.header.arena_used = offset + size_bytes
                self._entries.append(add_arena(self._session, index, address, ARENA_OFFSET + offset, size_bytes, 0))
                self._check_mapped([index])
                if index in self._absent:
                    raise damaged(self._session)
                return index
            if result != -errno.EEXIST:
                raise NfprobeError(
                    f"The target cannot map executable memory for trampolines: {os.strerror(-result)}.",
                    f"nfprobe doctor {self._target.pid}",
                )
        raise NoRoomError(
            f"There is no free memory within {of_host().jump_reach_bytes >> 30} GiB of a module for its trampolines.",
            f"nfprobe functions {self._target.pid}",
        )


def find_gaps(maps: Sequence[Mapping], low: int, high: int, size_bytes: int) -> list[int]:
    """Returns addresses with `size_bytes` free within reach of [low, high), the nearest first.

    Keeps a distance to the start (or future start) of the heap, and to the lower end of a stack: both grow. Therefore
    the upper end of a gap is used, except for the gap between libraries and stack, which may extend out of reach.
    """
    found: list[int] = []
    before_end, after_heap = LOWEST_ADDRESS, False
    for mapping in sorted(maps, key=lambda mapping: mapping.start):
        is_stack = mapping.path.startswith("[stack")
        gap_low = -(-(before_end + GUARD_BYTES) // GUARD_BYTES) * GUARD_BYTES
        gap_high = (mapping.start - (STACK_ROOM_BYTES if is_stack else GUARD_BYTES) - size_bytes) & -GUARD_BYTES
        if gap_low <= gap_high and not (is_stack and after_heap):
            found.append(gap_low if is_stack else gap_high)
        before_end, after_heap = max(before_end, mapping.end), mapping.path == "[heap]"
    reachable = [address for address in found if _within_reach(address, size_bytes, low, high)]
    return sorted(reachable, key=lambda address: abs(address - low))


def _within_reach(address: int, size_bytes: int, low: int, high: int) -> bool:
    return max(high, address + size_bytes) - min(low, address) < of_host().jump_reach_bytes - MODULE_ROOM_BYTES
