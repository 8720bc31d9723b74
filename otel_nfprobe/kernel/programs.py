# SPDX-License-Identifier: Apache-2.0
"""The two BPF programs of a measured kernel function. Pure.

    entry: is it our process? -> starts[key] = now
    exit:  is it our process? -> now - starts[key], and the thread, into the ring

The key of a function call is the address at which the kernel keeps its arguments for programs: the same at entry and
exit, and distinct for each concurrent call. So recursive calls and calls inside interrupts pair exactly, and entries
whose exit never came are overwritten. The key of a system call is its thread, which makes one at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

# ---- assembler ------------------------------------------------------------------------------------------------------
# Instructions of the kernel's BPF machine, put one behind the other, with labels. Pure.
#
# An instruction is 8 bytes: operation, two registers, an offset, a constant. Jumps go forward, to a label.


_INSTRUCTION = struct.Struct("<BBhi")
FRAME = 10  # register of the frame pointer; 0: results, 1 to 5: arguments, 6 to 9: preserved across calls

MOVE, ADD, SUBTRACT = 0xB7, 0x07, 0x1F
LOAD_LONG, LOAD_WORD, STORE_LONG, STORE_CONSTANT, ATOMIC_LONG = 0x79, 0x61, 0x7B, 0x7A, 0xDB
WIDE, CALL, EXIT = 0x18, 0x85, 0x95
JUMP_EQUAL, JUMP_DIFFERENT, JUMP_DIFFERENT_WORD = 0x15, 0x55, 0x56
FROM_REGISTER = 0x08
MAP, MAP_VALUE = 1, 2  # meaning of a wide constant
WORD_MASK = 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - (1 << 32) if word & 0x80000000 else word


@dataclass
class Assembler:
    """Collects instructions."""

    _code: list[tuple[int, int, int, int]] = field(default_factory=list)
    _jumps: list[tuple[int, str]] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)

    def _add(self, operation: int, to: int = 0, source: int = 0, distance: int = 0, constant: int = 0) -> None:
        self._code.append((operation, source << 4 | to, distance, _signed(constant & WORD_MASK)))

    def move(self, to: int, constant: int) -> None:
        """Loads a constant of 32 bits, sign-extended."""
        self._add(MOVE, to, constant=constant)

    def copy(self, to: int, source: int) -> None:
        """Copies a register."""
        self._add(MOVE | FROM_REGISTER, to, source)

    def address(self, to: int, offset: int) -> None:
        """Loads the address of a stack slot."""
        self.copy(to, FRAME)
        self._add(ADD, to, constant=offset)

    def subtract(self, to: int, source: int) -> None:
        """Subtracts a register from another."""
        self._add(SUBTRACT, to, source)

    def wide(self, to: int, number: int, kind: int = 0) -> None:
        """Loads a constant of 64 bits; for MAP and MAP_VALUE, the descriptor of a map."""
        self._add(WIDE, to, kind, constant=number)
        self._add(0, constant=0 if kind else number >> 32)

    def load(self, to: int, base: int, offset: int, is_word: bool = False) -> None:
        """Loads from memory."""
        self._add(LOAD_WORD if is_word else LOAD_LONG, to, base, offset)

    def store(self, base: int, offset: int, source: int) -> None:
        """Stores a register of 64 bits."""
        self._add(STORE_LONG, base, source, offset)

    def clear(self, base: int, offset: int) -> None:
        """Stores 64 bits of 0."""
        self._add(STORE_CONSTANT, base, distance=offset)

    def count(self, map_descriptor: int, offset: int) -> None:
        """Adds 1 to a word of a map's only value. Clobbers registers 1 and 2."""
        self.wide(1, map_descriptor, MAP_VALUE)
        self.move(2, 1)
        self._add(ATOMIC_LONG, 1, 2, offset)

    def call(self, helper: int) -> None:
        """Calls a BPF helper function."""
        self._add(CALL, constant=helper)

    def jump(self, label: str, operation: int, register: int, constant: int) -> None:
        """Jumps if the comparison with a constant holds."""
        self._jumps.append((len(self._code), label))
        self._add(operation, register, constant=constant)

    def label(self, name: str) -> None:
        """Defines the target of jumps to that name."""
        self._labels[name] = len(self._code)

    def leave(self) -> None:
        """Exits the program with 0."""
        self.move(0, 0)
        self._add(EXIT)

    def assemble(self) -> bytes:
        """Returns the program."""
        code = list(self._code)
        for place, label in self._jumps:
            operation, registers, _, constant = code[place]
            code[place] = (operation, registers, self._labels[label] - place - 1, constant)
        return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


# ---- programs -------------------------------------------------------------------------------------------------------


# BPF helper functions (enum bpf_func_id).
LOOKUP, UPDATE, DELETE, NOW_NS, CURRENT, CURRENT_IN_NAMESPACE, OUTPUT = 1, 2, 3, 5, 14, 120, 130
NO_WAKEUP = 1  # for OUTPUT: the reader polls
RECORD_BYTES = 16

# Offsets of the words in the counts' value.
ENTERED, LEFT, LOST, CROWDED = 0, 8, 16, 24
COUNT_BYTES = 32

# Offsets in the stack frame.
_WHO, _WHO_PROCESS, _KEY, _START, _DURATION, _THREAD = -8, -4, -16, -24, -40, -32


@dataclass(frozen=True, slots=True)
class Whose:
    """Whose calls are measured.

    Attributes:
        pid: in the process's own PID namespace.
        device, inode: of its PID namespace, /proc/PID/ns/pid, as in the kernel.
    """

    pid: int
    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Maps:
    """Descriptors of the maps shared by both programs."""

    starts: int
    counts: int
    ring: int


def write_entry(maps: Maps, whose: Whose | None, system_call: int | None = None) -> bytes:
    """Assembles the program at the entry.

    Args:
        whose: None: all processes.
        system_call: its number, for the tracepoint sys_enter; None: for a function's entry.
    """
    code = Assembler()
    code.copy(6, 1)
    if system_call is not None:
        code.load(1, 6, 8)  # arguments of sys_enter: registers, number
        code.jump("out", JUMP_DIFFERENT, 1, system_call)
    _filter(code, whose)
    code.store(10, _KEY, 6 if system_call is None else 9)
    code.clear(10, _START)
    _point(code, maps.starts, _KEY)
    code.address(3, _START)
    code.move(4, 0)
    code.call(UPDATE)
    code.jump("crowded", JUMP_DIFFERENT, 0, 0)
    _point(code, maps.starts, _KEY)
    code.call(LOOKUP)
    code.jump("out", JUMP_EQUAL, 0, 0)
    code.copy(7, 0)
    code.count(maps.counts, ENTERED)
    code.call(NOW_NS)
    code.store(7, 0, 0)
    code.leave()
    code.label("crowded")
    code.count(maps.counts, CROWDED)
    code.label("out")
    code.leave()
    return code.assemble()


def write_exit(maps: Maps, whose: Whose | None, system_call: int | None = None) -> bytes:
    """Assembles the program at the exit; for a system call, at the tracepoint sys_exit."""
    code = Assembler()
    code.copy(6, 1)
    _filter(code, whose)
    code.call(NOW_NS)
    code.copy(7, 0)
    code.store(10, _KEY, 6 if system_call is None else 9)
    _point(code, maps.starts, _KEY)
    code.call(LOOKUP)
    code.jump("out", JUMP_EQUAL, 0, 0)  # another system call, or entered before the probes were attached
    code.load(8, 0, 0)
    code.subtract(7, 8)
    code.store(10, _DURATION, 7)
    code.store(10, _THREAD, 9)
    _point(code, maps.starts, _KEY)
    code.call(DELETE)
    code.count(maps.counts, LEFT)
    _point(code, maps.ring, _DURATION)
    code.move(3, RECORD_BYTES)
    code.move(4, NO_WAKEUP)
    code.call(OUTPUT)
    code.jump("out", JUMP_EQUAL, 0, 0)
    code.count(maps.counts, LOST)
    code.label("out")
    code.leave()
    return code.assemble()


def _filter(code: Assembler, whose: Whose | None) -> None:
    """Skips other processes; leaves the thread ID in register 9."""
    if whose is None:
        code.call(CURRENT)
        code.copy(9, 0)
        return
    code.clear(10, _WHO)
    code.wide(1, whose.device)
    code.wide(2, whose.inode)
    code.address(3, _WHO)
    code.move(4, 8)
    code.call(CURRENT_IN_NAMESPACE)
    code.jump("out", JUMP_DIFFERENT, 0, 0)  # it is in another PID namespace
    code.load(1, 10, _WHO_PROCESS, is_word=True)
    code.jump("out", JUMP_DIFFERENT_WORD, 1, whose.pid)
    code.load(9, 10, _WHO, is_word=True)


def _point(code: Assembler, map_descriptor: int, place: int) -> None:
    """Loads a map and a stack slot as the first two arguments."""
    code.wide(1, map_descriptor, MAP)
    code.address(2, place)
