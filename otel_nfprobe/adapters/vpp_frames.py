# SPDX-License-Identifier: Apache-2.0
"""Where a VPP keeps the number of vectors of a frame, and the vectors, as its own node functions tell.

A node function gets its frame as third argument (rdx) and reads `n_vectors`, the last 16-bit field of the frame's
header, and in later releases before it the offset of its vectors. Which fields these are differs between releases, so
the code is asked. Reads files only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from iced_x86 import (
    Decoder,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    MemorySize,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    RegisterExt,
)

from otel_nfprobe.elf.symbols import Function

HEADER_BYTES = 16  # of a frame, before its scalar and vector arguments
CODE_BYTES = 1024  # of a function, from its start
WITNESSES_MIN = 4
_WRITES = (OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_CALLER_SAVED = {Register.RAX, Register.RCX, Register.RDX, Register.RSI, Register.RDI} | {
    getattr(Register, f"R{number}") for number in range(8, 12)
}


@dataclass(frozen=True, slots=True)
class Frame:
    """Where things are in a frame. Offsets in bytes.

    Attributes:
        count: of `n_vectors`.
        array: of a 16-bit offset of the vectors, in releases that have one; else they stand at `vectors`.
    """

    count: int
    array: int | None
    vectors: int = HEADER_BYTES


def find_frame(functions: Iterable[Function]) -> Frame | None:
    """The fields of a frame in which most of the functions agree; None when they do not."""
    read = [offsets for offsets in map(_read_offsets, functions) if offsets]
    count = _most_common([max(offsets) for offsets in read])
    if count is None:
        return None
    others = [min(offsets) for offsets in read if len(offsets) > 1 and max(offsets) == count]
    return Frame(count, _most_common(others))


def _most_common(offsets: Sequence[int]) -> int | None:
    """What more than two thirds of them are."""
    for offset, count in Counter(offsets).most_common(1):
        return offset if count >= WITNESSES_MIN and 3 * count > 2 * len(offsets) else None
    return None


def _read_offsets(function: Function) -> set[int]:
    """Offsets of 16-bit fields in the frame's header that a function reads."""
    image = function.module.image
    code = image.read(function.offset, min(function.size, CODE_BYTES))
    factory = InstructionInfoFactory()
    frame: set[int] = {Register.RDX}  # registers that hold the frame's address
    found: set[int] = set()
    for instruction in Decoder(64, code, ip=function.offset):
        found.update(_field_of(instruction, frame))
        copies_frame = _is_copy(instruction) and instruction.op1_register in frame
        for used in factory.info(instruction).used_registers():
            if used.access in _WRITES:
                frame.discard(_whole(used.register))
        if instruction.flow_control in (FlowControl.CALL, FlowControl.INDIRECT_CALL):
            frame -= _CALLER_SAVED
        if copies_frame:
            frame.add(instruction.op0_register)
    return found


def _field_of(instruction: Instruction, frame: set[int]) -> Iterator[int]:
    is_field = (
        instruction.memory_base in frame
        and instruction.memory_index == Register.NONE
        and instruction.memory_size in (MemorySize.UINT16, MemorySize.INT16)
        and 2 <= instruction.memory_displacement < HEADER_BYTES
        and instruction.op0_kind == OpKind.REGISTER
    )
    if is_field:
        yield int(instruction.memory_displacement)


def _is_copy(instruction: Instruction) -> bool:
    registers = instruction.op_count == 2 and instruction.op1_kind == instruction.op0_kind == OpKind.REGISTER
    return registers and instruction.mnemonic == Mnemonic.MOV


def _whole(register: int) -> int:
    return int(RegisterExt.full_register(register))  # type: ignore[arg-type]
