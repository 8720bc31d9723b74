# SPDX-License-Identifier: Apache-2.0
"""Functions that align their stack: an in-stack call unless they look at stack arguments, by whichever way."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from otel_nfprobe.arch import scans
from otel_nfprobe.arch.code_facts import RETURN_ADDRESS, STACK_ARGUMENTS, UNKNOWN_FRAME
from otel_nfprobe.arch.x86_64.scan import scan_function
from otel_nfprobe.base.strategies import IN_STACK_CALL
from otel_nfprobe.elf.elf import ElfImage
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.probes.analysis import FunctionPlan, plan_functions

ARGUMENT = "mov (%r10),%rax\n"
RELOAD = "mov -8(%rbp),%r10\n"
BRANCH = "test %edi,%edi\nje 1f\n"
TABLE = "lea 8f(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\n"
ENTRIES = ".pushsection .rodata\n.p2align 2\n8: .long 6b-8b,7b-8b\n.popsection\n"

# name: (what stands between the beginning and the end of the function, the reason or "" for an in-stack call)
CASES: Mapping[str, tuple[str, str]] = {
    "nothing": ("mov -16(%rbp),%rax\n", ""),
    "argument": (ARGUMENT, STACK_ARGUMENTS),
    "argument_with_index": ("mov (%r10,%rdi,8),%rax\n", STACK_ARGUMENTS),
    "argument_by_vector": ("vmovdqu 8(%r10),%ymm0\nvzeroupper\n", STACK_ARGUMENTS),
    "scratch": ("mov 8(%rdi),%r10\nmov (%r10),%rax\nadd %r10,%rax\n", ""),
    "constant": ("mov $7,%r10d\nadd %r10,%rdi\n", ""),
    "zeroed": ("xor %r10d,%r10d\nadd %r10,%rdi\n", ""),
    "extended": ("movzbl (%rdi),%r10d\nadd %r10,%rdi\n", ""),
    "extended_from_itself": ("movzbl %r10b,%r10d\nadd %r10,%rdi\n", STACK_ARGUMENTS),
    "address": ("lea 8(%rdi,%rsi,4),%r10\nmov (%r10),%rax\n", ""),
    "address_from_itself": ("lea 8(%r10,%rsi,4),%r10\nmov (%r10),%rax\n", STACK_ARGUMENTS),
    "loaded_through_itself": ("mov 8(%r10),%r10\nmov (%r10),%rax\n", STACK_ARGUMENTS),
    "vector_of_its_number": ("vpaddd %ymm10,%ymm1,%ymm10\nvzeroupper\n", ""),
    "vector_taken_from_it": ("vmovq %r10,%xmm0\n", STACK_ARGUMENTS),
    "counted_by_it": ("shlx %r10,%rdi,%rax\n", STACK_ARGUMENTS),
    "low_namesake": ("mov (%rdx),%rax\nmovzbl %dl,%eax\nmov $7,%edx\n", ""),
    "byte_of_it": ("mov %dil,%r10b\nmov (%r10),%rax\n", STACK_ARGUMENTS),
    "half_of_it": ("mov %di,%r10w\nadd %r10,%rax\n", STACK_ARGUMENTS),
    "perhaps_overwritten": ("test %edi,%edi\ncmovne %rsi,%r10\nadd %r10,%rax\n", STACK_ARGUMENTS),
    "one_way": (f"{BRANCH}mov (%rdi),%r10\nadd %r10,%rax\njmp 2f\n1: mov (%r10),%rax\n2:\n", STACK_ARGUMENTS),
    "no_way": (f"mov (%rdi),%r10\n{BRANCH}add %r10,%rax\njmp 2f\n1: mov (%r10),%rax\n2:\n", ""),
    "around": (
        "jmp 2f\n1: mov (%r10),%rax\njmp 3f\n2: test %edi,%edi\nje 1b\nmov (%rdi),%r10\njmp 1b\n3:\n",
        STACK_ARGUMENTS,
    ),
    "copy": ("mov %r10,%rcx\n", STACK_ARGUMENTS),
    "added": ("add %r10,%rcx\n", STACK_ARGUMENTS),
    "index": ("lea (%rdi,%r10),%rcx\n", STACK_ARGUMENTS),
    "passed": ("push %r10\ncall plain\npop %rcx\n", STACK_ARGUMENTS),
    "stored": ("mov %r10,-40(%rbp)\n", STACK_ARGUMENTS),
    "after_a_call_that_may_keep_it": ("call plain\nmov (%r10),%rax\n", STACK_ARGUMENTS),
    "after_a_call_of_any": ("call *%rdi\nmov (%r10),%rax\n", ""),
    "after_a_call_elsewhere": ("call printf@PLT\nmov (%r10),%rax\n", ""),
    "after_a_system_call": ("mov $39,%eax\nsyscall\nmov (%r10),%rax\n", STACK_ARGUMENTS),
    "word": (RELOAD.replace("%r10", "%rax"), STACK_ARGUMENTS),
    "word_back": (f"mov (%rdi),%r10\n{RELOAD}{ARGUMENT}", STACK_ARGUMENTS),
    "word_popped": ("lea -8(%rbp),%rsp\npop %r10\nmov 8(%r10),%rax\nsub $8,%rsp\n", STACK_ARGUMENTS),
    "word_compared": ("cmp -8(%rbp),%rdi\n", STACK_ARGUMENTS),
    "return_address": ("mov -8(%r10),%rax\n", RETURN_ADDRESS),
    "copy_of_return_address": ("mov 8(%rbp),%rax\n", RETURN_ADDRESS),
    "address_above_the_frame": ("lea 16(%rbp),%rax\n", RETURN_ADDRESS),
    "frame_address": ("mov %rbp,%rax\n", RETURN_ADDRESS),
    "copy_of_return_address_at_the_end": (f"{RELOAD}.cfi_def_cfa 10,0\nmov 8(%rbp),%rax\n", RETURN_ADDRESS),
    "frame_address_at_the_end": (f"{RELOAD}.cfi_def_cfa 10,0\nmov %rbp,%rax\n", RETURN_ADDRESS),
    "word_at_the_end": (f"{RELOAD}.cfi_def_cfa 10,0\nmov -8(%rbp),%rax\n", STACK_ARGUMENTS),
    "saved_rbp": ("mov (%rbp),%rax\n", ""),
    "table": (f"{TABLE}jmp *%rax\n6: mov (%rdi),%r10\nadd %r10,%rax\n7: mov $3,%r10d\n{ENTRIES}", ""),
    "table_and_argument": (f"{TABLE}jmp *%rax\n6: mov (%rdi),%r10\n7: add %r10,%rax\n{ENTRIES}", STACK_ARGUMENTS),
    "table_in_it": (f"mov (%rsi),%r10\n{TABLE}jmp *%rax\n6: mov (%rdi),%r10\n7: add %r10,%rax\n{ENTRIES}", ""),
}  # fmt: skip
BEGIN = (
    "lea 8(%rsp),%r10\n.cfi_def_cfa 10,0\nand $-32,%rsp\npush -8(%r10)\npush %rbp\nmov %rsp,%rbp\n"
    ".cfi_escape 0x10,0x6,0x2,0x76,0\npush %r10\n.cfi_escape 0xf,0x3,0x76,0x78,0x6\nsub $40,%rsp\n"
)
END = "mov -8(%rbp),%r10\n.cfi_def_cfa 10,0\nleave\nlea -8(%r10),%rsp\n.cfi_def_cfa 7,8\nret\n"
PLAIN = "mov %rdi,%rax\nadd $7,%rax\nret\n"
# Parts of functions, entered by jumps, and functions with such parts.
PART = ".cfi_escape 0xf,0x3,0x76,0x78,0x6\n"
GOES = "test %edi,%edi\nje {0}\nbehind_{0}:\n"
WITH_PARTS: Mapping[str, tuple[str, str]] = {
    "harmless_part": (f"{PART}call plain\nmov $1,%r10d\njmp behind_harmless_part\n", "a part of another function"),
    "has_harmless_part": (f"{BEGIN}{GOES.format('harmless_part')}{END}", ""),
    "reading_part": (f"{PART}{ARGUMENT}ud2\n", "a part of another function"),
    "has_reading_part": (f"{BEGIN}{GOES.format('reading_part')}{END}", STACK_ARGUMENTS),
    # Where it is entered the register may hold the CFA already.
    "passing_part": (f"{PART}jmp behind_passing_part\n", "a part of another function"),
    "has_passing_part": (f"{BEGIN}{GOES.format('passing_part')}{END}", STACK_ARGUMENTS),
    "entered_part": (f"{PART}mov $1,%r10d\ninside_part: mov %r10,%rax\nud2\n", "a part of another function"),
    "has_entered_part": (f"{BEGIN}test %edi,%edi\nje inside_part\nje entered_part\n{END}", STACK_ARGUMENTS),
    "second_part": (f"{PART}mov $1,%r10d\nud2\nsecond_inside: mov $1,%r10d\nud2\n", "a part of another function"),
    "has_second_part": (f"{BEGIN}test %edi,%edi\nje second_inside\nje second_part\n{END}", ""),
    "third_part": (f"{PART}mov $1,%r10d\nud2\nthird_inside: mov %r10,%rax\nud2\n", "a part of another function"),
    "has_third_part": (f"{BEGIN}test %edi,%edi\nje third_inside\nje third_part\n{END}", STACK_ARGUMENTS),
    # It comes back with the CFA in the register, to where nothing else leads.
    "returning_part": (f"{PART}{RELOAD}jmp back\n", "a part of another function"),
    "has_returning_part": (
        f"{BEGIN}mov $1,%r10d\n{GOES.format('returning_part')}jmp 8f\nback: {ARGUMENT}8:{END}",
        STACK_ARGUMENTS,
    ),
}
# gcc takes r13 where the function ends in a call or hands on a static chain.
OTHER_BEGIN = (
    "push %r13\n.cfi_def_cfa_offset 16\n.cfi_offset 13,-16\nlea 16(%rsp),%r13\n.cfi_def_cfa 13,0\nand $-32,%rsp\n"
    "push -8(%r13)\npush %rbp\nmov %rsp,%rbp\n.cfi_escape 0x10,0x6,0x2,0x76,0\npush %r13\n"
    ".cfi_escape 0xf,0x3,0x76,0x78,0x6\n"
)
OTHER_END = (
    "mov -8(%rbp),%r13\n.cfi_def_cfa 13,0\nleave\nlea -16(%r13),%rsp\n.cfi_def_cfa 7,16\npop %r13\n"
    ".cfi_def_cfa_offset 8\njmp plain\n"
)
OTHERS: Mapping[str, tuple[str, str]] = {
    "preserved": (f"{OTHER_BEGIN}call plain\nmov (%rdi),%r13\nadd %r13,%rax\n{OTHER_END}", ""),
    "preserved_argument": (f"{OTHER_BEGIN}call *%rdi\nmov 8(%r13),%rax\n{OTHER_END}", STACK_ARGUMENTS),
    "two_registers": (
        f"lea 8(%rsp),%r11\n.cfi_def_cfa 11,0\nmov %r11,%rax\n.cfi_def_cfa 7,8\n{BEGIN}{END}",
        UNKNOWN_FRAME,
    ),
    "plain": (PLAIN, ""),
}
ALL = {
    **{name: (f"{BEGIN}{body}{END}", reason) for name, (body, reason) in CASES.items()},
    **WITH_PARTS,
    **OTHERS,
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("realigned")
    text = ".text\n"
    for name, (body, _) in ALL.items():
        text += (
            f".p2align 4\n.type {name},@function\n{name}:\n.cfi_startproc\n{body}.cfi_endproc\n.size {name},.-{name}\n"
        )
    (folder / "cases.s").write_text(text + ".section .note.GNU-stack\n")
    subprocess.run(["gcc", "-shared", "-nostdlib", "-o", folder / "cases.so", folder / "cases.s"], check=True)
    return folder / "cases.so"


@pytest.fixture(scope="module")
def plans(library: Path) -> dict[str, FunctionPlan]:
    """By in-stack call or not at all."""
    return {plan.name: plan for plan in plan_functions(find_functions(library, ["*"]), strategy="in-stack")}


@pytest.mark.parametrize("name", ALL)
def test_strategy_or_reason(name: str, plans: dict[str, FunctionPlan]) -> None:
    reason = ALL[name][1]
    assert plans[name].reason == reason
    assert plans[name].strategy == (None if reason else IN_STACK_CALL)


def test_rows_of_the_displaced_instruction(plans: dict[str, FunctionPlan]) -> None:
    """The canonical frame address is in the register behind it."""
    assert plans["nothing"].displaced_offsets == (0, 5)
    assert plans["nothing"].displaced_rows == ((5, 10, 0),)


def test_both_scans_agree(library: Path) -> None:
    """The C core and iced-x86; most harmless functions are judged by the C core."""
    image = ElfImage(str(library), library.read_bytes())
    found = scans.Scans(image, image.frames.frames)
    known = [index for index in range(len(image.frames.frames)) if index not in found.unknown]
    for index in known:
        assert found.at(index) == scan_function(image, image.frames.frames[index])
    harmless = sum(not reason for _, reason in ALL.values())
    assert harmless * 0.6 < len(known)
