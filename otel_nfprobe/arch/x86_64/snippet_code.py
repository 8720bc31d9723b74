# SPDX-License-Identifier: Apache-2.0
"""The code of snippets: keystone assembles the text, iced decodes the bytes again, and the result is compared operand
by operand with the request (snippet_text.py), because keystone encodes some texts as something else.
"""

from __future__ import annotations

from iced_x86 import Decoder, Formatter, FormatterSyntax, Instruction, MemorySizeExt, Mnemonic, OpKind, Register

from otel_nfprobe.arch.x86_64.snippet_text import (
    Asked,
    Memory,
    Named,
    Number,
    Operand,
    normalise_memory,
    read_snippet,
    refuse,
)

_UNORDERED = (Mnemonic.TEST, Mnemonic.XCHG)  # commutative
_SHIFTS = (Mnemonic.SHL, Mnemonic.SHR, Mnemonic.SAR, Mnemonic.ROL, Mnemonic.ROR)
_IMMEDIATES = frozenset(
    getattr(OpKind, name) for name in dir(OpKind) if name.startswith("IMMEDIATE") and not name.endswith("2ND")
)


def assemble(text: str) -> bytes:
    """Assembles the instructions of a snippet.

    Raises:
        UsageError: one is refused; says which, and the reason.
    """
    return b"".join(_assemble_checked(asked) for asked in read_snippet(text))


def _assemble_checked(asked: Asked) -> bytes:
    code = encode(asked.text)
    got = list(Decoder(64, code))
    if len(got) != 1 or not is_as_asked(asked, got[0]):
        raise refuse(asked.text, f"the assembler encoded it as {_format(got)!r}")
    return code


def _format(instructions: list[Instruction]) -> str:
    formatter = Formatter(FormatterSyntax.INTEL)
    formatter.hex_prefix, formatter.hex_suffix = "0x", ""
    return "; ".join(formatter.format(instruction) for instruction in instructions)


def encode(text: str) -> bytes:
    """Returns keystone's encoding of one instruction; not to be trusted.

    Raises:
        UsageError: keystone rejects it.
    """
    import keystone  # a large library that few sessions need

    # The default is Intel syntax; if requested explicitly, keystone reads 16 as 0x16.
    assembler = keystone.Ks(keystone.KS_ARCH_X86, keystone.KS_MODE_64)
    try:
        code, _ = assembler.asm(text, 0, as_bytes=True)
    except keystone.KsError as error:
        raise refuse(text, f"the assembler rejects it ({error.message.partition(' (')[0]})") from error
    return code or b""


def is_as_asked(asked: Asked, got: Instruction) -> bool:
    """Returns whether a decoded instruction does what was requested, and nothing else."""
    prefixed = got.segment_prefix != Register.NONE or got.has_lock_prefix or got.has_rep_prefix or got.has_repne_prefix
    if prefixed or got.mnemonic != asked.mnemonic or got.op_count != len(asked.operands):
        return False
    decoded = [_decoded(got, index) for index in range(got.op_count)]
    wanted = list(asked.operands)
    if _all_same(got, wanted, decoded):
        return True
    return got.mnemonic in _UNORDERED and _all_same(got, wanted, decoded[::-1])


def _all_same(got: Instruction, asked: list[Operand], decoded: list[Operand | None]) -> bool:
    sizes = [operand.size_bytes for operand in asked if isinstance(operand, Named | Memory)]
    bits = 8 if got.mnemonic in _SHIFTS else 8 * max(sizes[:1], default=0)
    return all(_same(left, right, bits) for left, right in zip(asked, decoded, strict=True))


def _same(asked: Operand, decoded: Operand | None, bits: int) -> bool:
    if isinstance(asked, Number) and isinstance(decoded, Number):
        fits = -(1 << bits - 1) <= asked.value < 1 << bits
        return fits and (asked.value - decoded.value) % (1 << bits) == 0
    return asked == decoded


def _decoded(got: Instruction, index: int) -> Operand | None:
    kind = got.op_kind(index)
    if kind == OpKind.REGISTER:
        return Named(got.op_register(index))
    if kind == OpKind.MEMORY:
        displacement = got.memory_displacement
        signed = displacement - (1 << 64) if displacement >> 63 else displacement
        size_bytes = int(MemorySizeExt.size(got.memory_size)) if got.mnemonic != Mnemonic.LEA else 0
        scale = got.memory_index_scale
        return normalise_memory(size_bytes, got.memory_base, got.memory_index, scale, signed)
    return Number(got.immediate(index)) if kind in _IMMEDIATES else None
