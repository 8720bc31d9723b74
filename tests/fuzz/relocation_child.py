# SPDX-License-Identifier: Apache-2.0
"""Runs the functions of a library before and after they were moved, in this process, and says what differs.

    python relocation_child.py LIBRARY STRATEGY SEED

Each function is called as it is; then its patch site is made to lead to a stub that counts entries, behind
which its copied body (or its displaced instructions) stands, with a stub that counts exits on each way out.
Registers, flags, memory and calls must be the same. The stubs keep all registers and flags. A crash of this
process is a finding of the test that started it. Prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import struct
import sys
from pathlib import Path

from otel_nfprobe.arch.branches import scan_module
from otel_nfprobe.arch.x86_64.body import build_body, encode_exit, find_exits
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes.analysis import FunctionPlan, plan_functions, relocate_displaced

ROOM_BYTES = 1 << 20
COUNTS_BYTES = 4096  # at the beginning of the room: saved rax, then entries and exits of each function
STUB_BYTES = 32  # 7 + 7 + 4 + 7 + 7
DATA_BYTES, CALLS_BYTES = 1024, 128 * 8
FUEL = 60
DISTANCES = (64 << 20, 1 << 30, 1900 << 20)
EXECUTABLE = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
MAP_FIXED_NOREPLACE = 0x100000

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Room:
    """Executable memory some distance from the library: counters, then code."""

    def __init__(self, near: int, chance: random.Random) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
        for _ in range(64):
            wanted = (near + chance.choice((-1, 1)) * chance.choice(DISTANCES) + chance.randrange(1 << 24)) & -4096
            self.address = libc.mmap(wanted, ROOM_BYTES, EXECUTABLE, flags, -1, 0)
            if self.address == wanted:
                break
        else:
            raise MemoryError("no room near the library")
        self.used = self.address + COUNTS_BYTES

    def counter(self, index: int) -> int:
        return self.address + 8 + 8 * index

    def count(self, index: int) -> int:
        return int(ctypes.c_uint64.from_address(self.counter(index)).value)

    def clear(self) -> None:
        ctypes.memset(self.address, 0, COUNTS_BYTES)

    def stub(self, place: int, index: int) -> bytes:
        """Adds one to a counter; all registers and flags are kept."""
        saved, counter = self.address, self.counter(index)
        code = b""
        for head, operand in (
            (b"\x48\x89\x05", saved),  # mov %rax, saved
            (b"\x48\x8b\x05", counter),  # mov counter, %rax
            (b"\x48\x8d\x40\x01", 0),  # lea 1(%rax), %rax
            (b"\x48\x89\x05", counter),  # mov %rax, counter
            (b"\x48\x8b\x05", saved),  # mov saved, %rax
        ):
            code += head
            if operand:
                code += struct.pack("<i", operand - (place + len(code) + 4))
        assert len(code) == STUB_BYTES
        return code

    def put(self, code: bytes) -> int:
        address = self.used
        ctypes.memmove(address, code, len(code))
        self.used = (address + len(code) + 15) & -16
        assert self.used < self.address + ROOM_BYTES
        return address


def _copy_body(room: Room, plan: FunctionPlan, base: int, index: int) -> int:
    """Puts exits, the entry stub and the body into the room. Returns what the site jumps to."""
    scan = scan_module(plan.module.image)
    member = scan.index_of(plan.offset)
    exits = []
    for way_out in find_exits(scan, member):
        place = room.used
        exits.append(place)
        room.put(room.stub(place, 2 * index + 1) + encode_exit(way_out, base, place + STUB_BYTES))
    entry = room.used
    body = build_body(scan, member, base, entry + STUB_BYTES, exits.__getitem__)
    room.put(room.stub(entry, 2 * index) + body.code)
    return entry


def _displace(room: Room, plan: FunctionPlan, index: int) -> int:
    entry = room.used
    code, _ = relocate_displaced(plan, entry + STUB_BYTES)
    return room.put(room.stub(entry, 2 * index) + code)


def _write(address: int, code: bytes) -> None:
    page = address & -4096
    assert libc.mprotect(page, 8192, EXECUTABLE) == 0
    ctypes.memmove(address, code, len(code))


def _patch(plan: FunctionPlan, entry: int) -> None:
    if plan.island:
        _write(plan.island, b"\xe9" + struct.pack("<i", entry - (plan.island + 5)))
        _write(plan.site, b"\xeb" + struct.pack("<b", plan.island - (plan.site + 2)))
        return
    _write(plan.site, b"\xe9" + struct.pack("<i", entry - (plan.site + 5)) + b"\xcc" * (len(plan.site_bytes) - 5))


class Library:
    """The library, and calls of its functions from a known state."""

    def __init__(self, path: str, seed: int) -> None:
        self.dll = ctypes.CDLL(path)
        self.seed = seed
        self.names = []
        while hasattr(self.dll, f"start{len(self.names)}"):
            self.names.append(f"start{len(self.names)}")
        self.data = ctypes.addressof((ctypes.c_char * DATA_BYTES).in_dll(self.dll, "data"))
        self.calls = ctypes.addressof((ctypes.c_char * CALLS_BYTES).in_dll(self.dll, "calls"))
        self.fuel = ctypes.c_uint64.in_dll(self.dll, "fuel")

    def call(self, index: int) -> tuple[bytes, bytes, list[int]]:
        """Registers and flags, memory, and calls by function after one call."""
        chance = random.Random(f"{self.seed}.{index}")
        ctypes.memmove(self.data, chance.randbytes(DATA_BYTES), DATA_BYTES)
        ctypes.memset(self.calls, 0, CALLS_BYTES)
        self.fuel.value = FUEL
        registers = ctypes.create_string_buffer(chance.randbytes(256), 256)
        address = ctypes.c_uint64.in_dll(self.dll, self.names[index]).value
        self.dll.invoke(registers, ctypes.c_void_p(address))
        calls = list(struct.unpack("<128Q", ctypes.string_at(self.calls, CALLS_BYTES)))
        calls[index] += 1
        return registers.raw, ctypes.string_at(self.data, DATA_BYTES), calls


def main(path: str, strategy: str, seed: int) -> dict[str, object]:
    chance = random.Random(seed)
    library = Library(path, seed)
    module = Module.from_file(path)
    exported = module.image.exports
    base = ctypes.cast(library.dll.invoke, ctypes.c_void_p).value - exported["invoke"].address  # type: ignore[operator]
    module.base = base
    before = [library.call(index) for index in range(len(library.names))]
    room = Room(base, chance)
    moved: dict[int, FunctionPlan] = {}
    reasons: dict[str, int] = {}
    for plan in plan_functions(functions_of(module), None, strategy):
        number = plan.name[1:]
        if not number.isdigit() or plan.is_part:
            continue
        try:
            if plan.strategy is None:
                raise NfprobeError(plan.reason)
            used = room.used
            relocated = strategy == "relocated"
            entry = _copy_body(room, plan, base, int(number)) if relocated else _displace(room, plan, int(number))
            assert used < room.used
        except NfprobeError as refusal:
            reasons[refusal.sentence] = reasons.get(refusal.sentence, 0) + 1
            continue
        moved[int(number)] = plan
        _patch(plan, entry)
    problems = []
    for index, expected in enumerate(before):
        room.clear()
        found = library.call(index)
        for what, old, new in zip(("registers", "memory", "calls"), expected, found, strict=True):
            if old != new:
                problems.append(f"f{index}: {what} differ: {old!r} {new!r}")
        for number in moved:
            entries, exits = room.count(2 * number), room.count(2 * number + 1)
            if entries != expected[2][number]:
                problems.append(f"f{index}: {entries} entries of f{number}, not {expected[2][number]}")
            if strategy == "relocated" and entries != exits:
                problems.append(f"f{index}: {entries} entries and {exits} exits of f{number}")
    return {"moved": len(moved), "reasons": reasons, "problems": problems, "names": len(library.names)}


if __name__ == "__main__":
    print(json.dumps(main(str(Path(sys.argv[1]).resolve()), sys.argv[2], int(sys.argv[3]))))
