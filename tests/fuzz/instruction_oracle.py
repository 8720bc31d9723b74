# SPDX-License-Identifier: Apache-2.0
"""What the C core says of an instruction, and what iced-x86 says: the oracle."""

from __future__ import annotations

from typing import NamedTuple

from iced_x86 import Code, Decoder, Instruction, Mnemonic, OpKind, Register, RegisterExt

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.arch.x86_64 import scan

ADDRESS = 0x400000
_GENERAL = (
    Register.RAX, Register.RCX, Register.RDX, Register.RBX, Register.RSP, Register.RBP, Register.RSI, Register.RDI,
    Register.R8, Register.R9, Register.R10, Register.R11, Register.R12, Register.R13, Register.R14, Register.R15,
)  # fmt: skip
_NUMBERS: dict[int, int] = {register: number for number, register in enumerate(_GENERAL)}
_BASES = _NUMBERS | {Register.NONE: lib.NFP_REGISTER_NONE, Register.RIP: lib.NFP_REGISTER_NEXT}
_KINDS = {
    scan._PLAIN: lib.NFP_DECODED_PLAIN,
    scan._MOVE: lib.NFP_DECODED_MOVE,
    scan._LEA: lib.NFP_DECODED_LEA,
    scan._POP: lib.NFP_DECODED_POP,
    scan._BRANCH: lib.NFP_DECODED_BRANCH,
    scan._CALL: lib.NFP_DECODED_CALL,
    scan._INDIRECT: lib.NFP_DECODED_JUMP_INDIRECT,
    scan._RETURN: lib.NFP_DECODED_RETURN,
    scan._CALL_INDIRECT: lib.NFP_DECODED_CALL_INDIRECT,
    scan._INVALID: -1,
}
_TRAPS = (Mnemonic.INT, Mnemonic.INT3, Mnemonic.SYSCALL)
_WIDE = (Code.MOV_R64_RM64, Code.MOV_RM64_R64, Code.LEA_R64_M)


class Said(NamedTuple):
    """As struct nfp_decoded has it."""

    bytes: int
    kind: int
    has_memory: bool
    base: int
    has_index: bool
    displacement: int
    target: int
    to: int
    from_: int
    is_wide: bool


def core_says(code: bytes, address: int = ADDRESS) -> Said | None:
    """The C core, or None: it does not know the instruction."""
    out = ffi.new("struct nfp_decoded *")
    if not lib.nfp_instruction_decode(code, len(code), address, out):
        return None
    displacement = out.displacement if out.base != lib.NFP_REGISTER_NEXT else 0
    operand = (bool(out.has_memory), out.base, out.index != lib.NFP_REGISTER_NONE, displacement)
    return Said(out.bytes, out.kind, *operand, out.target, out.to, getattr(out, "from"), bool(out.is_wide))


def oracle_says(code: bytes, address: int = ADDRESS) -> Said:
    """iced-x86."""
    item = Decoder(64, code, ip=address).decode()
    kind = _KINDS[scan._classify(item)]
    if item.code == Code.RETNQ_IMM16:
        kind = lib.NFP_DECODED_RETURN_POPPING
    if kind == lib.NFP_DECODED_PLAIN and item.mnemonic in _TRAPS:
        kind = lib.NFP_DECODED_TRAP
    is_next, base, displacement, target = False, lib.NFP_REGISTER_NONE, 0, 0
    has_memory = any(item.op_kind(number) == OpKind.MEMORY for number in range(item.op_count))
    if has_memory:
        base = _BASES.get(item.memory_base, -1)
        is_next = base == lib.NFP_REGISTER_NEXT
        target = item.ip_rel_memory_address if is_next else 0
        displacement = 0 if is_next else (item.memory_displacement ^ 1 << 63) - (1 << 63)
    if kind in (lib.NFP_DECODED_BRANCH, lib.NFP_DECODED_CALL):
        target = item.near_branch_target
    to, source = _registers(item, kind)
    is_wide = item.code in _WIDE
    has_index = has_memory and item.memory_index != Register.NONE
    return Said(item.len, kind, has_memory, base, has_index, displacement, target, to, source, is_wide)


def _registers(item: Instruction, kind: int) -> tuple[int, int]:
    to = source = int(lib.NFP_REGISTER_NONE)
    writes = kind in (lib.NFP_DECODED_MOVE, lib.NFP_DECODED_LEA, lib.NFP_DECODED_POP)
    if writes and item.op0_kind == OpKind.REGISTER:
        to = _NUMBERS[RegisterExt.full_register(item.op0_register)]
    if kind == lib.NFP_DECODED_MOVE and item.op1_kind == OpKind.REGISTER:
        source = _NUMBERS[RegisterExt.full_register(item.op1_register)]
    return to, source


def core_names(code: bytes) -> int:
    """Bit mask of the registers that an instruction may name, by the C core, which knows it."""
    out = ffi.new("struct nfp_decoded *")
    assert lib.nfp_instruction_decode(code, len(code), ADDRESS, out)
    return int(out.registers)


def oracle_names(code: bytes) -> int:
    """Those of r8 to r15 that it names."""
    item = Decoder(64, code, ip=ADDRESS).decode()
    named = [item.op_register(number) for number in range(item.op_count) if item.op_kind(number) == OpKind.REGISTER]
    whole = {RegisterExt.full_register(register) for register in (*named, item.memory_base, item.memory_index)}
    return sum(1 << _NUMBERS[register] for register in whole if _NUMBERS.get(register, 0) >= 8)
