# SPDX-License-Identifier: Apache-2.0
"""Realigned stacks: where functions that align their stack (gcc's DRAP) read the register that holds their CFA.

    lea 8(%rsp),%r10   the canonical frame address (CFA), only known from this once the stack is aligned
    and $-32,%rsp
    push -8(%r10)      a copy of the return address, for debuggers that follow frame pointers
    push %rbp
    mov %rsp,%rbp
    push %r10          for the end
    ...                r10 still holds the CFA until something else is written to it
    pop %r10
    lea -8(%r10),%rsp
    ret

Any other read of the register while it may hold the CFA reads stack arguments. Whether it may is followed on all paths
through the function, including jump tables. For a part (.cold) it is assumed that the register holds the CFA at its
entry, and required that it does not where it returns to the function. Reads bytes only.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from iced_x86 import (
    Decoder,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    RegisterExt,
)

from otel_nfprobe.base.processors import X86_64
from otel_nfprobe.elf.cursor import ADDRESS_MASK, FrameError
from otel_nfprobe.elf.ehframe import DEREFERENCED, Frame, Row
from otel_nfprobe.elf.elf import ElfImage

DWARF_REGISTERS = (
    Register.RAX, Register.RDX, Register.RCX, Register.RBX,
    Register.RSI, Register.RDI, Register.RBP, Register.RSP,
    Register.R8, Register.R9, Register.R10, Register.R11,
    Register.R12, Register.R13, Register.R14, Register.R15,
)  # fmt: skip
RSP, RBP = X86_64.stack_pointer, X86_64.frame_pointer
USUAL_REGISTER = Register.R10
TABLES_MAX = 256  # maximum references of a function treated as possible jump tables
TABLE_ENTRIES_MAX = 4096
STRAYING_MAX = 256  # consecutive entries of a possible jump table that lead elsewhere
RETURN_BYTES = 8
PUSHED_BYTES = 8  # above the address in rbp: the copy of the return address, then unknown data

_READS = frozenset((OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE))
_ONLY_READS = frozenset((OpAccess.READ, OpAccess.COND_READ))
_PRESERVED = frozenset((Register.RBX, Register.R12, Register.R13, Register.R14, Register.R15))
_WHOLE_BYTES = (4, 8)  # of a register that is written: the rest of it becomes 0
_CALLS = frozenset((FlowControl.CALL, FlowControl.INDIRECT_CALL))
_ENDS = frozenset(
    (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.RETURN, FlowControl.EXCEPTION)
)
_information = InstructionInfoFactory()


class Use(NamedTuple):
    """An instruction that may read at or above the CFA.

    Attributes:
        distance: of its operand from the CFA; None: it takes an address.
        of_return: it reads the copy of the return address, or takes its address.
    """

    instruction: Instruction
    distance: int | None
    of_return: bool = False


class _Node(NamedTuple):
    """An instruction that names the register, reads the frame, or does not continue with the next one."""

    instruction: Instruction
    row: Row
    ends: bool  # the next one does not follow
    target: int  # where it branches to, or 0
    is_table: bool  # it may jump to any entry of a jump table


def register_of(rows: Sequence[Row]) -> int | None:
    """Returns the register that holds the CFA in a function with these rules; None: it does not align its stack this
    way.

    Parts of a function need not name it.
    """
    named = {row.register for row in rows if row.register >= 0 and row.register not in (RSP, RBP) and not row.offset}
    if named:
        register = named.pop()
        return None if named or register >= len(DWARF_REGISTERS) else DWARF_REGISTERS[register]
    return USUAL_REGISTER if any(row.register == DEREFERENCED for row in rows) else None


def find_uses(image: ElfImage, frame: Frame, register: int) -> list[Use]:
    """Yields uses of the register while it may hold the CFA, and of the frame, except those needed to align the stack.

    The frame's rules are known to be sound.
    """
    return list(_Paths(image, frame, register).find())


@cache
def _family(register: int) -> frozenset[int]:
    """Returns the register and its subregisters."""
    numbers = (number for number in vars(Register).values() if isinstance(number, int) and number)
    return frozenset(number for number in numbers if RegisterExt.full_register(number) == register)  # type: ignore[arg-type]


class _Paths:
    """All paths through a function."""

    def __init__(self, image: ElfImage, frame: Frame, register: int) -> None:
        self._image = image
        self._frame = frame
        self._register = register
        self._family = _family(register)
        self._rows = frame.rules().rows
        self._is_part = not _is_gone(self._rows[0])
        self._slots = {row.offset & ADDRESS_MASK for row in self._rows if row.register == DEREFERENCED}
        self._tables: set[int] = set()  # of distances
        self._word_tables: set[int] = set()  # of addresses
        self._nodes = self._find_nodes()
        self._places = [int(node.instruction.ip) for node in self._nodes]
        self._may_hold = [False] * len(self._nodes)  # before each node
        self._reached = [False] * len(self._nodes)

    def find(self) -> Iterator[Use]:
        """See find_uses."""
        self._follow(self._starts())
        if any(node.is_table and holds for holds, node in zip(self._may_hold, self._nodes, strict=True)):
            self._follow([(place, True) for place in self._table_targets()])
        for holds, node in zip(self._may_hold, self._nodes, strict=True):
            use = self._use(node, holds)
            if use is not None:
                yield use

    # ---- nodes ---------------------------------------------------------------------------------------------

    def _find_nodes(self) -> list[_Node]:
        starts = [row.address for row in self._rows]
        return [
            _make_node(instruction, self._rows[bisect_right(starts, int(instruction.ip)) - 1])
            for instruction in self._find_named()
        ]

    def _decode(self) -> Iterator[Instruction]:
        return iter(Decoder(64, self._image.read(self._frame.start, self._frame.size), ip=self._frame.start))

    def _find_named(self) -> Iterator[Instruction]:
        """Yields the relevant instructions. The hot path: only a few attributes of each one are read."""
        family, following, slots = self._family, FlowControl.NEXT, self._slots
        rbp, rip, none = Register.RBP, Register.RIP, Register.NONE
        for instruction in self._decode():
            base = instruction.memory_base
            if base == rip:
                self._tables.add(int(instruction.ip_rel_memory_address))
            elif base == none and instruction.memory_index:
                self._word_tables.add(int(instruction.memory_displacement))
            if instruction.flow_control != following:
                yield instruction
            elif base == rbp:
                place = instruction.memory_displacement
                if PUSHED_BYTES <= place < 1 << 63 or place in slots or self._names(instruction):
                    yield instruction
            elif base in family or self._names(instruction):
                yield instruction

    def _names(self, instruction: Instruction) -> bool:
        family = self._family
        return (
            instruction.memory_index in family
            or instruction.op0_register in family
            or instruction.op1_register in family
            or instruction.op2_register in family
        )

    # ---- paths ---------------------------------------------------------------------------------------------

    def _starts(self) -> list[tuple[int, bool]]:
        """Returns where paths begin, and whether the register may hold the CFA there.

        Code that nothing leads to is an exception landing pad, where only preserved registers are valid, or a target of
        a jump table; in a part, a target of its function.
        """
        behind = [int(node.instruction.next_ip) for node in self._nodes if node.ends]
        held = self._is_part or self._register in _PRESERVED
        return [(self._frame.start, self._is_part), *((place, held) for place in behind)]

    def _follow(self, ways: list[tuple[int, bool]]) -> None:
        waiting = [(self._node_at(place), holds) for place, holds in ways]
        while waiting:
            index, holds = waiting.pop()
            while 0 <= index < len(self._nodes):
                node = self._nodes[index]
                holds |= self._may_hold[index] or self._is_held_by_rule(node)
                if self._reached[index] and holds == self._may_hold[index]:
                    break
                self._reached[index], self._may_hold[index] = True, holds
                holds = self._holds_after(node, holds)
                if node.target and self._is_inside(node.target):
                    waiting.append((self._node_at(node.target), holds))
                index = -1 if node.ends else index + 1

    def _node_at(self, address: int) -> int:
        """Returns the first node at or after an address."""
        return bisect_left(self._places, address)

    def _is_inside(self, address: int) -> bool:
        return self._frame.start <= address < self._frame.start + self._frame.size

    def _is_held_by_rule(self, node: _Node) -> bool:
        return node.row.register >= 0 and DWARF_REGISTERS[node.row.register] == self._register

    def _holds_after(self, node: _Node, holds: bool) -> bool:
        instruction = node.instruction
        if instruction.mnemonic == Mnemonic.CALL:
            return holds and self._may_keep(instruction)
        if instruction.flow_control != FlowControl.NEXT:
            return holds
        used = [item for item in _information.info(instruction).used_registers() if item.register in self._family]
        if all(item.access in _ONLY_READS for item in used):
            return holds
        if node.row.register != DEREFERENCED or instruction.mnemonic == Mnemonic.POP or self._is_slot(node):
            return True
        whole = (item.access == OpAccess.WRITE and RegisterExt.size(item.register) in _WHOLE_BYTES for item in used)
        return holds and not any(whole)

    def _may_keep(self, call: Instruction) -> bool:
        """Returns whether the register may be the same after a call. Callers know what some functions preserve:
        -fipa-ra.
        """
        is_direct = call.op0_kind == OpKind.NEAR_BRANCH64
        to_stub = is_direct and self._image.section_of(int(call.near_branch_target)).startswith(".plt")
        return self._register in _PRESERVED or (is_direct and not to_stub)

    # ---- uses ----------------------------------------------------------------------------------------------

    def _use(self, node: _Node, holds: bool) -> Use | None:
        instruction = node.instruction
        if self._is_in_frame(node):
            if _displacement(instruction) >= PUSHED_BYTES:
                return Use(instruction, None, of_return=True)
            if self._is_slot(node) and self._reads_slot(instruction):
                return Use(instruction, None)
        if holds and self._goes_elsewhere(node):
            return Use(instruction, None)
        if not holds or not self._reads(instruction) or self._aligns(node):
            return None
        if instruction.memory_base != self._register or instruction.mnemonic == Mnemonic.LEA:
            return Use(instruction, None)
        distance = _displacement(instruction)
        if self._is_operand(instruction):
            return Use(instruction, None)
        if distance < 0 and instruction.memory_index == Register.NONE:
            return Use(instruction, distance, of_return=True) if distance >= -RETURN_BYTES else None
        return Use(instruction, distance)

    def _goes_elsewhere(self, node: _Node) -> bool:
        """Returns whether a jump leaves the function, and not to a part of it that expects the CFA in the register."""
        if not node.target or self._is_inside(node.target) or _is_gone(node.row):
            return False
        frame = self._image.frames.find(node.target)
        try:
            if frame is None or frame.rules(frame.start).rows[0].register != DEREFERENCED:
                return True
        except FrameError:
            return True
        before = list(Decoder(64, self._image.read(frame.start, node.target - frame.start), ip=frame.start))[-1:]
        return any(last.next_ip != node.target or last.flow_control not in _ENDS for last in before)

    def _reads(self, instruction: Instruction) -> bool:
        used = _information.info(instruction).used_registers()
        return any(item.access in _READS and item.register in self._family for item in used)

    def _is_operand(self, instruction: Instruction) -> bool:
        """Returns whether the register is more than the base of what the instruction reads or writes."""
        operands = (instruction.op0_register, instruction.op1_register, instruction.op2_register)
        return instruction.memory_index in self._family or not self._family.isdisjoint(operands)

    def _is_in_frame(self, node: _Node) -> bool:
        """Returns whether the memory operand is based on rbp while that points to the end of the frame, until the last
        few.
        """
        has_frame = node.row.register == DEREFERENCED or self._is_held_by_rule(node)
        return has_frame and bool(node.instruction.memory_base == Register.RBP)

    def _is_slot(self, node: _Node) -> bool:
        """Returns whether the memory operand is the word that holds the CFA."""
        return self._is_in_frame(node) and node.instruction.memory_displacement in self._slots

    def _reads_slot(self, instruction: Instruction) -> bool:
        """Returns whether an operation on the word that holds the CFA moves it elsewhere than into its register."""
        if instruction.mnemonic == Mnemonic.LEA or instruction.op0_register in self._family:
            return False
        return not (instruction.mnemonic == Mnemonic.MOV and instruction.op0_kind == OpKind.MEMORY)

    def _aligns(self, node: _Node) -> bool:
        """Returns whether the instruction is one of those that align the stack, or restore it."""
        instruction = node.instruction
        if not self._is_held_by_rule(node) or instruction.memory_index != Register.NONE:
            return False
        if instruction.mnemonic == Mnemonic.PUSH:
            saved = instruction.memory_base in self._family and _displacement(instruction) == -RETURN_BYTES
            return bool(instruction.op0_register == self._register or saved)
        if instruction.mnemonic == Mnemonic.LEA:
            return bool(instruction.op0_register == Register.RSP and _displacement(instruction) < 0)
        stores = instruction.mnemonic == Mnemonic.MOV and instruction.memory_base == Register.RBP
        return stores and instruction.memory_displacement in self._slots

    # ---- jump tables ---------------------------------------------------------------------------------------

    def _table_targets(self) -> list[int]:
        """Returns possible jump table targets in the function: a superset."""
        if len(self._tables) + len(self._word_tables) > TABLES_MAX:
            return self._places
        found = [address for address in self._image.code_pointers if self._is_inside(address)]
        for table in self._tables:
            if not self._is_inside(table):
                found += self._entries(table, table, "i")
        for table in self._word_tables:
            found += self._entries(table, 0, "q")
        begins = {int(instruction.ip) for instruction in self._decode()}
        return [address for address in found if address in begins] or self._places

    def _entries(self, table: int, counted_from: int, form: str) -> list[int]:
        """Returns the addresses in the words at an address."""
        size = struct.calcsize(form)
        words = self._image.read(table, size * TABLE_ENTRIES_MAX)
        found, straying = [], 0
        for (word,) in struct.iter_unpack(f"<{form}", words[: len(words) // size * size]):
            if self._is_inside(counted_from + word):
                found.append(counted_from + word)
                straying = 0
                continue
            straying += 1
            if straying > STRAYING_MAX:
                break
        return found


def _make_node(instruction: Instruction, row: Row) -> _Node:
    flow = instruction.flow_control
    names_place = flow not in _CALLS and flow != FlowControl.NEXT and instruction.op0_kind == OpKind.NEAR_BRANCH64
    target = int(instruction.near_branch_target) if names_place else 0
    return _Node(instruction, row, flow in _ENDS, target, flow == FlowControl.INDIRECT_BRANCH and not _is_gone(row))


def _is_gone(row: Row) -> bool:
    return (row.register, row.offset) == (RSP, RETURN_BYTES)


def _displacement(instruction: Instruction) -> int:
    displacement = int(instruction.memory_displacement)
    return displacement - (1 << 64) if displacement >> 63 else displacement
