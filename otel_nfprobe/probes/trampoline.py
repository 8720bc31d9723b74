# SPDX-License-Identifier: Apache-2.0
"""Trampolines: the code between a patch site and its function, written through the monitor's own mapping.

    in-stack call, copied arguments, entry only    template, displaced instructions
    GOT slot                                       template, jump to the function
    relocated body                                 exits, template (here the site jumps to), body

At a later attach the same function gets the same trampoline again.
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.architecture import of_image
from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.arch.code_facts import PARTS_MAX, Body, Exit
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.strategies import ENTRY_ONLY, RELOCATED_BODY
from otel_nfprobe.elf.ehframe import CommonEntry, Frame
from otel_nfprobe.probes.analysis import FunctionPlan, relocate_displaced
from otel_nfprobe.probes.arena import Arenas, NoRoomError
from otel_nfprobe.probes.codemap import BODY, DISPLACED, PROBE, CodePart, build_object, object_room_bytes, publish
from otel_nfprobe.probes.template import NO_ARGUMENT, fill_template, template_bytes, template_values
from otel_nfprobe.shm.session import GATE_OUTER, PROBE_COUNT, Session
from otel_nfprobe.target.target import Target

# ---- unwind rows ----------------------------------------------------------------------------------------------------
# Unwind rows (.eh_frame) of trampolines: how exceptions and debuggers find a caller through them.
#
# Templates bring their own rows, displaced instructions get those of the function, and a relocated body the
# function's whole frame program, replayed at the addresses of the copy.


FRAME_ROOM_BYTES = 512  # per trampoline that is not a relocated body
_ADVANCE_4 = 0x04


class Frames:
    """Unwind rows of the trampolines of one arena, as one object to register."""

    def __init__(self) -> None:
        self._room = ffi.new("uint8_t[]", FRAME_ROOM_BYTES)
        self._rows = bytearray(self._take(lib.nfp_frame_common_write(self._room, FRAME_ROOM_BYTES)))
        self._empty = True
        self.function = ""  # raw name of the function described next
        self.parts: list[CodePart] = []
        self._commons: dict[tuple[int, bytes], int] = {}

    def _take(self, size_bytes: int) -> bytes:
        return bytes(ffi.buffer(self._room, size_bytes))

    def add(
        self,
        shape: int,
        address: int,
        behind_bytes: int,
        plan: FunctionPlan | None = None,
        moves: Iterable[tuple[int, int]] = (),
    ) -> None:
        """Adds a template at `address` and the `behind_bytes` of displaced instructions after it.

        Args:
            plan: whose displaced instructions those are; None for an instruction that leaves the function.
            moves: (address in the function, address in the copy) of the displaced instructions.
        """
        template_bytes = int(lib.nfp_trampoline_bytes(shape))
        displaced_bytes = behind_bytes if plan else 0
        probe_bytes = template_bytes + behind_bytes - displaced_bytes
        self.parts.append(CodePart(address, probe_bytes, self.function, PROBE))
        if displaced_bytes:
            self.parts.append(CodePart(address + probe_bytes, displaced_bytes, self.function, DISPLACED))
        rows = _displaced_rows(plan, address + template_bytes, moves) if plan else []
        array = ffi.new("struct nfp_cfa_row[]", rows) if rows else ffi.NULL
        size = lib.nfp_frame_write(
            shape, address, behind_bytes, array, len(rows), len(self._rows), self._room, FRAME_ROOM_BYTES
        )
        self._rows += self._take(size)
        self._empty = False

    def add_body(self, address: int, body: Body) -> None:
        """Adds a relocated body at `address`."""
        sources = sorted(body.places)
        for frame, offset, size_bytes in body.parts:
            common = self._common(frame.common)
            self.parts.append(CodePart(address + offset, size_bytes, self.function, BODY))
            pieces = [
                (body.places[sources[bisect_left(sources, old)]], operations)
                for old, operations in frame.steps()
                if frame.start <= old < frame.start + frame.size and bisect_left(sources, old) < len(sources)
            ]
            self._rows += _describe(len(self._rows), common, address + offset, size_bytes, offset, pieces)
            self._empty = False

    def _common(self, common: CommonEntry) -> int:
        """Returns the offset of a common entry (CIE) equivalent to this one of the file; adds it if missing."""
        key = (common.data_alignment, common.instructions)
        if key not in self._commons:
            self._commons[key] = len(self._rows)
            alignment = _sleb(common.data_alignment)
            body = (
                b"\0\0\0\0\x01zR\0\x01"
                + alignment
                + bytes((common.processor.return_address, 1, 0))
                + common.instructions
            )
            self._rows += _entry(body)
        return self._commons[key]

    def encode(self) -> bytes:
        """Returns the rows with their terminator; empty if there is nothing to register."""
        return b"" if self._empty else bytes(self._rows) + b"\0\0\0\0"


def body_room_bytes(frames: Sequence[Frame]) -> int:
    """Returns the maximum size of the rows of a relocated body."""
    return sum(128 + 6 * len(frame.instructions) + len(frame.common.instructions) for frame in frames)


def _describe(
    place: int, common: int, address: int, size_bytes: int, base: int, pieces: list[tuple[int, bytes]]
) -> bytes:
    program = bytearray()
    at = base
    for offset, operations in pieces:
        if not operations:
            continue
        if offset > at:
            program += bytes((_ADVANCE_4,)) + struct.pack("<I", offset - at)
            at = offset
        program += operations
    return _entry(struct.pack("<IQQ", place + 4 - common, address, size_bytes) + b"\0" + bytes(program))


def _entry(body: bytes) -> bytes:
    """Returns the entry with its length in front, padded to eight bytes by no-operations."""
    padding = -(4 + len(body)) % 8
    return struct.pack("<I", len(body) + padding) + body + b"\0" * padding


def _sleb(value: int) -> bytes:
    out = bytearray()
    while True:
        byte, value = value & 0x7F, value >> 7
        if value == (-1 if byte & 0x40 else 0):
            return bytes((*out, byte))
        out.append(byte | 0x80)


def _displaced_rows(plan: FunctionPlan, start: int, moves: Iterable[tuple[int, int]]) -> list[Any]:
    moved = {plan.site: start, **dict(moves)}
    pushed = of_image(plan.module.image).pushed_registers(plan.displaced)
    return [
        (moved[plan.site + offset] - start, register, cfa, pushed.get(offset, lib.NFP_PUSHED_NONE))
        for offset, register, cfa in plan.displaced_rows
        if plan.site + offset in moved
    ]


# ---- trampolines ----------------------------------------------------------------------------------------------------


ALIGNMENT_BYTES = 64
PIECE_MIN = 64  # functions per arena, where free memory is fragmented
DISPLACED_ROOM_BYTES = 128  # displaced instructions after relocation, and the jump back
SITE_BYTES_MAX = 32
# Words of stack arguments -> template.
COPY_SHAPES = {words: getattr(lib, f"NFP_SHAPE_COPY_{words}") for words in (2, 4, 8, 16, 32, 64)}
_Key = tuple[int, int, int, bytes]  # identity of a probe: site, template, module, displaced bytes


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One function to be probed.

    Attributes:
        plan: result of the analysis.
        shape: template, enum nfp_shape; NFP_SHAPE_CALL for the one of the plan's strategy.
        program: capture program index of a receive, transmit or drop function.
        return_mask: valid bits of a receive function's return value.
        gate: gate bits that enable the probe.
        snippet: code that captures a value at the entry (snippet.py), or b"".
        when: which return values mean that a receive function has received something, enum nfp_when.
        queue_argument: index of a receive function's argument with the polled queue; NO_ARGUMENT: none.
    """

    plan: FunctionPlan
    shape: int = 0
    program: int = 0
    return_mask: int = 0xFFFFFFFF
    gate: int = GATE_OUTER
    snippet: bytes = b""
    when: int = 0
    queue_argument: int = NO_ARGUMENT

    @property
    def template(self) -> int:
        """Template of the entry, enum nfp_shape."""
        if self.shape != lib.NFP_SHAPE_CALL:
            return self.shape
        if self.snippet:
            return int(lib.NFP_SHAPE_ENTER_VALUE if _is_relocated(self) else lib.NFP_SHAPE_CALL_VALUE)
        if self.plan.strategy == RELOCATED_BODY:
            return lib.NFP_SHAPE_ENTER
        if self.plan.strategy == ENTRY_ONLY:
            return lib.NFP_SHAPE_MARK
        if self.plan.argument_words:
            return int(next(shape for words, shape in COPY_SHAPES.items() if words >= self.plan.argument_words))
        if self.plan.has_frame_pointer:
            return lib.NFP_SHAPE_COPY_0
        return self.shape


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe ready to be armed: `id` is its function ID and its index in the probe table."""

    id: int
    request: ProbeRequest
    trampoline: int
    moves: tuple[tuple[int, int], ...]  # program counters inside the displaced instructions -> in their copy


@dataclass(frozen=True, slots=True)
class _Code:
    """A trampoline's bytes for one address, and its description for unwinders."""

    image: bytes
    entry: int  # offset of the code that the site jumps to
    moves: tuple[tuple[int, int], ...]
    describe: Callable[[Frames], None]


class Trampolines:
    """Creates trampolines for a session. All addresses are the target's."""

    def __init__(self, session: Session, target: Target) -> None:
        self._session = session
        self.arenas = Arenas(session, target)
        self.parts: list[CodePart] = []  # all code written by this session
        self._known: dict[_Key, int] | None = None
        self._own: set[int] = set()  # probe table entries written, or compared with the target, by this session
        self._target = target
        self._values = template_values(session)

    def make(self, requests: Sequence[ProbeRequest]) -> tuple[list[Probe], dict[str, int]]:
        """Writes a trampoline and a probe table entry for each request.

        Returns the probes, and the number of refused functions by reason (that an instruction cannot be moved is only
        found here).
        """
        probes: list[Probe] = []
        refused: dict[str, int] = {}
        by_module: dict[int, list[ProbeRequest]] = {}
        for request in requests:
            by_module.setdefault(request.plan.module.base, []).append(request)
        for group in by_module.values():
            made, reasons = self._make_near(group)
            probes += made
            for reason in reasons:
                refused[reason] = refused.get(reason, 0) + 1
        return probes, refused

    def _make_near(self, requests: list[ProbeRequest]) -> tuple[list[Probe], list[str]]:
        probes: list[Probe] = []
        reasons: list[str] = []
        fresh: list[tuple[ProbeRequest, _Key]] = []
        for request in requests:
            key = _key(request)
            known = self._find_known(request, key)
            if known is None:
                fresh.append((request, key))
            else:
                probes.append(known)
        if fresh:
            made, reasons = self._write_all(fresh)
            probes += made
        return probes, reasons

    def _write_all(
        self, requests: list[tuple[ProbeRequest, _Key]], in_pieces: bool = False
    ) -> tuple[list[Probe], list[str]]:
        """Writes them to one arena, or to several if the free memory near the module is fragmented."""
        need = sum(_room_for(request) for request, _ in requests) + FRAME_ROOM_BYTES
        need += object_room_bytes((request.plan.name, _symbols_of(request)) for request, _ in requests)
        try:
            # A file takes the code of one piece only; memory is filled up by the next.
            arena = self.arenas.near(requests[0][0].plan.module, need, in_file=not in_pieces)
        except NoRoomError as refusal:
            if len(requests) <= PIECE_MIN:
                return [], [refusal.sentence] * len(requests)
            middle = len(requests) // 2
            probes, reasons = self._write_all(requests[:middle], True)
            more, others = self._write_all(requests[middle:], True)
            return probes + more, reasons + others
        probes, reasons, frames = [], [], Frames()
        for request, key in requests:
            try:
                probes.append(self._write(arena, request, key, frames))
            except NfprobeError as refusal:
                reasons.append(refusal.sentence)
        self._register(arena, frames)
        return probes, reasons

    # ---- trampolines of earlier attaches -------------------------------------------------------------------

    def _find_known(self, request: ProbeRequest, key: _Key) -> Probe | None:
        if self._known is None:
            self._known = {}
            for index in range(self._session.probe_count):
                entry = self._session.probe(index)
                self._known[int(entry.site), int(entry.shape), int(entry.module), _old_bytes(entry)] = index
        found = self._known.get(key)
        if found is None:
            return None
        trampoline = int(self._session.probe(found).trampoline)
        if not self.arenas.holds(trampoline, request.plan.module):
            return None  # the table is in the target's memory
        start = trampoline - (_exits_bytes(_exits(request.plan)) if _is_relocated(request) else 0)
        try:
            code = self._code(request, start, found)
            if found not in self._own and not self._take_over(found, request, key, trampoline, start, code):
                return None
        except NfprobeError:
            return None
        return Probe(found, request, trampoline, code.moves)

    def _take_over(
        self, index: int, request: ProbeRequest, key: _Key, trampoline: int, start: int, code: _Code
    ) -> bool:
        """Returns whether the trampoline of an earlier attach is what it claims to be, byte for byte."""
        if index in self._session.patches.claimed or self._target.read(start, len(code.image)) != code.image:
            return False
        self._describe(index, request.plan, key, trampoline)
        return True

    # ---- writing -------------------------------------------------------------------------------------------

    def _write(self, arena: int, request: ProbeRequest, key: _Key, frames: Frames) -> Probe:
        entry = self.arenas.entry(arena)
        start = -(-int(entry.used) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        address = int(entry.address) + start
        index = self._session.probe_count
        if index >= PROBE_COUNT:
            raise NfprobeError("the probe table of this target is full")
        code = self._code(request, address, index)
        if start + len(code.image) > int(entry.bytes):
            raise NfprobeError("no room for trampolines")
        self._session.probe_count = index + 1
        self.arenas.write(arena, start, code.image)
        entry.used = start + len(code.image)
        frames.function = request.plan.name
        code.describe(frames)
        self._describe(index, request.plan, key, address + code.entry)
        return Probe(index, request, address + code.entry, code.moves)

    def _code(self, request: ProbeRequest, address: int, index: int) -> _Code:
        values = self._values
        values.function, values.program, values.gate = index, request.program, request.gate
        values.return_mask, values.when = request.return_mask, request.when
        values.queue_argument, values.snippet_bytes = request.queue_argument, len(request.snippet)
        ffi.memmove(values.snippet, request.snippet, len(request.snippet))
        return (_relocated_code if _is_relocated(request) else _displaced_code)(request, address, values)

    def _describe(self, index: int, plan: FunctionPlan, key: _Key, trampoline: int) -> None:
        entry = self._session.probe(index)
        entry.function = plan.address
        entry.trampoline = trampoline
        entry.site, entry.shape, entry.module, old_bytes = key
        entry.id = index
        entry.kind = lib.NFP_SITE_GOT if plan.is_slot else lib.NFP_SITE_CODE
        entry.length = len(old_bytes)
        entry.armed = 0
        ffi.memmove(entry.old_bytes, old_bytes, len(old_bytes))
        new_bytes = _site_code(plan, trampoline)
        ffi.memmove(entry.new_bytes, new_bytes, len(new_bytes))
        entry.island = plan.island
        if plan.island:
            island_new = of_image(plan.module.image).encode_jump(plan.island, trampoline)
            ffi.memmove(entry.island_old, plan.island_bytes, len(island_new))
            ffi.memmove(entry.island_new, island_new, len(island_new))
        self._session.patches.publish(index)
        self._own.add(index)
        if self._known is not None:
            self._known[key] = index

    def _register(self, arena: int, frames: Frames) -> None:
        self.parts += frames.parts
        rows = frames.encode()
        entry = self.arenas.entry(arena)
        start = -(-int(entry.used) // 8) * 8
        if not rows:
            return
        address = int(entry.address) + start
        described = build_object(frames.parts, rows, address)
        if start + len(described.image) > int(entry.bytes):
            return
        self.arenas.write(arena, start, described.image)
        entry.used = start + len(described.image)
        self.arenas.finish(arena, described, start)
        publish(self._session, address, described)


# ---- code for one address -------------------------------------------------------------------------------------------


def _displaced_code(request: ProbeRequest, address: int, values: Any) -> _Code:
    plan, shape = request.plan, request.template
    template = fill_template(shape, values)
    behind = address + len(template)
    displaced, offsets = relocate_displaced(plan, behind)
    moves = tuple(
        (plan.site + old, behind + new) for old, new in zip(plan.displaced_offsets, offsets, strict=True) if old > 0
    )

    def describe(frames: Frames) -> None:
        frames.add(shape, address, len(displaced), plan, moves)

    return _Code(template + displaced, 0, moves, describe)


def _relocated_code(request: ProbeRequest, address: int, values: Any) -> _Code:
    plan = request.plan
    base, architecture = plan.module.base, of_image(plan.module.image)
    exits = _exits(plan)
    exit_template = fill_template(lib.NFP_SHAPE_EXIT, values)
    image = bytearray()
    places: list[tuple[int, int]] = []
    for way_out in exits:
        place = address + len(image)
        last = architecture.encode_exit(way_out, base, place + len(exit_template))
        image += (exit_template + last).ljust(_exit_bytes(way_out), architecture.trap)
        places.append((place, len(last)))
    image += architecture.trap * (_exits_bytes(exits) - len(image))
    entry = len(image)
    enter = int(lib.NFP_SHAPE_ENTER_VALUE if request.snippet else lib.NFP_SHAPE_ENTER)
    image += fill_template(enter, values)
    start = address + len(image)
    scan = scan_module(plan.module.image)
    body = architecture.build_body(scan, scan.index_of(plan.offset), base, start, lambda number: places[number][0])
    moves = _moves_into(plan, start, body)

    def describe(frames: Frames) -> None:
        for place, last_bytes in places:
            frames.add(lib.NFP_SHAPE_EXIT, place, last_bytes)
        frames.add(enter, address + entry, 0)
        frames.add_body(start, body)

    return _Code(bytes(image) + body.code, entry, moves, describe)


def _moves_into(plan: FunctionPlan, start: int, body: Body) -> tuple[tuple[int, int], ...]:
    site = plan.site - plan.module.base
    return tuple(
        (plan.site + old, start + body.places[site + old])
        for old in plan.displaced_offsets
        if old > 0 and site + old in body.places
    )


def _exits(plan: FunctionPlan) -> list[Exit]:
    scan = scan_module(plan.module.image)
    return of_image(scan.image).find_exits(scan, scan.index_of(plan.offset))


def _exit_bytes(way_out: Exit) -> int:
    return template_bytes(lib.NFP_SHAPE_EXIT) + way_out.room_bytes


def _exits_bytes(exits: Iterable[Exit]) -> int:
    return -(-sum(_exit_bytes(way_out) for way_out in exits) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _is_relocated(request: ProbeRequest) -> bool:
    return request.plan.strategy == RELOCATED_BODY


def _symbols_of(request: ProbeRequest) -> int:
    """Returns the parts of a trampoline visible to debuggers: probe, and displaced instructions or the parts of a
    body.
    """
    return 1 + (PARTS_MAX + 1 if _is_relocated(request) else 1)


def _room_for(request: ProbeRequest) -> int:
    room = template_bytes(request.template) + ALIGNMENT_BYTES + FRAME_ROOM_BYTES
    if not _is_relocated(request):
        return room + DISPLACED_ROOM_BYTES
    exits = _exits(request.plan)
    scan = scan_module(request.plan.module.image)
    members = of_image(scan.image).find_members(scan, scan.index_of(request.plan.offset))
    body = sum(2 * scan.frames[member].size + 64 for member in members)
    rows = body_room_bytes([scan.frames[member] for member in members])
    return room + _exits_bytes(exits) + FRAME_ROOM_BYTES * len(exits) + body + rows


def _site_code(plan: FunctionPlan, trampoline: int) -> bytes:
    if plan.is_slot:
        return struct.pack("<Q", trampoline)
    return of_image(plan.module.image).encode_site(plan.site, len(plan.site_bytes), plan.island, trampoline)


def _old_bytes(entry: Any) -> bytes:
    return bytes(ffi.buffer(entry.old_bytes, SITE_BYTES_MAX))[: min(int(entry.length), SITE_BYTES_MAX)]


def _key(request: ProbeRequest) -> _Key:
    plan = request.plan
    return plan.site, _shape_key(request), _module_hash(request), plan.site_bytes


def _shape_key(request: ProbeRequest) -> int:
    """Returns what a trampoline depends on besides its function, in one byte of the probe table."""
    gate = 1 if request.gate == GATE_OUTER else 2
    mask = 0 if request.return_mask == 0xFFFFFFFF else 1
    return request.template | gate << 4 | mask << 6


def _module_hash(request: ProbeRequest) -> int:
    module = request.plan.module
    in_code = request.snippet, request.program, request.return_mask, request.when, request.queue_argument
    return _hash_module(module.build_id, module.path, module.base, request.plan.strategy, in_code)


@lru_cache(maxsize=1024)
def _hash_module(
    build_id: str, path: str, base: int, strategy: str | None, in_code: tuple[bytes, int, int, int, int]
) -> int:
    snippet, *numbers = in_code
    text = "|".join((build_id, path, f"{base:#x}", str(strategy), snippet.hex(), *map(str, numbers)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
