# SPDX-License-Identifier: Apache-2.0
"""Runs a seccomp filter, a classic BPF program, on one system call.

Supports the instructions that the kernel accepts in a filter (seccomp_check_filter). The program comes from a target:
every access is checked, and it can only jump forward.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from otel_nfprobe.base.processors import HOST

DATA = struct.Struct("<IIQ6Q")  # struct seccomp_data
WORD_MASK = 0xFFFFFFFF
SCRATCH_WORDS = 16

LOAD, LOAD_INDEX, STORE, STORE_INDEX, ARITHMETIC, JUMP, RETURN, MOVE = range(8)
MODE_IMMEDIATE, MODE_DATA, MODE_SCRATCH, MODE_LENGTH = 0x00, 0x20, 0x60, 0x80
FROM_INDEX = 0x08  # the operand is the index register instead of the constant
RETURN_ACCUMULATOR = 0x10
TO_ACCUMULATOR = 0x80
NEGATE = 0x80

OPERATIONS: dict[int, Callable[[int, int], int]] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x20: operator.mul,
    0x40: operator.or_,
    0x50: operator.and_,
    0x60: lambda a, b: a << (b & 31),
    0x70: lambda a, b: a >> (b & 31),
    0xA0: operator.xor,
}
DIVIDE = 0x30
COMPARISONS: dict[int, Callable[[int, int], bool]] = {
    0x10: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: lambda a, b: a & b != 0,
}
JUMP_ALWAYS = 0x00


class FilterError(Exception):
    """The kernel would not have accepted the program."""


class Instruction(NamedTuple):
    """struct sock_filter."""

    code: int
    jump_true: int
    jump_false: int
    value: int


class SystemCall(NamedTuple):
    """A filter's view of a system call."""

    number: int
    arguments: tuple[int, ...]
    address: int = 0


def run_filter(program: Sequence[Instruction], call: SystemCall) -> int:
    """Returns the action word of a filter for a system call of a 64-bit program.

    Raises:
        FilterError: the program is malformed.
    """
    arguments = [argument & 0xFFFFFFFFFFFFFFFF for argument in call.arguments] + [0] * (6 - len(call.arguments))
    data = DATA.pack(call.number, HOST.audit, call.address, *arguments)
    machine = _Machine(data)
    position = 0
    while position < len(program):  # each step advances
        instruction = program[position]
        if instruction.code & 7 == RETURN:
            return machine.accumulator if instruction.code & 0x18 == RETURN_ACCUMULATOR else instruction.value
        position += 1 + machine.step(instruction)
    raise FilterError("the program runs past its end")


class _Machine:
    """Registers and scratch words."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.accumulator = 0
        self.index = 0
        self.scratch = [0] * SCRATCH_WORDS

    def step(self, instruction: Instruction) -> int:
        """Executes one instruction and returns how many are skipped."""
        kind = instruction.code & 7
        if kind == JUMP:
            return self._jump(instruction)
        if kind == LOAD:
            self.accumulator = self._load(instruction)
        elif kind == LOAD_INDEX:
            self.index = self._load(instruction)
        elif kind in (STORE, STORE_INDEX):
            self.scratch[_scratch(instruction)] = self.accumulator if kind == STORE else self.index
        elif kind == ARITHMETIC:
            self.accumulator = self._calculate(instruction) & WORD_MASK
        elif instruction.code & 0xF8 == TO_ACCUMULATOR:
            self.accumulator = self.index
        else:
            self.index = self.accumulator
        return 0

    def _load(self, instruction: Instruction) -> int:
        mode = instruction.code & 0xE0
        if mode == MODE_IMMEDIATE:
            return instruction.value
        if mode == MODE_LENGTH:
            return len(self.data)
        if mode == MODE_SCRATCH:
            return self.scratch[_scratch(instruction)]
        if mode != MODE_DATA or instruction.value % 4 or instruction.value + 4 > len(self.data):
            raise FilterError(f"instruction {instruction.code:#x} loads from {instruction.value}")
        return int.from_bytes(self.data[instruction.value : instruction.value + 4], "little")

    def _calculate(self, instruction: Instruction) -> int:
        kind = instruction.code & 0xF0
        if kind == NEGATE:
            return -self.accumulator
        operand = self.index if instruction.code & FROM_INDEX else instruction.value
        if kind == DIVIDE:
            return self.accumulator // operand if operand else 0
        if kind not in OPERATIONS:
            raise FilterError(f"instruction {instruction.code:#x} is unknown")
        return OPERATIONS[kind](self.accumulator, operand)

    def _jump(self, instruction: Instruction) -> int:
        kind = instruction.code & 0xF0
        if kind == JUMP_ALWAYS:
            return instruction.value
        if kind not in COMPARISONS:
            raise FilterError(f"instruction {instruction.code:#x} is unknown")
        operand = self.index if instruction.code & FROM_INDEX else instruction.value
        return instruction.jump_true if COMPARISONS[kind](self.accumulator, operand) else instruction.jump_false


def _scratch(instruction: Instruction) -> int:
    if instruction.value >= SCRATCH_WORDS:
        raise FilterError(f"there is no scratch word {instruction.value}")
    return instruction.value
