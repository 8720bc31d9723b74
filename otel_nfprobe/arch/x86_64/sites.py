# SPDX-License-Identifier: Apache-2.0
"""Patch sites: which bytes at a function's entry become a jump, and what they displace.

    one instruction of 5 bytes or more    e9 rel32             no thread can be inside: changed without a stop
    one instruction of 2 to 4 bytes       eb rel8 -> island    the same; the island is padding between functions
    several instructions                  e9 rel32             needs a stop of all threads

An island contains the jump for which the site has no room. Only padding is used that nothing executes, names or
branches to. Reads bytes only.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind
from numpy.typing import NDArray

from otel_nfprobe.arch.branches import ModuleScan, hits
from otel_nfprobe.arch.code_facts import UNDECODABLE, Site
from otel_nfprobe.arch.x86_64.realigned import RBP
from otel_nfprobe.arch.x86_64.relocate import JUMP_BYTES, encode_jump, ends_flow
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.elf.ehframe import Row
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.symbols import Function

TOO_SHORT = "too short"
BRANCH_INSIDE = "branch into the displaced bytes"
CALL_INSIDE = "call among the displaced instructions"
SYSTEM_CALL_INSIDE = "system call among the displaced instructions"

ENDBR = b"\xf3\x0f\x1e\xfa"
SHORT_JUMP_BYTES = 2
_SHORT_JUMP, _LONG_JUMP = 0xEB, 0xE9
TRAP = b"\xcc"
_PUSH_RBP = b"\x55"
SHORT_REACH = (-128, 127)  # from the end of the short jump
PADDING_BYTES_MAX = 64
_PADDING_READ_BYTES = 16
_LONGEST_INSTRUCTION_BYTES = 15
PADDINGS_MAX = 1 << 10  # byte sequences: compilers use few
HEADS_MAX = 1 << 14  # sequences of lengths: most functions begin with one of a few hundred

_TRAPS = frozenset((Mnemonic.SYSENTER, Mnemonic.INT, Mnemonic.INT1, Mnemonic.INT3, Mnemonic.INTO))
_CALLS = (FlowControl.CALL, FlowControl.INDIRECT_CALL)


def encode_site(site: int, length: int, island: int, trampoline: int) -> bytes:
    """Returns the bytes of a patch site in front of a trampoline."""
    distance = island - (site + SHORT_JUMP_BYTES)
    if island:
        return struct.pack("<Bb", _SHORT_JUMP, distance) if SHORT_REACH[0] <= distance <= SHORT_REACH[1] else b""
    return encode_jump(site, trampoline).ljust(length, TRAP)


def decode_site(site: int, code: bytes, island: int, island_code: bytes) -> int:
    """Returns where bytes of encode_site, and of the jump in their island, lead; 0: they are none."""
    if not island:
        return _decode_jump(site, code)
    return _decode_jump(island, island_code) if code == encode_site(site, len(code), island, 0) else 0


def _decode_jump(place: int, code: bytes) -> int:
    if len(code) < JUMP_BYTES or code[0] != _LONG_JUMP or code[JUMP_BYTES:].strip(TRAP):
        return 0
    return place + JUMP_BYTES + int.from_bytes(code[1:JUMP_BYTES], "little", signed=True)


def find_jumps(code: NDArray[np.uint8], file: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns offsets of long jumps of which a byte differs from the file's, and of what they lead to."""
    differs = code != file
    if len(code) < JUMP_BYTES or not differs.any():
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first = len(code) - JUMP_BYTES + 1  # possible start offsets of a jump
    is_changed = np.logical_or.reduce([differs[at : at + first] for at in range(JUMP_BYTES)])
    places = np.flatnonzero(is_changed & (code[:first] == _LONG_JUMP))
    return places, places + JUMP_BYTES + code[places[:, None] + np.arange(1, JUMP_BYTES)].view("<i4").ravel()


def sets_frame_pointer(displaced: bytes, rules: Sequence[Row]) -> bool:
    """Returns whether a function sets up its frame pointer first, so that this is not an argument."""
    return displaced.startswith(_PUSH_RBP) and any((row.register, row.offset) == (RBP, 16) for row in rules)


class _Displaced(NamedTuple):
    """Whole instructions at the start of a function.

    Attributes:
        instructions: their number.
        length: their bytes.
        boundaries: as in Site.
        reason: why they cannot be displaced, or "".
    """

    instructions: int
    length: int
    boundaries: tuple[int, ...]
    reason: str


def find_site(function: Function, scan: ModuleScan, index: int, catches: bool) -> Site:
    """Returns the best patch site of a function.

    Args:
        scan: of its module.
        index: of the function in the frame table.
        catches: exceptions are looked up by the address of the function's own calls, so none may be displaced.
    """
    image, start = scan.image, function.offset
    head = scan.heads[index] if scan.starts[index] == start else ()
    plain = _plain_site(scan, index) if head else None
    if plain is not None:
        return plain
    skipped = len(ENDBR) if image.read(start, len(ENDBR)) == ENDBR else 0
    site = _at(scan, function, start + skipped, catches, head)
    if not site.reason and site.length >= JUMP_BYTES and site.single:
        return site
    short = _short(scan, function, index, start + skipped, catches, head)
    if not short.reason:
        return short
    if skipped:  # not enforced: Linux has no user-mode IBT
        short = _short(scan, function, index, start, catches, (skipped,))
        if not short.reason:
            return short
    return site


def _plain_site(scan: ModuleScan, index: int) -> Site | None:
    """Returns what find_site does for a function whose first instructions only continue with the next one, and that
    nothing enters among these; None for others."""
    heads = _heads_of(scan)
    if not heads.is_free[index]:
        return None
    lengths, skipped = scan.heads[index], heads.skipped[index]
    address, taken, island = scan.starts[index] + skipped, _take_plain(lengths), 0
    if lengths[0] < JUMP_BYTES:
        islands = islands_of(scan)
        island = islands.near(index, address) if lengths[0] >= SHORT_JUMP_BYTES else 0
        if island:
            taken = _take_plain(lengths[:1])
        elif skipped and not scan.enters(address - skipped + 1, address):
            island = islands.near(index, address - skipped)
            if island:
                address, taken, skipped = address - skipped, _take_plain((skipped,)), 0
    begin = scan.code_offsets[index] + skipped
    displaced = scan.image.data[begin : begin + taken.length]
    length = SHORT_JUMP_BYTES if island else taken.length
    return Site(address, length, displaced, taken.boundaries, taken.instructions == 1, island)


class _Heads:
    """The first instructions of a module's functions, beside all its code.

    Attributes:
        skipped: the bytes of each function's landing pad.
        is_free: nothing enters what Scans.heads has of each function behind its first byte.
    """

    def __init__(self, scan: ModuleScan) -> None:
        data = np.frombuffer(scan.image.data, dtype=np.uint8)
        begins = np.array(scan.code_offsets, dtype=np.int64)
        first = data[np.minimum(begins[:, None] + np.arange(len(ENDBR)), len(data) - 1)]
        pads = len(ENDBR) * (first == np.frombuffer(ENDBR, dtype=np.uint8)).all(axis=1)
        lengths = np.array([sum(head) for head in scan.heads], dtype=np.uint64)
        addresses = scan.start_array + pads.astype(np.uint64)
        self.skipped: list[int] = pads.tolist()
        self.is_free: list[bool] = (~scan.enters_each(addresses + np.uint64(1), addresses + lengths)).tolist()


def _at(scan: ModuleScan, function: Function, address: int, catches: bool, head: tuple[int, ...]) -> Site:
    """Returns a site with room for the long jump."""
    taken = _take_plain(head) if head else _take(scan.image, function, address, JUMP_BYTES, JUMP_BYTES, catches)
    reason, length = taken.reason, taken.length
    if not reason and length < JUMP_BYTES:
        end = function.offset + function.size
        reason = TOO_SHORT if taken.boundaries[-1] == length else ""  # continues into the code after it
        reason = reason or _refuse_padding(scan.image, address + length, end, JUMP_BYTES - length)
    changed = max(length, JUMP_BYTES)
    if not reason and scan.enters(address + 1, address + changed):
        reason = BRANCH_INSIDE
    single = taken.instructions == 1 and length >= JUMP_BYTES
    return Site(address, changed, scan.image.read(address, length), taken.boundaries, single, 0, reason)


def _short(
    scan: ModuleScan, function: Function, index: int, address: int, catches: bool, head: tuple[int, ...]
) -> Site:
    """Returns a site with room for the short jump, and padding for the long one."""
    taken = _take_plain(head[:1]) if head else _take(scan.image, function, address, 1, SHORT_JUMP_BYTES, catches)
    reason, length = taken.reason, taken.length
    if not reason and (length < SHORT_JUMP_BYTES or scan.enters(address + 1, address + length)):
        reason = TOO_SHORT
    island = 0 if reason else islands_of(scan).near(index, address)
    if not reason and not island:
        reason = TOO_SHORT
    displaced = scan.image.read(address, length)
    return Site(address, SHORT_JUMP_BYTES, displaced, taken.boundaries, True, island, reason)


@lru_cache(maxsize=HEADS_MAX)
def _take_plain(lengths: tuple[int, ...]) -> _Displaced:
    """Returns instructions of these lengths that only continue with the next one."""
    boundaries = tuple(accumulate(lengths, initial=0))
    return _Displaced(len(lengths), boundaries[-1], boundaries, "")


def _take(image: ElfImage, function: Function, address: int, at_least: int, room: int, catches: bool) -> _Displaced:
    """Takes instructions from the address on, `at_least` bytes of them if the function is long enough.

    Args:
        room: minimum number of bytes that will be changed.
    """
    end = function.offset + function.size
    code = image.read(address, min(at_least + _LONGEST_INSTRUCTION_BYTES, max(0, end - address)))
    taken: list[Instruction] = []
    length = 0
    for instruction in Decoder(64, code, ip=address):
        if length >= at_least:
            break
        taken.append(instruction)
        length += instruction.len
    boundaries = [int(instruction.ip) - address for instruction in taken]
    if taken and not ends_flow(taken[-1]):
        boundaries.append(length)
    return _Displaced(len(taken), length, tuple(boundaries), _refuse_taken(function, taken, length, room, catches))


def _refuse_taken(function: Function, taken: list[Instruction], length: int, room: int, catches: bool) -> str:
    for position, instruction in enumerate(taken):
        last = position == len(taken) - 1
        if instruction.code == Code.INVALID:
            return UNDECODABLE
        if instruction.mnemonic in _TRAPS or instruction.flow_control == FlowControl.XBEGIN_XABORT_XEND:
            return SYSTEM_CALL_INSIDE
        if instruction.mnemonic == Mnemonic.SYSCALL:
            continue  # the program counter of a thread sleeping in it is after it: it is moved to the copy
        if instruction.flow_control in _CALLS and _call_is_harmful(function, instruction, last and length >= room):
            return CALL_INSIDE
        if ends_flow(instruction) and not last:
            return TOO_SHORT
        if catches and instruction.flow_control in _CALLS:
            return CALL_INSIDE
    return "" if taken else TOO_SHORT


def _call_is_harmful(function: Function, instruction: Instruction, returns_behind: bool) -> bool:
    """Returns whether a call is harmful: a thread inside it returns after it, which is only harmless in unchanged code.

    A call into the function itself determines its own address (call, pop): it must not be moved.
    """
    near = instruction.op0_kind == OpKind.NEAR_BRANCH64
    inside = near and 0 < instruction.near_branch_target - function.offset < function.size
    return not returns_behind or inside


def _refuse_padding(image: ElfImage, behind: int, end: int, missing: int) -> str:
    """Returns why the bytes after a function shorter than a jump are not padding that nobody executes, or ""."""
    following = bisect_left(image.frames.starts, end)
    taken = any(start < end + missing for start in image.frames.starts[following : following + 1])
    if behind != end or taken or image.names_address(end, end + missing):
        return TOO_SHORT
    return "" if _padding_bytes(image.read(end, _PADDING_READ_BYTES)) >= missing else TOO_SHORT


@lru_cache(maxsize=PADDINGS_MAX)
def _padding_bytes(code: bytes) -> int:
    """Returns how many bytes of the code are instructions that compilers fill gaps with."""
    covered = 0
    for instruction in Decoder(64, code):
        if instruction.mnemonic not in (Mnemonic.NOP, Mnemonic.INT3):
            break
        covered += instruction.len
    return covered


def _first_length(image: ElfImage, start: int) -> tuple[int, int]:
    """Returns how long the landing pad and the first instruction behind it are."""
    code = image.read(start, len(ENDBR) + _LONGEST_INSTRUCTION_BYTES)
    skipped = len(ENDBR) if code.startswith(ENDBR) else 0
    first = next(iter(Decoder(64, code[skipped:])), None)
    return skipped, first.len if first is not None else 0


class Islands:
    """Assigns pieces of five padding bytes in one module.

    Assigned in the order of the functions, whichever of them are probed: a function has the same island at every
    attach.
    """

    def __init__(self, scan: ModuleScan) -> None:
        self._scan = scan
        self._wanted: dict[tuple[int, int], int] = {}
        self._free: dict[int, list[int]] = {}
        self._gaps = _find_gaps(scan)
        skipped = _heads_of(scan).skipped
        for index, head in enumerate(scan.heads):
            if not head:
                self._assign(index, *_first_length(scan.image, scan.starts[index]))
            elif head[0] < JUMP_BYTES:
                self._assign(index, skipped[index], head[0])

    def near(self, index: int, address: int) -> int:
        """Returns the island of the function at `index` of the frame table with its short jump at `address`, or 0."""
        return self._wanted.get((index, address), 0)

    def _assign(self, index: int, skipped: int, length: int) -> None:
        if not 0 < length < JUMP_BYTES or (length < SHORT_JUMP_BYTES and not skipped):
            return
        address = self._scan.starts[index] + (skipped if length >= SHORT_JUMP_BYTES else 0)
        for gap in (index - 1, index):
            for island in self._islands_behind(gap):
                if SHORT_REACH[0] <= island - (address + SHORT_JUMP_BYTES) <= SHORT_REACH[1]:
                    self._free[gap].remove(island)
                    self._wanted[index, address] = island
                    return

    def _islands_behind(self, index: int) -> list[int]:
        """Returns the free islands between the function at `index` and the next one."""
        free = self._free.get(index)
        if free is None:
            free = self._free[index] = self._find(index)
        return free

    def _find(self, index: int) -> list[int]:
        low, high = self._gaps.get(index, (0, 0))
        if _padding_bytes(self._scan.image.read(low, high - low)) < high - low:
            return []
        return [high - JUMP_BYTES * turn for turn in range(1, (high - low) // JUMP_BYTES + 1)]


def _find_gaps(scan: ModuleScan) -> dict[int, tuple[int, int]]:
    """Returns the gaps behind functions, by their indexes, that nothing enters, runs into or names."""
    low, high = (scan.start_array + scan.size_array)[:-1], scan.start_array[1:]
    is_gap = (low + np.uint64(JUMP_BYTES) <= high) & (high <= low + np.uint64(PADDING_BYTES_MAX))
    # A function this short uses the padding after it for its own site. glibc's __memcpy_chk_avx512_unaligned runs
    # through it into the next function.
    is_gap &= (scan.size_array[:-1] >= len(ENDBR) + JUMP_BYTES) & ~scan.runs_on[:-1]
    named = np.array([symbol.address for symbol in scan.image.symbols], dtype=np.uint64)
    is_gap &= ~scan.enters_each(low, high) & ~hits(distinct(named), low, high)
    gaps = np.flatnonzero(is_gap)
    section_of = scan.image.section_of
    return {
        index: (begin, end)
        for index, begin, end in zip(gaps.tolist(), low[gaps].tolist(), high[gaps].tolist(), strict=True)
        if section_of(begin) == section_of(end)
    }


def islands_of(scan: ModuleScan) -> Islands:
    """Returns the islands of a module, created once."""
    known: Islands | None = scan.image.cache.get("islands")
    if known is None:
        known = scan.image.cache["islands"] = Islands(scan)
    return known


def _heads_of(scan: ModuleScan) -> _Heads:
    known: _Heads | None = scan.image.cache.get("heads")
    if known is None:
        known = scan.image.cache["heads"] = _Heads(scan)
    return known
