# SPDX-License-Identifier: Apache-2.0
"""Trampolines: chooses where they lie, writes them through the monitor's own mapping, describes them to unwinders.

An arena is a part of the session's memory file that the target maps read-execute within reach of one module.
Only the monitor maps it writable. Trampolines are never freed while the target lives: a thread may be inside
one. The same function gets the same trampoline again at a later attach.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from iced_x86 import Decoder, Mnemonic, Register

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.analysis import FunctionPlan, relocate_displaced
from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.session import (
    ARENA_BYTES,
    ARENA_OFFSET,
    GATE_OUTER,
    PROBE_COUNT,
    Session,
)
from otel_nfprobe.target import Mapping, Target

REACH_BYTES = (2 << 30) - (64 << 20)  # of a 32-bit displacement, with room for the module's own size
GUARD_BYTES = 64 << 10
ARENA_STEP_BYTES = 1 << 20
ARENA_COUNT = 64
ALIGNMENT_BYTES = 64
DISPLACED_ROOM_BYTES = 128  # displaced instructions after relocation, and the jump back
FRAME_ROOM_BYTES = 512
LOWEST_ADDRESS = 1 << 20
JUMP_BYTES = 5
SITE_BYTES_MAX = 32
PRESERVED = {  # registers that a function restores for its caller, with their DWARF numbers
    Register.RBX: 3,
    Register.RBP: 6,
    Register.R12: 12,
    Register.R13: 13,
    Register.R14: 14,
    Register.R15: 15,
}


@dataclass(frozen=True, slots=True)
class ProbeRequest:
    """One function to be probed.

    Attributes:
        plan: what the analysis found.
        shape: template, enum nfp_shape.
        program: capture program index of a receive, transmit or drop function.
        return_mask: valid bits of a receive function's return value.
        gate: gate bits that open the probe.
    """

    plan: FunctionPlan
    shape: int = 0
    program: int = 0
    return_mask: int = 0xFFFFFFFF
    gate: int = GATE_OUTER


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe that is ready to be armed: `id` is its function id and its index in the probe table."""

    id: int
    request: ProbeRequest
    trampoline: int
    moves: tuple[tuple[int, int], ...]  # program counters inside the displaced instructions -> in their copy


class Trampolines:
    """Makes trampolines for a session. All addresses are the target's."""

    def __init__(self, session: Session, target: Target) -> None:
        self._session = session
        self._target = target
        self._mapped: dict[int, Any] = {}
        self._known: dict[tuple[int, int, int, bytes], int] | None = None

    def make(self, requests: Sequence[ProbeRequest]) -> tuple[list[Probe], dict[str, int]]:
        """Writes a trampoline and a probe table entry for each request.

        Returns the probes, and the number of refused functions by reason (a displaced instruction that
        cannot be moved is only found here).
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
        fresh: list[ProbeRequest] = []
        for request in requests:
            known = self._find_known(request)
            if known is None:
                fresh.append(request)
            else:
                probes.append(known)
        if not fresh:
            return probes, reasons
        need = sum(self._room_for(request) for request in fresh) + FRAME_ROOM_BYTES * (len(fresh) + 1)
        arena = self._arena_near(fresh[0].plan, need)
        frames = _Frames()
        for request in fresh:
            try:
                probes.append(self._write(arena, request, frames))
            except NfprobeError as refusal:
                reasons.append(refusal.sentence)
        self._register(arena, frames)
        return probes, reasons

    def _room_for(self, request: ProbeRequest) -> int:
        return int(lib.nfp_trampoline_bytes(request.shape)) + DISPLACED_ROOM_BYTES + ALIGNMENT_BYTES

    # ---- trampolines of earlier attaches -------------------------------------------------------------------

    def _find_known(self, request: ProbeRequest) -> Probe | None:
        if self._known is None:
            self._known = {}
            for index in range(self._session.probe_count):
                entry = self._session.probe(index)
                key = (int(entry.site), int(entry.shape), int(entry.module), _old_bytes(entry))
                self._known[key] = index
        plan = request.plan
        found = self._known.get((plan.site, _shape_key(request), _module_hash(plan), plan.site_bytes))
        if found is None:
            return None
        entry = self._session.probe(found)
        trampoline = int(entry.trampoline)
        _, moves = self._displaced(plan, trampoline + int(lib.nfp_trampoline_bytes(request.shape)))
        return Probe(found, request, trampoline, moves)

    # ---- writing -------------------------------------------------------------------------------------------

    def _displaced(self, plan: FunctionPlan, address: int) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        code, offsets = relocate_displaced(plan, address)
        moves = tuple(
            (plan.site + old, address + new)
            for old, new in zip(plan.displaced_offsets, offsets, strict=True)
            if old > 0
        )
        return code, moves

    def _write(self, arena: int, request: ProbeRequest, frames: _Frames) -> Probe:
        plan = request.plan
        entry = self._session.header.arena[arena]
        start = -(-int(entry.used) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        address = int(entry.address) + start
        template_bytes = int(lib.nfp_trampoline_bytes(request.shape))
        displaced, moves = self._displaced(plan, address + template_bytes)
        if start + template_bytes + len(displaced) > int(entry.bytes):
            raise NfprobeError("no room for trampolines")
        index = self._new_index()
        values = ffi.new(
            "struct nfp_trampoline *",
            {
                "tls_offset": int(ffi.cast("int32_t", self._session.header.tls_offset)),
                "function": index,
                "program": request.program,
                "return_mask": request.return_mask,
                "gate": request.gate,
            },
        )
        view = self._mapping(arena)
        target = ffi.cast("uint8_t *", ffi.from_buffer(view, require_writable=True)) + start
        lib.nfp_trampoline_write(request.shape, values, target, int(entry.bytes) - start)
        view[start + template_bytes : start + template_bytes + len(displaced)] = displaced
        entry.used = start + template_bytes + len(displaced)
        frames.add(request.shape, address, len(displaced), plan, moves)
        self._describe(index, request, address)
        return Probe(index, request, address, moves)

    def _new_index(self) -> int:
        index = int(self._session.header.probes)
        if index >= PROBE_COUNT:
            raise NfprobeError("the probe table of this target is full")
        self._session.header.probes = index + 1
        return index

    def _describe(self, index: int, request: ProbeRequest, trampoline: int) -> None:
        plan = request.plan
        entry = self._session.probe(index)
        entry.function = plan.address
        entry.site = plan.site
        entry.trampoline = trampoline
        entry.module = _module_hash(plan)
        entry.id = index
        entry.kind = lib.NFP_SITE_GOT if plan.is_slot else lib.NFP_SITE_CODE
        entry.length = len(plan.site_bytes)
        entry.armed = 0
        entry.shape = _shape_key(request)
        ffi.buffer(entry.old_bytes, SITE_BYTES_MAX)[: len(plan.site_bytes)] = plan.site_bytes
        new_bytes = _site_code(plan, trampoline)
        ffi.buffer(entry.new_bytes, SITE_BYTES_MAX)[: len(new_bytes)] = new_bytes
        if self._known is not None:
            self._known[(plan.site, _shape_key(request), _module_hash(plan), plan.site_bytes)] = index

    def _mapping(self, arena: int) -> Any:
        if arena not in self._mapped:
            entry = self._session.header.arena[arena]
            self._mapped[arena] = self._session.map_arena(int(entry.offset), int(entry.bytes))
        return self._mapped[arena]

    def _register(self, arena: int, frames: _Frames) -> None:
        rows = frames.encode()
        entry = self._session.header.arena[arena]
        start = -(-int(entry.used) // 8) * 8
        if not rows or start + len(rows) > int(entry.bytes):
            return
        self._mapping(arena)[start : start + len(rows)] = rows
        entry.used = start + len(rows)
        self._session.ask(lib.NFP_COMMAND_REGISTER_FRAMES, int(entry.address) + start)

    # ---- arenas --------------------------------------------------------------------------------------------

    def _arena_near(self, plan: FunctionPlan, size_bytes: int) -> int:
        header = self._session.header
        low, high = plan.module.low, plan.module.high
        for index in range(min(int(header.arenas), ARENA_COUNT)):
            arena = header.arena[index]
            fits = int(arena.used) + size_bytes <= int(arena.bytes)
            if fits and _within_reach(int(arena.address), int(arena.bytes), low, high):
                return index
        return self._new_arena(low, high, -(-size_bytes // ARENA_STEP_BYTES) * ARENA_STEP_BYTES)

    def _new_arena(self, low: int, high: int, size_bytes: int) -> int:
        header = self._session.header
        index, offset = int(header.arenas), int(header.arena_used)
        if index >= ARENA_COUNT or offset + size_bytes > ARENA_BYTES:
            raise NfprobeError(
                "The trampoline memory of this target is used up.", "nfprobe attach PID --functions FEWER"
            )
        for address in find_gaps(self._target.maps(), low, high, size_bytes):
            result = self._session.ask(lib.NFP_COMMAND_MAP_ARENA, address, ARENA_OFFSET + offset, size_bytes)
            if result == 0:
                header.arena_used = offset + size_bytes
                header.arena[index].address = address
                header.arena[index].offset = ARENA_OFFSET + offset
                header.arena[index].bytes = size_bytes
                header.arena[index].used = 0
                header.arenas = index + 1
                return index
            if result != -errno.EEXIST:
                raise NfprobeError(
                    f"The target cannot map executable memory for trampolines: {os.strerror(-result)}.",
                    f"nfprobe doctor {self._target.pid}",
                )
        raise NfprobeError(
            "There is no free memory within 2 GiB of a module for its trampolines.",
            f"nfprobe functions {self._target.pid}",
        )


class _Frames:
    """Unwind rows (.eh_frame) of the trampolines of one arena."""

    def __init__(self) -> None:
        self._room = ffi.new("uint8_t[]", FRAME_ROOM_BYTES)
        self._rows = bytearray(self._take(lib.nfp_frame_common_write(self._room, FRAME_ROOM_BYTES)))
        self._empty = True

    def _take(self, size_bytes: int) -> bytes:
        return bytes(ffi.buffer(self._room, size_bytes))

    def add(
        self,
        shape: int,
        address: int,
        displaced_bytes: int,
        plan: FunctionPlan,
        moves: tuple[tuple[int, int], ...],
    ) -> None:
        start = address + int(lib.nfp_trampoline_bytes(shape))
        moved = {plan.site: start, **dict(moves)}
        pushed = _pushes(plan.displaced)
        rows = [
            (moved[plan.site + offset] - start, register, cfa, pushed.get(offset, lib.NFP_PUSHED_NONE))
            for offset, register, cfa in plan.displaced_rows
            if plan.site + offset in moved
        ]
        array = ffi.new("struct nfp_cfa_row[]", rows) if rows else ffi.NULL
        size = lib.nfp_frame_write(
            shape, address, displaced_bytes, array, len(rows), len(self._rows), self._room, FRAME_ROOM_BYTES
        )
        self._rows += self._take(size)
        self._empty = False

    def encode(self) -> bytes:
        """The rows with their end mark; empty when there is nothing to register."""
        return b"" if self._empty else bytes(self._rows) + b"\0\0\0\0"


def _pushes(code: bytes) -> dict[int, int]:
    """DWARF numbers of the preserved registers that instructions push, by the offset behind the instruction.

    An exception may pass through a call among the displaced instructions: callers want these registers back.
    """
    return {
        int(instruction.next_ip): PRESERVED[instruction.op0_register]
        for instruction in Decoder(64, code)
        if instruction.mnemonic == Mnemonic.PUSH and instruction.op0_register in PRESERVED
    }


def find_gaps(maps: Sequence[Mapping], low: int, high: int, size_bytes: int) -> list[int]:
    """Addresses where `size_bytes` are free within reach of [low, high), the nearest first.

    Keeps away from the end of the heap and the lower end of a stack: both grow.
    """
    found: set[int] = set()
    before_end, after_heap = LOWEST_ADDRESS, False
    for mapping in sorted(maps, key=lambda mapping: mapping.start):
        gap_low, gap_high = before_end + GUARD_BYTES, mapping.start - GUARD_BYTES - size_bytes
        wanted = []
        if not after_heap:
            wanted.append(gap_low)
        if not mapping.path.startswith("[stack"):
            wanted.append(gap_high)
        found.update(address & -GUARD_BYTES for address in wanted if gap_low <= address & -GUARD_BYTES <= gap_high)
        before_end, after_heap = max(before_end, mapping.end), mapping.path == "[heap]"
    reachable = [address for address in found if _within_reach(address, size_bytes, low, high)]
    return sorted(reachable, key=lambda address: abs(address - low))


def _within_reach(address: int, size_bytes: int, low: int, high: int) -> bool:
    return max(high, address + size_bytes) - min(low, address) < REACH_BYTES


def _site_code(plan: FunctionPlan, trampoline: int) -> bytes:
    if plan.is_slot:
        return struct.pack("<Q", trampoline)
    jump = b"\xe9" + struct.pack("<i", trampoline - (plan.site + JUMP_BYTES))
    return jump + b"\xcc" * (len(plan.site_bytes) - JUMP_BYTES)


def _old_bytes(entry: Any) -> bytes:
    return bytes(ffi.buffer(entry.old_bytes, SITE_BYTES_MAX))[: min(int(entry.length), SITE_BYTES_MAX)]


def _shape_key(request: ProbeRequest) -> int:
    """What a trampoline depends on besides its function, in one byte of the probe table."""
    gate = 1 if request.gate == GATE_OUTER else 2
    mask = 0 if request.return_mask == 0xFFFFFFFF else 1
    return request.shape | gate << 2 | mask << 4


def _module_hash(plan: FunctionPlan) -> int:
    text = f"{plan.module.build_id}|{plan.module.path}|{plan.module.base:#x}|{plan.strategy}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
