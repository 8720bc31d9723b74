# SPDX-License-Identifier: Apache-2.0
"""Strategy and refusal of functions written for the purpose, and the displaced instructions of real ones."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from iced_x86 import Decoder, FlowControl, OpKind

from otel_nfprobe.arch.code_facts import (
    NO_ENTRY,
    POINTER_TAIL,
    POPS_ARGUMENTS,
    RETURN_ADDRESS,
    STACK_ARGUMENTS,
    UNDECODABLE,
)
from otel_nfprobe.arch.tailcalls import CALLER_TAIL, TWICE_TAIL
from otel_nfprobe.arch.x86_64.sites import BRANCH_INSIDE, CALL_INSIDE, SYSTEM_CALL_INSIDE, TOO_SHORT
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.base.strategies import COPIED_ARGUMENTS, ENTRY_ONLY, GOT_SLOT, IN_STACK_CALL, RELOCATED_BODY
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import Function, find_functions, functions_of
from otel_nfprobe.probes import analysis
from otel_nfprobe.probes.analysis import NEVER_RETURNS, OWN_LOOP, FunctionPlan, plan_functions, relocate_displaced
from tests.support.marks import thorough

LIBZ = next(Path("/lib").glob("*/libz.so.1"))

# name: (body in AT&T syntax, expected reason or "" for an in-stack call). Local symbols, each aligned to 16.
CASES: Mapping[str, tuple[str, str]] = {
    "plain": ("mov %rdi,%rax\nadd $7,%rax\nret", ""),
    "short_padded": ("xor %eax,%eax\nret", ""),
    "endbr": ("endbr64\nmov %rdi,%rax\nadd $7,%rax\nret", ""),
    "stack_argument": ("mov 8(%rsp),%rax\nadd %rdi,%rax\nret", STACK_ARGUMENTS),
    "stack_argument_after_push": (
        "push %rbx\n.cfi_adjust_cfa_offset 8\nmov 16(%rsp),%rax\npop %rbx\n.cfi_adjust_cfa_offset -8\nret",
        STACK_ARGUMENTS,
    ),
    "saved_register_is_no_argument": (
        "push %rbx\n.cfi_adjust_cfa_offset 8\nmov (%rsp),%rax\npop %rbx\n.cfi_adjust_cfa_offset -8\nret",
        "",
    ),
    "frame_pointer": (
        "push %rbp\n.cfi_def_cfa_offset 16\nmov %rsp,%rbp\n.cfi_def_cfa_register 6\nmov 16(%rbp),%rax\n"
        "pop %rbp\n.cfi_def_cfa 7,8\nret",
        STACK_ARGUMENTS,
    ),
    "frame_pointer_locals": (
        "push %rbp\n.cfi_def_cfa_offset 16\nmov %rsp,%rbp\n.cfi_def_cfa_register 6\nmov -8(%rbp),%rax\n"
        "pop %rbp\n.cfi_def_cfa 7,8\nret",
        "",
    ),
    "copied_stack_pointer": ("mov %rsp,%rax\nmov %rdi,%rcx\nmov 8(%rax),%rax\nret", STACK_ARGUMENTS),
    "variable_arguments": ("lea 8(%rsp),%rax\nmov %rax,(%rdi)\nret", STACK_ARGUMENTS),
    "callee_pops": ("mov %rdi,%rax\nadd $7,%rax\nret $8", POPS_ARGUMENTS),
    "realigned": (
        "lea 8(%rsp),%r10\n.cfi_def_cfa 10,0\nand $-32,%rsp\npush -8(%r10)\npush %rbp\nmov %rsp,%rbp\n"
        ".cfi_escape 0x10,0x6,0x2,0x76,0\npush %r10\n.cfi_escape 0xf,0x3,0x76,0x78,0x6\nmov -16(%rbp),%rax\n"
        "mov -8(%rbp),%r10\n.cfi_def_cfa 10,0\nleave\nlea -8(%r10),%rsp\n.cfi_def_cfa 7,8\nret",
        "",
    ),
    "realigned_argument": (
        "lea 8(%rsp),%r10\n.cfi_def_cfa 10,0\nand $-32,%rsp\npush -8(%r10)\npush %rbp\nmov %rsp,%rbp\n"
        ".cfi_escape 0x10,0x6,0x2,0x76,0\npush %r10\n.cfi_escape 0xf,0x3,0x76,0x78,0x6\nmov (%r10),%rax\n"
        "mov -8(%rbp),%r10\n.cfi_def_cfa 10,0\nleave\nlea -8(%r10),%rsp\n.cfi_def_cfa 7,8\nret",
        STACK_ARGUMENTS,
    ),
    "return_address": ("mov (%rsp),%rax\nmov %rax,(%rdi)\nret", RETURN_ADDRESS),
    "pops_return_address": ("pop %rdx\nmov %rdi,%rax\nadd $7,%rax\njmp *%rdx", RETURN_ADDRESS),
    "jump_into_start": (
        "1: mov %rdi,%rax\n2: dec %rdi\nadd %rdi,%rax\ntest %rdi,%rdi\njne 2b\nret",
        "",
    ),
    "jump_behind_a_byte": (
        "push %rbx\n.cfi_adjust_cfa_offset 8\n1: dec %rdi\njne 1b\npop %rbx\n.cfi_adjust_cfa_offset -8\nret",
        BRANCH_INSIDE,
    ),
    "loop_to_start": ("1: dec %rdi\nmov %rdi,%rax\njne 1b\nret", OWN_LOOP),
    "early_call": ("call *%rax\nnop\nnop\nnop\nnop\nret", CALL_INSIDE),
    "call_is_last_displaced": (
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\ncall plain\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\nret",
        "",
    ),
    "short_call": ("jmp plain", ""),
    "system_call": ("mov %edi,%eax\nsyscall\nnop\nnop\nret", ""),
    "trap": ("mov %edi,%eax\nint $3\nnop\nnop\nret", SYSTEM_CALL_INSIDE),
    "endless": ("1: mov %rdi,%rax\nadd $7,%rax\n2: pause\njmp 2b", NEVER_RETURNS),
    "bad_bytes": (".byte 0x06,0x06,0x06,0x06,0x06\nret", UNDECODABLE),
    "tail_to_stack_argument": ("lea 1(%rdi),%rdi\nadd $7,%rax\njmp stack_argument", STACK_ARGUMENTS),
    "tail_to_plain": ("lea 1(%rdi),%rdi\nadd $7,%rax\njmp plain", ""),
    "tail_after_call": (
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\ncall plain\nadd $8,%rsp\n.cfi_adjust_cfa_offset -8\n"
        "mov %rax,%rdi\njmp stack_argument",
        "",
    ),
    "tail_through_pointer": ("mov 16(%rdi),%rax\ntest %rax,%rax\njmp *%rax", POINTER_TAIL),
    "called_tail_through_pointer": ("mov 16(%rdi),%rax\ntest %rax,%rax\njmp *%rax", ""),
    "its_caller": (
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\ncall plain\nmov %rax,%rdi\ncall called_tail_through_pointer\n"
        "add $8,%rsp\n.cfi_adjust_cfa_offset -8\nret",
        "",
    ),
    "six_argument_caller": (
        "sub $8,%rsp\n.cfi_adjust_cfa_offset 8\ncall plain\nmov %rax,%r9\ncall tail_through_pointer\n"
        "add $8,%rsp\n.cfi_adjust_cfa_offset -8\nret",
        "",
    ),
    "jump_table": (
        "cmp $3,%rdi\nja 9f\nlea 8f(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\nnotrack jmp *%rax\n"
        "9: xor %eax,%eax\nret\n.pushsection .rodata\n.p2align 2\n"
        "8: .long 9b-8b,9b-8b,9b-8b,9b-8b\n.popsection",
        "",
    ),
    "table_and_stack_argument": (
        "mov 16(%rsp),%rsi\nlea 8f(%rip),%rdx\nmovslq (%rdx,%rdi,4),%rax\nadd %rdx,%rax\njmp *%rax\n"
        "9: lea (%rsi,%rdi),%rax\nret\n.pushsection .rodata\n.p2align 2\n8: .long 9b-8b\n.popsection",
        STACK_ARGUMENTS,
    ),
    "printf_few": ("lea few(%rip),%rdi\nmov %rsi,%rdx\nxor %eax,%eax\njmp printf@PLT", ""),
    "to_setjmp": ("lea 1(%rdi),%rdi\nadd $7,%rax\njmp _setjmp@PLT", TWICE_TAIL),
    "to_dlsym": ("lea 1(%rdi),%rdi\nadd $7,%rax\njmp dlsym@PLT", CALLER_TAIL),
    "fragment.cold": ("mov %rdi,%rax\nadd $7,%rax\nret", NO_ENTRY),
    "longjmp": ("mov %rdi,%rax\nadd $7,%rax\nret", NEVER_RETURNS),
    # As in gcc's .cold parts that begin with an exception handler: one read in C, one by iced-x86.
    "handler": ("nop\n.cfi_def_cfa_offset 80\nmov %rax,%rbx\nmov %rbx,%rdi\nhlt", NO_ENTRY),
    "wide_handler": ("nop\n.cfi_def_cfa_offset 80\nmov %rax,%rbx\nvmovaps %ymm0,(%rsp)\nvzeroupper\nhlt", NO_ENTRY),
    "nop_first": ("nop\nmov %rdi,%rax\nadd $7,%rax\nret", ""),
    "__tls_get_addr": ("mov %rdi,%rax\nadd $7,%rax\nret", analysis.RUNTIME),
    "setjmp": ("mov %rdi,%rax\nadd $7,%rax\nret", "returns twice"),
    "dladdr": ("mov %rdi,%rax\nadd $7,%rax\nret", "inspects its caller"),
}


def _assembly() -> str:
    text = '.text\n.section .rodata\nfew: .string "%d of %d%%\\n"\n.text\n'
    for name, (body, _) in CASES.items():
        text += f'.p2align 4\n.type "{name}",@function\n"{name}":\n.cfi_startproc\n{body}\n.cfi_endproc\n'
        text += f'.size "{name}",.-"{name}"\n'
    # Exported, and a jump is in the way; tight: no padding behind a function of one byte.
    text += ".globl exported\n.p2align 4\n.type exported,@function\nexported:\n.cfi_startproc\n1: dec %rdi\n"
    text += "jne 1b\nret\n.cfi_endproc\n.size exported,.-exported\n"
    text += ".type tight,@function\n.p2align 4\ntight:\n.cfi_startproc\nret\n.cfi_endproc\n.size tight,.-tight\n"
    text += ".type behind,@function\nbehind:\n.cfi_startproc\nmov %rdi,%rax\nadd $7,%rax\nret\n.cfi_endproc\n"
    text += ".size behind,.-behind\n.globl tight_exported\n.type tight_exported,@function\n.p2align 4\n"
    text += "tight_exported:\n.cfi_startproc\nret\n.cfi_endproc\n.size tight_exported,.-tight_exported\n"
    text += ".type beside,@function\nbeside:\n.cfi_startproc\nmov %rdi,%rax\nadd $7,%rax\nret\n.cfi_endproc\n"
    # A part of `parent` behind another function: it is entered by a jump, with the parent's frame.
    text += ".size beside,.-beside\n.p2align 4\n.type trapped,@function\ntrapped:\n.cfi_startproc\nud2\n"
    text += ".cfi_endproc\n.size trapped,.-trapped\n.p2align 4\n"
    text += ".type parent,@function\nparent:\n.cfi_startproc\npush %rbx\n"
    text += ".cfi_adjust_cfa_offset 8\ntest %rdi,%rdi\nje part\n3: pop %rbx\n.cfi_adjust_cfa_offset -8\nret\n"
    text += ".cfi_endproc\n.size parent,.-parent\n.p2align 4\n.type part,@function\npart:\n.cfi_startproc\n"
    text += ".cfi_def_cfa_offset 16\nmov 16(%rsp),%rax\nnop\njmp 3b\n.cfi_endproc\n.size part,.-part\n"
    # As glibc's __memcpy_chk_avx512_unaligned: what is behind them is run, too.
    text += ".p2align 6\n.type checks,@function\nchecks:\n.cfi_startproc\ncmp %rdx,%rcx\njb checks_end\n"
    text += "nopl 0(%rax,%rax)\n.cfi_endproc\n.size checks,.-checks\n.p2align 6\nchecks_end:\n"
    text += ".type checked,@function\nchecked:\n.cfi_startproc\n1: mov %rdi,%rax\n2: dec %rdi\njne 2b\nret\n"
    text += ".cfi_endproc\n.size checked,.-checked\n.p2align 5\n.type moves,@function\nmoves:\n.cfi_startproc\n"
    text += "mov %rdi,%rax\n.cfi_endproc\n.size moves,.-moves\n.p2align 5\n.type moved,@function\nmoved:\n"
    text += ".cfi_startproc\ndec %rdi\n2: dec %rdi\njne 2b\nret\n.cfi_endproc\n.size moved,.-moved\n.p2align 5\n"
    return text + ".section .note.GNU-stack\n"


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> list[Function]:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "cases.s").write_text(_assembly())
    words = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-Wl,-z,lazy",
        "-o",
        str(folder / "cases.so"),
        str(folder / "cases.s"),
    ]
    subprocess.run(words, check=True)
    return find_functions(folder / "cases.so", ["*"])


@pytest.fixture(scope="module")
def plans(functions: list[Function]) -> dict[str, FunctionPlan]:
    """By in-stack call or not at all."""
    return {plan.name: plan for plan in plan_functions(functions, strategy="in-stack")}


@pytest.fixture(scope="module")
def ladder(functions: list[Function]) -> dict[str, FunctionPlan]:
    """By whatever fits."""
    return {plan.name: plan for plan in plan_functions(functions)}


@pytest.mark.parametrize(
    ("name", "strategy", "reason"),
    [
        ("plain", IN_STACK_CALL, ""),
        ("stack_argument", RELOCATED_BODY, STACK_ARGUMENTS),
        ("callee_pops", RELOCATED_BODY, POPS_ARGUMENTS),
        ("tail_through_pointer", RELOCATED_BODY, POINTER_TAIL),
        ("dladdr", RELOCATED_BODY, "inspects its caller"),
        ("setjmp", RELOCATED_BODY, "returns twice"),
        ("exported", RELOCATED_BODY, OWN_LOOP),
        ("parent", RELOCATED_BODY, STACK_ARGUMENTS),
        ("longjmp", ENTRY_ONLY, NEVER_RETURNS),
        ("endless", ENTRY_ONLY, NEVER_RETURNS),
        ("table_and_stack_argument", COPIED_ARGUMENTS, STACK_ARGUMENTS),
        ("tight_exported", GOT_SLOT, TOO_SHORT),
        ("__tls_get_addr", None, analysis.RUNTIME),
        ("tight", None, TOO_SHORT),
        ("trapped", None, TOO_SHORT),
    ],
)
def test_ladder(name: str, strategy: str | None, reason: str, ladder: dict[str, FunctionPlan]) -> None:
    assert (ladder[name].strategy, ladder[name].reason) == (strategy, reason)


def test_copied_words(ladder: dict[str, FunctionPlan]) -> None:
    assert ladder["table_and_stack_argument"].argument_words == 2


@pytest.mark.parametrize("name", CASES)
def test_strategy_or_reason(name: str, plans: dict[str, FunctionPlan]) -> None:
    plan, expected = plans[name], CASES[name][1]
    assert plan.reason == expected
    assert plan.strategy == (None if expected else IN_STACK_CALL)


def test_endbr64_stays_in_place(plans: dict[str, FunctionPlan]) -> None:
    plan = plans["endbr"]
    assert plan.site == plan.address + 4
    assert plan.site_bytes == plan.displaced
    assert plan.displaced_offsets == (0, 3, 7)


def test_padding_is_changed_and_not_displaced(plans: dict[str, FunctionPlan]) -> None:
    plan = plans["short_padded"]
    assert plan.displaced == b"\x31\xc0\xc3"
    assert len(plan.site_bytes) == 5
    assert plan.displaced_offsets == (0, 2)


def test_frame_rows_of_displaced_instructions(plans: dict[str, FunctionPlan]) -> None:
    plan = plans["frame_pointer_locals"]
    assert plan.displaced_offsets == (0, 1, 4, 8)
    assert plan.displaced_rows == ((1, 7, 16), (4, 6, 16))


def test_an_exported_function_has_slots(plans: dict[str, FunctionPlan]) -> None:
    (slot,) = plan_functions([plans["exported"].function], strategy="got")
    assert (slot.strategy, plans["exported"].reason) == (GOT_SLOT, OWN_LOOP)


def test_a_short_jump_leads_to_an_island(plans: dict[str, FunctionPlan]) -> None:
    plan = plans["jump_into_start"]
    assert plan.single
    assert len(plan.site_bytes) == 2
    assert -128 <= plan.island - (plan.site + 2) <= 127
    base = plan.module.base
    assert plan.island_bytes == plan.module.image.read(plan.island - base, 5)
    islands = sorted(other.island for other in plans.values() if other.island)
    assert all(after - before >= 5 for before, after in pairwise(islands))
    bodies = [(other.address, other.address + other.size) for other in plans.values()]
    assert not any(low < island + 5 and island < high for island in islands for low, high in bodies)


@pytest.mark.parametrize(("name", "following"), [("checks", "checked"), ("moves", "moved")])
def test_padding_that_is_run_is_left_alone(name: str, following: str, plans: dict[str, FunctionPlan]) -> None:
    plan = plans[name]
    low, high = plan.address + plan.size, plans[following].address
    assert high - low >= 10
    assert not any(low < other.island + 5 and other.island < high for other in plans.values() if other.island)
    assert not any(low < other.site + len(other.site_bytes) <= high for other in plans.values() if other.site)


def test_a_neighbour_is_not_padding(plans: dict[str, FunctionPlan]) -> None:
    assert (plans["tight"].strategy, plans["tight"].reason) == (None, TOO_SHORT)


def test_stack_arguments_of_a_part_are_those_of_its_parent(plans: dict[str, FunctionPlan]) -> None:
    assert plans["part"].reason == NO_ENTRY
    assert plans["parent"].reason == STACK_ARGUMENTS


def test_only_the_strategy_that_is_asked_for() -> None:
    found = find_functions(LIBZ, ["crc32*"])
    assert {plan.strategy for plan in plan_functions(found, strategy="in-stack")} <= {IN_STACK_CALL, None}
    assert GOT_SLOT in {plan.strategy for plan in plan_functions(found, strategy="got")}
    with pytest.raises(UsageError, match="in-stack"):
        plan_functions(found, strategy="magic")


@cache
def _plans_at(name: str, base: int) -> list[FunctionPlan]:
    """Plans of a library as if it were loaded at `base`."""
    module = Module.from_file(next(Path("/lib").glob(f"*/{name}")))
    module.base = base
    return plan_functions(functions_of(module))


def _targets(code: bytes, address: int) -> list[int]:
    """Where branches and rip-relative operands lead, in order."""
    found = []
    for instruction in Decoder(64, code, ip=address):
        if instruction.is_ip_rel_memory_operand:
            found.append(instruction.ip_rel_memory_address)
        elif instruction.op_count and instruction.op0_kind == OpKind.NEAR_BRANCH64:
            found.append(instruction.near_branch_target)
    return found


@pytest.mark.parametrize("name", ["libz.so.1", *thorough("libcrypto.so.3"), "libc.so.6"])
@pytest.mark.parametrize("distance", [0x10_0000, -0x7000_0000, 0x7000_0000])
def test_displaced_instructions_mean_the_same_elsewhere(name: str, distance: int) -> None:
    base = 1 << 40
    moved = 0
    for plan in _plans_at(name, base)[::7]:
        if plan.strategy != IN_STACK_CALL:
            continue
        address = base + plan.offset + distance
        code, offsets = relocate_displaced(plan, address)
        moved += 1
        before, after = list(Decoder(64, plan.displaced, ip=plan.site)), list(Decoder(64, code, ip=address))
        ends = before[-1].flow_control in (
            FlowControl.RETURN,
            FlowControl.UNCONDITIONAL_BRANCH,
            FlowControl.INDIRECT_BRANCH,
        )
        assert [item.mnemonic for item in after[: len(before)]] == [item.mnemonic for item in before]
        assert offsets[: len(before)] == [item.ip - address for item in after[: len(before)]]
        expected = _targets(plan.displaced, plan.site)
        assert _targets(code, address) == expected + ([] if ends else [plan.site + len(plan.displaced)])
        assert len(offsets) == len(plan.displaced_offsets)
    assert moved > 10


def test_what_is_too_far_is_refused(plans: dict[str, FunctionPlan]) -> None:
    with pytest.raises(NfprobeError, match="too far"):
        relocate_displaced(plans["plain"], plans["plain"].site + (1 << 32))
    with pytest.raises(NfprobeError, match="too far"):
        relocate_displaced(plans["short_call"], plans["short_call"].site + (1 << 31) + 4096)


def test_a_slot_leads_to_the_function_through_a_word(plans: dict[str, FunctionPlan]) -> None:
    (slot,) = plan_functions([plans["exported"].function], strategy="got")
    code, offsets = relocate_displaced(slot, 0x1234_0000)
    (instruction, *_) = Decoder(64, code, ip=0x1234_0000)
    assert instruction.is_jmp_near_indirect
    word = instruction.ip_rel_memory_address - 0x1234_0000
    assert struct.unpack_from("<Q", code, word)[0] == plans["exported"].address
    assert offsets == [0]


def test_reasons_are_counted(plans: dict[str, FunctionPlan]) -> None:
    counts = analysis.refused(list(plans.values()))
    assert counts[STACK_ARGUMENTS] == sum(plan.reason == STACK_ARGUMENTS for plan in plans.values())
    assert sum(counts.values()) == sum(plan.strategy is None for plan in plans.values())


@pytest.mark.parametrize(
    ("name", "least"),
    [("libz.so.1", 0.9), pytest.param("libcrypto.so.3", 0.9, marks=pytest.mark.thorough), ("libc.so.6", 0.8)],
)
def test_share_of_functions_that_can_be_probed(name: str, least: float) -> None:
    found = _plans_at(name, 1 << 40)
    assert sum(plan.strategy is not None for plan in found) > least * len(found)
    assert all(plan.reason for plan in found if plan.strategy is None)
