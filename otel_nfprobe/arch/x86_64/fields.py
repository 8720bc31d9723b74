# SPDX-License-Identifier: Apache-2.0
"""Fields behind a function's arguments: which ones its code reads and writes, as adapters ask. Reads bytes only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iced_x86 import (
    Code,
    Decoder,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    MemorySize,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
)
from iced_x86 import RegisterExt as Registers

from otel_nfprobe.arch.x86_64.relocate import PRESERVED
from otel_nfprobe.arch.x86_64.scan import ARGUMENT_REGISTERS, SCRATCH
from otel_nfprobe.elf.elf import ElfImage

_READS = (OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_WRITES = (OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_CALLS = (FlowControl.CALL, FlowControl.INDIRECT_CALL)
_LOADS, _STORES = Code.MOV_R64_RM64, Code.MOV_RM64_R64
_BEGIN_BYTES = 96  # within which a function that takes NULL compares its argument with zero
_TESTED_FIRST = b"\x48\x85\xff"  # test rdi, rdi
_information = InstructionInfoFactory()


def short_fields(image: ElfImage, start: int, size: int, argument: int) -> set[int]:
    """Returns the offsets of 16-bit integers that code reads behind an argument.

    Copies of the argument are followed from one instruction to the next, without branches.
    """
    pointers: set[int] = {ARGUMENT_REGISTERS[argument]}
    found: set[int] = set()
    for instruction in Decoder(64, image.read(start, size), ip=start):
        if (
            instruction.memory_base in pointers
            and instruction.memory_index == Register.NONE
            and instruction.op0_kind == OpKind.REGISTER
            and instruction.memory_size in (MemorySize.UINT16, MemorySize.INT16)
        ):
            found.add(int(instruction.memory_displacement))
        copies = _is_copy(instruction) and instruction.op1_register in pointers
        pointers -= _written(instruction)
        if instruction.flow_control in _CALLS:
            pointers -= SCRATCH
        if copies:
            pointers.add(instruction.op0_register)
    return found


def rewritten_words(image: ElfImage, start: int, size: int) -> set[int]:
    """Returns the offsets behind the first argument of words that code reads, and writes back."""
    loaded, stored = set(), set()
    argument: set[int] = {ARGUMENT_REGISTERS[0]}
    for instruction in Decoder(64, image.read(start, size), ip=start):
        if instruction.code == _LOADS and instruction.op1_kind == OpKind.MEMORY:
            loaded |= _displacement(instruction) if instruction.memory_base in argument else set()
        elif instruction.code == _STORES and instruction.op0_kind == OpKind.MEMORY:
            stored |= _displacement(instruction)
        elif instruction.code == _STORES and instruction.op1_register in argument:
            argument.add(instruction.op0_register)
        elif instruction.flow_control == FlowControl.RETURN and loaded & stored:
            break
    return loaded & stored


def _displacement(instruction: Instruction) -> set[int]:
    plain = instruction.memory_index == Register.NONE and instruction.memory_base != Register.RSP
    return {int(instruction.memory_displacement)} if plain and instruction.memory_displacement else set()


def list_fields(
    image: ElfImage, start: int, size: int, next_offset: int, called_offset: int
) -> tuple[set[int], set[int]] | None:
    """Returns the offsets of fields that code reads, and writes, of the list that its first argument leads to.

    Args:
        next_offset: of the pointer to the following item.
        called_offset: in a table of functions.

    Returns:
        None for code that does not compare its first argument with zero, or calls nothing at that offset.
    """
    code = image.read(start, size)
    if _TESTED_FIRST not in code[:_BEGIN_BYTES]:
        return None
    instructions = list(Decoder(64, code, ip=start))
    if not any(
        one.flow_control == FlowControl.INDIRECT_CALL and one.memory_displacement == called_offset
        for one in instructions
    ):
        return None
    read, written = set(), set()
    for instruction, items in zip(instructions, _find_items(instructions, next_offset), strict=True):
        for memory in _information.info(instruction).used_memory():
            if memory.base in items and memory.index == Register.NONE:
                read.update([memory.displacement] if memory.access in _READS else [])
                written.update([memory.displacement] if memory.access in _WRITES else [])
    return read, written


def _find_items(instructions: Sequence[Instruction], next_offset: int) -> list[set[int]]:
    """For each instruction the registers that can hold an item's address before it, on some way from the entry."""
    places = {instruction.ip: position for position, instruction in enumerate(instructions)}
    before: list[set[int]] = [set() for _ in instructions]
    before[0] = {ARGUMENT_REGISTERS[0]}
    left = [0]
    while left:
        position = left.pop()
        after = _after(instructions[position], before[position], next_offset)
        for follower in _followers(instructions[position], position, places):
            if not after <= before[follower]:
                before[follower] |= after
                left.append(follower)
    return before


def _followers(instruction: Instruction, position: int, places: dict[int, int]) -> Iterator[int]:
    flow = instruction.flow_control
    jumps = flow in (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH)
    if jumps and instruction.near_branch_target in places:
        yield places[instruction.near_branch_target]
    if flow in (FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH, *_CALLS) and position + 1 < len(places):
        yield position + 1


def _after(instruction: Instruction, items: set[int], next_offset: int) -> set[int]:
    copies = instruction.mnemonic == Mnemonic.MOV and instruction.op0_kind == OpKind.REGISTER
    from_register = instruction.op1_kind == OpKind.REGISTER and instruction.op1_register in items
    from_next = instruction.memory_base in items and instruction.memory_displacement == next_offset
    kept = items & PRESERVED.keys() if instruction.flow_control in _CALLS else set(items)
    kept -= _written(instruction)
    return kept | {instruction.op0_register} if copies and (from_register or from_next) else kept


def _is_copy(instruction: Instruction) -> bool:
    registers = instruction.op_count == 2 and instruction.op1_kind == instruction.op0_kind == OpKind.REGISTER
    return registers and instruction.mnemonic == Mnemonic.MOV


def _written(instruction: Instruction) -> set[int]:
    used = _information.info(instruction).used_registers()
    return {Registers.full_register(register.register) for register in used if register.access in _WRITES}
