# SPDX-License-Identifier: Apache-2.0
"""Relocation: moves a function's first instructions to another address.

Pure: bytes in, bytes out. Each instruction is encoded individually, so its offset in the copy is known; an instruction
that cannot reach its old target from the new address is refused, because the encoder's alternatives (a pointer after
the code, an address-size prefix) are unwanted in a trampoline.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from iced_x86 import BlockEncoder, Decoder, FlowControl, Instruction, Mnemonic, OpKind, Register

from otel_nfprobe.base.errors import RefusedError

JUMP_BYTES = 5  # e9 and a 32-bit displacement
JUMP_REACH_BYTES = 1 << 31
REACH_BYTES = JUMP_REACH_BYTES - 4096
OUT_OF_REACH = "an operand is too far from the trampoline"
NOT_ENCODABLE = "a displaced instruction cannot be encoded elsewhere"
COPIES_MAX = 1 << 14
PRESERVED = {  # registers that a function restores for its caller, with their DWARF numbers
    Register.RBX: 3,
    Register.RBP: 6,
    Register.R12: 12,
    Register.R13: 13,
    Register.R14: 14,
    Register.R15: 15,
}

_NOWHERE = 1  # no instruction refers to this address
_NO_WAY_ON = (FlowControl.CALL, FlowControl.INDIRECT_CALL, FlowControl.EXCEPTION, FlowControl.INTERRUPT)
_FINAL = (FlowControl.RETURN, FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH)


def ends_flow(instruction: Instruction) -> bool:
    """Returns whether the next instruction in memory is not reached from this one."""
    return instruction.flow_control in _FINAL


def goes_on(last: Instruction) -> bool:
    """Returns whether execution continues after a function's last instruction.

    A call at the end is to a function that never returns.
    """
    return not ends_flow(last) and (last.flow_control not in _NO_WAY_ON or last.mnemonic == Mnemonic.SYSCALL)


def relocate(code: bytes, address: int, new_address: int, continue_at: int) -> tuple[bytes, list[int]]:
    """Encodes `code`, located at `address`, for `new_address`.

    Args:
        code: whole instructions.
        continue_at: where execution continues after them; a jump there is added unless the last one ends flow.

    Returns:
        The new code and the new offset of each instruction, and of the added jump.

    Raises:
        RefusedError: the sentence is the reason.
    """
    fixed = _copy_anywhere(code)
    if fixed is not None:
        copy, offsets, falls_through = bytearray(fixed[0]), list(fixed[1]), fixed[2]
    else:
        copy, offsets, falls_through = _copy_for(code, address, new_address)
    if falls_through:
        distance = continue_at - (new_address + len(copy) + JUMP_BYTES)
        if abs(distance) > REACH_BYTES:
            raise RefusedError(OUT_OF_REACH)
        offsets.append(len(copy))
        copy += encode_jump(new_address + len(copy), continue_at)
    return bytes(copy), offsets


@lru_cache(maxsize=COPIES_MAX)
def _copy_anywhere(code: bytes) -> tuple[bytes, tuple[int, ...], bool] | None:
    """Returns the copy of instructions none of which is relative to its own address; None: one is.

    Most functions begin with one of a few thousand such sequences.
    """
    if any(_target_of(instruction) is not None for instruction in Decoder(64, code)):
        return None
    copy, offsets, falls_through = _copy_for(code, 0, 0)
    return bytes(copy), tuple(offsets), falls_through


def _copy_for(code: bytes, address: int, new_address: int) -> tuple[bytearray, list[int], bool]:
    """Returns the copy, the offset of each instruction in it, and whether execution continues after the last one."""
    copy = bytearray()
    offsets = []
    falls_through = True
    for instruction in Decoder(64, code, ip=address):
        here = new_address + len(copy)
        target = _target_of(instruction)
        if target is not None and abs(target - here) > REACH_BYTES:
            raise RefusedError(OUT_OF_REACH)
        offsets.append(len(copy))
        copy += encode_at(instruction, here)
        falls_through = not ends_flow(instruction)
    return copy, offsets, falls_through


def _target_of(instruction: Instruction) -> int | None:
    if instruction.is_ip_rel_memory_operand:
        return int(instruction.ip_rel_memory_address)
    if instruction.op_count and instruction.op0_kind == OpKind.NEAR_BRANCH64:
        return int(instruction.near_branch_target)
    return None


def encode_jump(place: int, destination: int) -> bytes:
    """Encodes a long jump located at `place`; the destination must be within 2 GiB."""
    return b"\xe9" + struct.pack("<i", destination - (place + JUMP_BYTES))


def encode_call(place: int, destination: int) -> bytes:
    """Encodes a call located at `place`; the destination must be within 2 GiB."""
    return b"\xe8" + struct.pack("<i", destination - (place + JUMP_BYTES))


def encode_far_jump(destination: int) -> bytes:
    """Encodes a jump to anywhere: through the word behind it."""
    return b"\xff\x25\0\0\0\0" + struct.pack("<Q", destination)


@lru_cache(maxsize=COPIES_MAX)
def pushed_registers(code: bytes) -> Mapping[int, int]:
    """Returns DWARF numbers of the preserved registers that instructions push, by the offset after the instruction.

    An exception may pass through a call among the displaced instructions: callers need these registers restored.
    """
    return {
        int(instruction.next_ip): PRESERVED[instruction.op0_register]
        for instruction in Decoder(64, code)
        if instruction.mnemonic == Mnemonic.PUSH and instruction.op0_register in PRESERVED
    }


def encode_at(instruction: Instruction, address: int) -> bytes:
    """Encodes one instruction for a new address.

    Raises:
        RefusedError: it cannot be encoded there.
    """
    # A reference to the encoded instruction itself would follow it: the function's own address must stay.
    moved = instruction.copy()
    moved.ip = _NOWHERE
    encoder = BlockEncoder(64)
    encoder.add(moved)
    try:
        return bytes(encoder.encode(address))
    except ValueError as error:
        raise RefusedError(NOT_ENCODABLE) from error
