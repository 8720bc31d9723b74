# SPDX-License-Identifier: Apache-2.0
"""What a snippet may be, that each refusal says why, and that no text becomes code that does something else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from iced_x86 import Decoder, InstructionInfoFactory, Mnemonic, OpAccess, Register, RegisterExt

from otel_nfprobe.arch.snippet import BYTES_MAX, assemble, read_capture
from otel_nfprobe.arch.x86_64.snippet_code import encode, is_as_asked
from otel_nfprobe.arch.x86_64.snippet_text import (
    DESTINATIONS,
    Asked,
    Memory,
    Named,
    Number,
    normalise_memory,
    read_snippet,
)
from otel_nfprobe.base.errors import UsageError

ACCEPTED = [
    "mov rax, [rdi+8]",
    "MOV RAX , QWORD PTR [ RDI + 8 ]",
    "mov rax, [8 + rdi]",
    "mov rax, [rdi - 0x80]",
    "mov rax, [rdi + 8 + 8]",
    "mov rax, [rdi+rcx]",
    "mov rax, [rcx+rdi]",
    "mov rax, [rsi*8+rdi+16]",
    "mov rax, [8*rsi]",
    "mov rax, [rsp+8]",
    "mov rax, [rsp+r12*4]",
    "mov rax, [r13+r13]",
    "mov eax, [rbp]",
    "mov rax, -1",
    "mov rax, 0x123456789abcdef0",
    "mov eax, 0xffffffff",
    "movzx eax, byte ptr [rdi+0x7fffffff]",
    "movzx eax, di",
    "movsx rax, word ptr [rdi]",
    "movsx rax, edi",
    "movsxd rax, [rdi]",
    "lea rax, [rdi+rsi*4-3]",
    "mov rax, rdi; add rax, 16; sub rax, 0x10; and rax, -16; or rax, 127; xor rax, 128",
    "mov rax, rdi; not rax; neg rax; bswap rax; popcnt rax, rsi",
    "mov eax, edi; shl eax, 3; shr eax, cl; sar rax, 63; rol rax, 1; ror rax, 5",
    "imul rax, rdi; imul rax, rsi, 100; imul eax, [rdi], -1000",
    "xor eax, eax; cmp byte ptr [rdi], 255; setnb al; test rax, [rdi]; cmovnz rax, rdx",
    "xor eax, eax; test [rdi], rdx; setpe cl; cmovnle eax, ecx",
    "mov r11, rdi; mov rdx, rsi; mov ecx, 5; xchg rcx, r11; mov rax, rcx",
    "mov al, 5; mov cl, dil; mov r11w, 70; mov eax, r11d",
    "\nmov rax, rdi\n\nshr rax, 3\n",
]

REFUSED = {
    "": "without instructions",
    "mov ecx, edi": "writes rax or eax",
    "sete al": "writes rax or eax",
    "cmp rax, 5": "writes rax or eax",
    "; ".join(["mov rax, rdi"] * 17): "at most 16 instructions; this one has 17",
    "; ".join(["mov rax, 0x1234567890123"] * 13): f"at most {BYTES_MAX} bytes of code; this one has 130",
    "mov rax, fs:[0x28]": "with a segment",
    "mov rax, qword ptr gs:[rdi]": "nor memory such as|with a segment",
    "sub rax, qword ptr fs:[0x28]": "with a segment|nor memory such as",
    "mov rax, [0x414243]": "relative to a register",
    "mov rax, [rip+8]": "'rip' is not a 64-bit general register",
    "mov rax, [edi]": "'edi' is not a 64-bit general register",
    "mov rax, [rdi+rsi*3]": "a scale of 1, 2, 4 or 8",
    "mov rax, [rdi-rsi]": "an index must be added",
    "mov rax, [rdi*2+rsi*2]": "base \\+ index",
    "mov rax, [rdi+rsi+rdx]": "base \\+ index",
    "mov rax, [rdi+]": "base \\+ index",
    "mov rax, [rdi--8]": "base \\+ index",
    "mov rax, 8[rdi]": "nor memory such as",
    "mov rax, 010": "nor a number such as",
    "mov rax, 10h": "nor a number such as",
    "mov rax, offset main": "nor a number such as",
    "mov rax, xmm0": "neither a general register",
    "movq rax, xmm0": "not one of the instructions that only compute",
    "vmovups zmm1, [rsi+0x40]": "not one of the instructions that only compute",
    "mov rax, cr0": "neither a general register",
    "mov [rdi], rax": "writes nothing to memory",
    "add qword ptr [rdi], 1": "writes nothing to memory",
    "xchg rax, [rdi]": "writes nothing to memory",
    "sete byte ptr [rdi]": "writes nothing to memory",
    "mov rbx, rdi": "may write no other register",
    "mov rsp, rdi": "may write no other register",
    "xchg rax, rdi": "may write no other register",
    "mov dil, 5": "may write no other register",
    "sete eax": "one byte",
    "mov 5, rax": "cannot be written",
    "jmp rax": "jmp is not one of the instructions",
    "call rax": "call is not one of the instructions",
    "syscall": "syscall is not one of the instructions",
    "ret": "ret is not one of the instructions",
    "push rax": "push is not one of the instructions",
    "div rcx": "div is not one of the instructions",
    "imul rcx": "imul has 2 or 3 operands here",
    "imul rax, 5": "operand 2 is a number, where only a register or memory is permitted",
    "lea rax, rdi": "operand 2 is a register, where only memory is permitted",
    "lock add rax, rdi": "lock is not one of the instructions",
    "rep movsb": "rep is not one of the instructions",
    ".byte 0x90": ".byte is not one of the instructions",
    "start: mov rax, rdi": "start: is not one of the instructions",
    "mov rax, rdi # comment": "neither a general register",
    "mov al, ah": "shift the whole register to the right by 8",
    "mov bh, 5": "shift the whole register to the right by 8",
    "shl rax, dl": "by a number or by cl",
    "movzx eax, [rdi]": "the size of the read must be given",
    "cmp [rdi], 5": "the size of the read must be given",
    "mov rax, tbyte ptr [rdi]": "nor memory such as",
    "movzx rax, edi": "the assembler rejects it",
    "mov rax, dword ptr [rdi]": "the assembler rejects it",
    "and rax, 0xffffffff": "the assembler rejects it",
    # What keystone takes, and makes something else of.
    "mov rax, [rdi+rsp]": "the assembler encoded it as 'mov rax,\\[rdi\\]'",
    "mov rax, [rsp*2]": "the assembler encoded it as 'mov rax,\\[0\\]'",
    "mov rax, [rdi+0x80000000]": "the assembler encoded it as 'mov rax,\\[rdi-0x80000000\\]'",
    "mov rax, [rdi+0xffffffff]": "the assembler encoded it as 'mov rax,\\[rdi-1\\]'",
    "mov ax, 70000": "the assembler encoded it as 'mov ax,0x1170'",
    "mov cl, 300": "the assembler encoded it as 'mov cl,0x2C'",
}


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    if "eax" not in text.lower() and "rax" not in text.lower():
        text += "; mov rax, rcx"
    snippet = assemble(text)
    assert snippet.code
    assert len(list(Decoder(64, snippet.code))) == len(read_snippet(text))


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text: str) -> None:
    needs_result = REFUSED[text].startswith("the assembler encoded") and "rax" not in text
    with pytest.raises(UsageError, match=REFUSED[text]) as refused:
        assemble(text + "; mov rax, rcx" if needs_result else text)
    assert refused.value.sentence.endswith(".")
    assert refused.value.next_command == "nfprobe attach --help"


def test_same_code_as_another_assembler(tmp_path: Path) -> None:
    """GNU as makes instructions of the same meaning: both decode to the same operands."""
    source, output = tmp_path / "all.s", tmp_path / "all.bin"
    lines = [
        line for text in ACCEPTED for line in (part.strip() for part in text.replace("\n", ";").split(";")) if line
    ]
    source.write_text(".intel_syntax noprefix\n" + "\n".join(lines) + "\n")
    subprocess.run(["as", "--64", str(source), "-o", str(tmp_path / "all.o")], check=True)
    subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(tmp_path / "all.o"), str(output)], check=True)
    theirs = list(Decoder(64, output.read_bytes()))
    assert len(theirs) == len(lines)
    for line, their in zip(lines, theirs, strict=True):
        asked = read_snippet(f"{line}; mov rax, rax")[0]
        assert is_as_asked(asked, their), f"{line}: {their}"


# ---- the comparison, without the rules about what may be written -------------------------------------------------

RAX = Named(Register.RAX)


@pytest.mark.parametrize(
    ("text", "mnemonic", "operands"),
    [
        ("mov r11, qword ptr fs:[0x100]", Mnemonic.MOV, (Named(Register.R11), Memory(8, 0, 0, 1, 0x100))),
        ("sub rax, qword ptr fs:[0x28]", Mnemonic.SUB, (RAX, Memory(8, 0, 0, 1, 0x28))),
        ("mov rcx, [0x414243]", Mnemonic.MOV, (Named(Register.RCX), Memory(8, 0, 0, 1, 0x414243))),
        ("mov rax, [rdi+8]", Mnemonic.MOV, (RAX, normalise_memory(8, Register.RDI, 0, 1, 16))),
        ("mov rax, [rdi+8]", Mnemonic.MOV, (RAX, normalise_memory(8, Register.RSI, 0, 1, 8))),
        ("mov eax, [rdi+8]", Mnemonic.MOV, (Named(Register.EAX), normalise_memory(8, Register.RDI, 0, 1, 8))),
        ("mov rax, [rdi+rsi*4]", Mnemonic.MOV, (RAX, Memory(8, Register.RDI, Register.RSI, 8, 0))),
        ("mov rax, rdi", Mnemonic.MOV, (RAX, Named(Register.RSI))),
        ("mov rax, rdi", Mnemonic.MOV, (Named(Register.RDI), RAX)),
        ("add rax, 16", Mnemonic.SUB, (RAX, Number(16))),
        ("add rax, 0x16", Mnemonic.ADD, (RAX, Number(16))),
        ("add rax, -1", Mnemonic.ADD, (RAX, Number(0xFFFFFFFF))),
        ("add eax, -1", Mnemonic.ADD, (Named(Register.EAX), Number(1 << 32))),
        ("rep movsb", Mnemonic.MOVSB, ()),
        ("lock add qword ptr [rdi], rax", Mnemonic.ADD, (normalise_memory(8, Register.RDI, 0, 1, 0), RAX)),
    ],
)
def test_differences_are_seen(text: str, mnemonic: int, operands: tuple[Named | Memory | Number, ...]) -> None:
    got = next(iter(Decoder(64, encode(text))))
    assert not is_as_asked(Asked(text, mnemonic, operands), got)


# ---- any text ----------------------------------------------------------------------------------------------------

REGISTERS = "rax eax ax al ah rcx ecx cl rdx edx dl r11 r11d r11b rdi edi dil rsi rsp rbp r13 r12"
BINARY = "mov movzx movsx movsxd lea add sub and or xor shl sar rol imul popcnt cmp test cmovz cmovl xchg"
_registers = st.sampled_from(REGISTERS.split())
_numbers = st.one_of(
    st.integers(-300, 300).map(str), st.sampled_from(["0x7fffffff", "0x80000000", "0xffffffff", "-0x80000000", "0x1ff"])
)
_addresses = st.builds(
    "{}[{}{}{}]".format,
    st.sampled_from(["", "byte ptr ", "word ptr ", "dword ptr ", "qword ptr ", "fs:"]),
    st.sampled_from(["", "rdi", "rsp", "rax", "r13", "eip", "8*rdi"]),
    st.sampled_from(["", "+rsi", "+rsp*1", "+r12*8", "+rbp*2", "-rsi"]),
    st.sampled_from(["", "+8", "-8", "+0x80", "+0x80000000", "-0x80000000"]),
)
_sources = st.one_of(_registers, _addresses, _numbers)
_lines = st.one_of(
    st.builds("{} {}, {}".format, st.sampled_from(BINARY.split()), _registers, _sources),
    st.builds("{} {}, {}, {}".format, st.just("imul"), _registers, _sources, _numbers),
    st.builds("{} {}".format, st.sampled_from(["not", "neg", "bswap", "setc", "setnle"]), _sources),
)


@pytest.mark.thorough
@settings(max_examples=800, deadline=None, derandomize=True)
@given(_lines)
def test_what_is_accepted_writes_only_what_is_saved(line: str) -> None:
    """Judged by the decoder's own knowledge of what instructions read and write."""
    try:
        code = assemble(f"{line}; mov rax, rax").code
    except UsageError:
        return
    factory = InstructionInfoFactory()
    for instruction in Decoder(64, code):
        info = factory.info(instruction)
        for register in info.used_registers():
            if register.access not in (OpAccess.READ, OpAccess.COND_READ):
                assert RegisterExt.full_register(register.register) in DESTINATIONS, line
        for memory in info.used_memory():
            assert memory.access in (OpAccess.READ, OpAccess.COND_READ), line
            assert memory.segment in (Register.DS, Register.SS), line
        assert not instruction.is_ip_rel_memory_operand


# ---- the option ----------------------------------------------------------------------------------------------------


def test_capture_option() -> None:
    capture = read_capture("libz.so.1:deflate: mov rax, [rdi+8]")
    assert (capture.glob, capture.snippet.text) == ("libz.so.1:deflate", "mov rax, [rdi+8]")
    assert read_capture("lib*:std::sort*:\n mov rax, rdi").glob == "lib*:std::sort*"
    for text in ("libz.so.1:deflate", "mov rax, rdi", ": mov rax, rdi", "deflate:mov rax, rdi"):
        with pytest.raises(UsageError, match="is not GLOB: SNIPPET"):
            read_capture(text)
