# SPDX-License-Identifier: Apache-2.0
"""Assembler for the kernel's BPF machine, with labels. Pure.

An instruction is 8 bytes: operation, two registers, an offset, a constant. Jumps go forward, to a label.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

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
