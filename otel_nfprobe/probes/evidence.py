# SPDX-License-Identifier: Apache-2.0
"""Evidence: whether the changes claimed for a killed monitor can be undone. Reads only.

The table of changes is in memory that the target can write, so it is not trusted: code is restored only where a jump to
one of our trampolines is in place and the old bytes are those of the mapped file; a slot only where it points to a
trampoline and the old value is one that the dynamic linker could have stored.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.elftables import IFUNC
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.probes.arenafile import PREFIX
from otel_nfprobe.probes.slots import changed_slots, is_lazy
from otel_nfprobe.shm.patchtable import PatchTable
from otel_nfprobe.target.leftover import SESSION_PATH
from otel_nfprobe.target.target import Target

SITE_BYTES_MAX = 32
SLOT_BYTES = 8
PIECE_BYTES = 1 << 20  # of code compared at once


def find_doubts(target: Target, table: PatchTable, indexes: Iterable[int]) -> dict[int, str]:
    """Returns why entries of the table are not to be restored, by index; all others may be.

    Raises:
        NfprobeError: the target has ended.
    """
    evidence = _Evidence(target)
    doubts: dict[int, str] = {}
    end = 0  # of the accepted entries: overlapping ones cannot all be true
    for index in sorted(indexes, key=lambda index: int(table.entry(index).site)):
        entry = table.entry(index)
        site, length = int(entry.site), int(entry.length)
        doubt = "it overlaps another one" if site < end else evidence.doubt(entry)
        if doubt:
            doubts[index] = f"probe {index} at {site:#x}: {doubt}"
        else:
            end = site + length
    return doubts


class TrampolineReferences(NamedTuple):
    """References to trampolines in a target.

    Attributes:
        jumps: number of those in its code but not in its files.
        jump_places: addresses of the first ones.
        slots: addresses of GOT slots.
    """

    jumps: int
    jump_places: list[int]
    slots: list[int]


def find_references(target: Target, places_max: int) -> TrampolineReferences:
    """Finds references to trampolines, regardless of the session's memory.

    Raises:
        NfprobeError: the target has ended.
    """
    if not any(_is_arena(mapping.path) for mapping in target.maps()):
        return TrampolineReferences(0, [], [])
    evidence = _Evidence(target)
    return TrampolineReferences(*_find_jumps(evidence, places_max), evidence.slots())


def _find_jumps(evidence: _Evidence, places_max: int) -> tuple[int, list[int]]:
    count = 0
    places: list[int] = []
    for first, last, module in evidence.ranges:
        for low, high in module.image.code_ranges:
            start, end = max(first, module.base + low), min(last, module.base + high)
            file = np.frombuffer(module.image.read(start - module.base, max(end - start, 0)), np.uint8)
            for at in range(0, len(file), PIECE_BYTES):
                found = evidence.jumps(start + at, file[at : at + PIECE_BYTES + of_host().jump_bytes - 1])
                count += len(found)
                places += found[: places_max - len(places)].tolist()
    return count, places


class _Evidence:
    """Facts about a target's code from outside its session's memory."""

    def __init__(self, target: Target) -> None:
        self._target = target
        arenas = (item for item in target.maps() if item.is_executable and _is_arena(item.path))
        self._arenas = sorted((item.start, item.end) for item in arenas)
        self._modules = target.modules()
        ranges = ((start, end, module) for module in self._modules for start, end in module.executable_ranges)
        self.ranges = sorted(ranges, key=lambda item: item[0])
        self._range_starts = [start for start, _, _ in self.ranges]
        self._slots: dict[int, dict[int, str]] = {}
        self._contents: dict[int, bytes] = {}

    def doubt(self, entry: Any) -> str:
        """Returns why an entry is not to be restored, or ""."""
        if entry.kind == lib.NFP_SITE_GOT:
            return self._doubt_slot(entry)
        return self._doubt_code(entry)

    # ---- code ----------------------------------------------------------------------------------------------

    def _doubt_code(self, entry: Any) -> str:
        site, length, island = int(entry.site), int(entry.length), int(entry.island)
        if not 2 <= length <= SITE_BYTES_MAX:
            return "its length is impossible"
        old, new = _bytes(entry.old_bytes, length), _bytes(entry.new_bytes, length)
        jump_bytes = of_host().jump_bytes
        destination = of_host().decode_site(site, new, island, _bytes(entry.island_new, jump_bytes))
        if destination != int(entry.trampoline) or not self._is_in_arena(destination):
            return "the claimed bytes are not a jump to a trampoline"
        if old != self._file_bytes(site, length):
            return "its old bytes are not those of the file"
        if island and _bytes(entry.island_old, jump_bytes) != self._file_bytes(island, jump_bytes):
            return "the old bytes of its island are not those of the file"
        return ""

    def _file_bytes(self, address: int, length: int) -> bytes:
        """Returns the bytes of the file mapped there; empty if no file's code is mapped."""
        at = bisect_right(self._range_starts, address) - 1
        if at < 0 or address + length > self.ranges[at][1]:
            return b""
        start, end, module = self.ranges[at]
        if at not in self._contents:
            self._contents[at] = module.image.read(start - module.base, end - start)
        return self._contents[at][address - start : address - start + length]

    def _is_in_arena(self, address: int) -> bool:
        return any(start <= address < end for start, end in self._arenas)

    def jumps(self, start: int, file: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Returns addresses of jumps to trampolines in a piece of code that differ from its file."""
        code = np.frombuffer(self._target.read(start, len(file)), np.uint8)
        places, destinations = of_host().find_jumps(code, file)
        destinations = start + destinations
        leads = [(low <= destinations) & (destinations < high) for low, high in self._arenas]
        return start + places[np.logical_or.reduce(leads)] if leads else np.zeros(0, np.int64)

    # ---- GOT slots -----------------------------------------------------------------------------------------

    def _doubt_slot(self, entry: Any) -> str:
        site = int(entry.site)
        old, new = (int.from_bytes(_bytes(part, SLOT_BYTES), "little") for part in (entry.old_bytes, entry.new_bytes))
        module = next((module for module in self._modules if module.low <= site < module.high), None)
        if module is None or int(entry.length) != SLOT_BYTES or site - module.base not in self._names(module):
            return "there is no slot"
        if new != int(entry.trampoline) or not self._is_in_arena(new):
            return "the claimed value is not a trampoline"
        if not self._may_hold(module, self._names(module)[site - module.base], old):
            return "its old value is not one that the dynamic linker stores"
        return ""

    def slots(self) -> list[int]:
        """Returns addresses of slots that contain the address of a trampoline."""
        found = []
        for module in self._modules:
            holding = changed_slots(self._target, dict.fromkeys((module.base + at for at in self._offsets(module)), 0))
            found += [address for address, value in holding.items() if self._is_in_arena(value)]
        return sorted(found)

    @staticmethod
    def _offsets(module: Module) -> Iterable[int]:
        return () if module.is_probe_library else module.image.slot_names

    def _names(self, module: Module) -> dict[int, str]:
        return self._slots.setdefault(id(module), module.image.slot_names)

    def _may_hold(self, module: Module, name: str, value: int) -> bool:
        return is_lazy(module, value) or any(_may_bind(other, name, value) for other in self._modules)


def _may_bind(module: Module, name: str, value: int) -> bool:
    """Returns whether a slot of this name may contain the value because this module exports the name."""
    symbol = module.image.exports.get(name) if name else None
    if symbol is None:
        return False
    if symbol.kind == IFUNC or name in module.image.names_by_version:  # the function is chosen at run time
        return _begins_function(module.image, module.executable_ranges, value, module.base)
    return value == module.base + symbol.address


def _begins_function(image: ElfImage, ranges: Sequence[tuple[int, int]], value: int, base: int) -> bool:
    frame = image.frames.find(value - base) if any(start <= value < end for start, end in ranges) else None
    return frame is not None and frame.start == value - base


def _is_arena(path: str) -> bool:
    return path.startswith(SESSION_PATH) or os.path.basename(path).startswith(PREFIX)


def _bytes(part: Any, length: int) -> bytes:
    return bytes(ffi.buffer(part))[:length]
