# SPDX-License-Identifier: Apache-2.0
"""Which strategy a function is probed with, or the named reason why it is not.

    entry:  [endbr64]  displaced instructions ............ body ............ ret
                       ^ site: 5 bytes or more become a jump to the trampoline

Strategy *in-stack call*: the trampoline calls the displaced instructions, so the body stays where it is and
everything below the return address moves down by 16 bytes. That is right only for a function that never looks
at its stack arguments or return address. Strategy *GOT slot*: calls that leave a module through a slot go to
the trampoline; no code changes. Decides only, touches nothing. Called by the command line and trampoline.py.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iced_x86 import Code, Decoder, FlowControl, Instruction, Mnemonic, OpKind

from otel_nfprobe.branches import scan_module
from otel_nfprobe.ehframe import RSP, FrameError
from otel_nfprobe.errors import NfprobeError, UsageError
from otel_nfprobe.modules import Module
from otel_nfprobe.relocate import JUMP_BYTES, ends_flow, relocate
from otel_nfprobe.scan import NO_ENTRY, UNDECODABLE, UNKNOWN_FRAME, FunctionScan
from otel_nfprobe.symbols import Function
from otel_nfprobe.tailcalls import CALLER_SENSITIVE, RETURNS_TWICE, TailCalls, comes_back
from otel_nfprobe.target import Target

IN_STACK_CALL = "in-stack call"
GOT_SLOT = "GOT slot"
STRATEGIES = {"in-stack": IN_STACK_CALL, "got": GOT_SLOT}  # names on the command line

IN_LINKER = "in the dynamic linker"
IN_LIBRARY = "in the probe library"
PLT_STUB = "PLT stub"
PROGRAM_START = "nothing called it: a program or thread starts here"
SIGNAL_RETURN = "signal return"
NEVER_RETURNS = "never returns"
RUNTIME = "runtime support that must not be interfered with"
TOO_SHORT = "too short"
BRANCH_INSIDE = "branch into the displaced bytes"
OWN_LOOP = "branches to its own start"
TAIL_LOOP = "functions that it ends in a jump to jump back to its start"
CALL_INSIDE = "call among the displaced instructions"
SYSTEM_CALL_INSIDE = "system call among the displaced instructions"
NOT_EXPORTED = "not exported, so no GOT slot leads to it"
# What stands at the entry is in the way; the function itself could be called from a trampoline.
ENTRY_REASONS = frozenset((TOO_SHORT, BRANCH_INSIDE, OWN_LOOP, TAIL_LOOP, CALL_INSIDE, SYSTEM_CALL_INSIDE))

_NEVER_RETURNING = re.compile(
    r"_*(sig)?longjmp(_chk|_cancel)?|setcontext|siglongjmp|_*exit|_Exit|quick_exit|abort|pthread_exit|thrd_exit"
    r"|__assert_fail|__assert_perror_fail|__cxa_(re)?throw|_Unwind_\w+|__fortify_fail|__chk_fail|__stack_chk_fail"
    r"|__libc_fatal|clib_longjmp|clib_calljmp"
)
_RUNTIME = re.compile(
    r"__tls_get_addr\w*|_dl_runtime_resolve\w*|_dl_fixup|_dl_debug_state|__x86_\w*thunk\w*|__llvm_\w*thunk\w*"
    r"|__fentry__|_?mcount|__restore_rt|__cxa_finalize|__morestack\w*|__register_frame\w*|__deregister_frame\w*"
)
_SYSTEM_CALLS = frozenset(
    (Mnemonic.SYSCALL, Mnemonic.SYSENTER, Mnemonic.INT, Mnemonic.INT1, Mnemonic.INT3, Mnemonic.INTO)
)
_ENDBR_BYTES = 4
_PADDING_READ_BYTES = 16
_LONGEST_INSTRUCTION_BYTES = 15


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """What will be done to one function, or why nothing.

    Attributes:
        function: which one.
        strategy: IN_STACK_CALL, GOT_SLOT, or None when it is refused.
        reason: why it is refused, or why the strategy is not the usual one; else "".
        site: address in the process of the first changed byte: code, or one GOT slot.
        site_bytes: what stands there before.
        displaced: the instructions that the trampoline takes over; without padding.
        displaced_offsets: from the site to each displaced instruction and, when flow goes on behind them, to
            the first byte behind them.
        displaced_rows: (offset from the site, DWARF register, offset): the CFA from each of them on, where it
            differs from the one before; rsp + 8 at first.
    """

    function: Function
    strategy: str | None
    reason: str = ""
    site: int = 0
    site_bytes: bytes = b""
    displaced: bytes = b""
    displaced_offsets: tuple[int, ...] = ()
    displaced_rows: tuple[tuple[int, int, int], ...] = ()

    @property
    def module(self) -> Module:
        """The function's module."""
        return self.function.module

    @property
    def offset(self) -> int:
        """The function's address in its file."""
        return self.function.offset

    @property
    def size(self) -> int:
        """The function's bytes."""
        return self.function.size

    @property
    def address(self) -> int:
        """The function's address in the process."""
        return self.function.address

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def name_source(self) -> str:
        """Where the name is from."""
        return self.function.name_source

    @property
    def is_slot(self) -> bool:
        """Whether the site is a GOT slot."""
        return self.strategy == GOT_SLOT


def plan_functions(
    functions: Sequence[Function], target: Target | None = None, strategy: str | None = None
) -> list[FunctionPlan]:
    """One plan for each function.

    Args:
        functions: of a process, or of files.
        target: the process, to see where jumps through GOT slots lead; without it they are judged by name.
        strategy: a name of STRATEGIES: only this one.

    Raises:
        UsageError: there is no such strategy.
        NfprobeError: a module is malformed.
    """
    if strategy is not None and strategy not in STRATEGIES:
        raise UsageError(f"No strategy is called {strategy!r}; there are {', '.join(STRATEGIES)}.")
    tail_calls = TailCalls(target)
    return [_plan(function, tail_calls, strategy) for function in functions]


def plan_function(function: Function, target: Target | None = None, strategy: str | None = None) -> FunctionPlan:
    """The plan of one function. As plan_functions, which is faster for many."""
    return plan_functions([function], target, strategy)[0]


def relocate_displaced(plan: FunctionPlan, new_address: int) -> tuple[bytes, list[int]]:
    """The displaced instructions for another address, with a jump back where flow goes on behind them.

    Returns the code and, for each of `plan.displaced_offsets`, the offset in it. For a GOT slot the code is a
    jump to the function.

    Raises:
        NfprobeError: an instruction cannot be moved so far; the sentence is the reason.
    """
    if plan.is_slot:
        return b"\xff\x25\0\0\0\0" + plan.address.to_bytes(8, "little"), [0]
    return relocate(plan.displaced, plan.site, new_address, plan.site + len(plan.site_bytes))


def _plan(function: Function, tail_calls: TailCalls, strategy: str | None) -> FunctionPlan:
    reason = _refuse_function(function, tail_calls)
    if reason:
        return FunctionPlan(function, None, reason)
    if strategy == "got":
        return _slot_plan(function, "asked for") if function.exported else FunctionPlan(function, None, NOT_EXPORTED)
    plan = _plan_entry(function)
    if plan.strategy is None and strategy is None and plan.reason in ENTRY_REASONS and function.exported:
        return _slot_plan(function, plan.reason)
    return plan


def _slot_plan(function: Function, reason: str) -> FunctionPlan:
    return FunctionPlan(function, GOT_SLOT, reason, displaced_offsets=(0,))


def _refuse_function(function: Function, tail_calls: TailCalls) -> str:
    """Why the function can be probed at no place, or ""."""
    module = function.module
    if module.is_dynamic_linker:
        return IN_LINKER
    if module.is_probe_library:
        return IN_LIBRARY
    reason = _refuse_name(function)
    if reason:
        return reason
    scan = scan_module(module.image)
    index = scan.index_of(function.offset)
    own = scan.at(index)
    if own.outermost:
        return PROGRAM_START
    if function.frame.common.is_signal_frame:
        return SIGNAL_RETURN
    if not own.own_entry or any(".cold" in alias for alias in function.aliases):
        return NO_ENTRY
    if _jumps_into_others(own, module) and not scan.is_called(function.offset):
        return NO_ENTRY
    return tail_calls.trouble(module, index) or ("" if own.has_exit else NEVER_RETURNS)


def _refuse_name(function: Function) -> str:
    if function.name_source == "section":
        return PLT_STUB
    for alias in function.aliases:
        if RETURNS_TWICE.fullmatch(alias):
            return "returns twice"
        if CALLER_SENSITIVE.fullmatch(alias):
            return "looks at its caller"
        if _NEVER_RETURNING.fullmatch(alias):
            return NEVER_RETURNS
        if _RUNTIME.fullmatch(alias):
            return RUNTIME
    return ""


def _jumps_into_others(scan: FunctionScan, module: Module) -> bool:
    whole = scan_module(module.image)
    for target in scan.jumps:
        index = whole.index_of(target)
        inside = index >= 0 and whole.starts[index] != target
        if inside and not module.image.section_of(target).startswith(".plt"):
            return True
    return False


def _plan_entry(function: Function) -> FunctionPlan:
    """In-stack call, if the bytes at the entry allow it."""
    image, start = function.module.image, function.offset
    end = start + function.size
    head = image.read(start, _ENDBR_BYTES)
    site = start + (_ENDBR_BYTES if head == b"\xf3\x0f\x1e\xfa" else 0)
    code = image.read(site, min(JUMP_BYTES + _LONGEST_INSTRUCTION_BYTES, max(0, end - site)))
    taken: list[Instruction] = []
    length = 0
    for instruction in Decoder(64, code, ip=site):
        if length >= JUMP_BYTES:
            break
        taken.append(instruction)
        length += instruction.len
    reason = _refuse_taken(function, taken, length)
    if not reason and length < JUMP_BYTES:
        reason = _refuse_padding(function, site, length)
    scan = scan_module(image)
    own = scan.at(scan.index_of(start))
    changed = max(length, JUMP_BYTES)
    if not reason and (start in own.near or site in own.near):
        reason = OWN_LOOP
    if not reason and comes_back(scan, scan.index_of(start)):
        reason = TAIL_LOOP
    if not reason and scan.enters(site + 1, site + changed):
        reason = BRANCH_INSIDE
    rows: tuple[tuple[int, int, int], ...] | None = ()
    offsets = _boundaries(taken, site)
    if not reason:
        rows = _rows(function, site, offsets)
        reason = UNKNOWN_FRAME if rows is None else ""
    if reason:
        return FunctionPlan(function, None, reason)
    return FunctionPlan(
        function,
        IN_STACK_CALL,
        "",
        function.module.base + site,
        image.read(site, changed),
        code[:length],
        offsets,
        rows or (),
    )


def _refuse_taken(function: Function, taken: list[Instruction], length: int) -> str:
    for position, instruction in enumerate(taken):
        last = position == len(taken) - 1
        if instruction.code == Code.INVALID:
            return UNDECODABLE
        if instruction.mnemonic in _SYSTEM_CALLS or instruction.flow_control == FlowControl.XBEGIN_XABORT_XEND:
            return SYSTEM_CALL_INSIDE
        if instruction.flow_control in (FlowControl.CALL, FlowControl.INDIRECT_CALL):
            # A thread inside the call returns behind it: harmless only where nothing was changed.
            near = instruction.op0_kind == OpKind.NEAR_BRANCH64
            inside = near and 0 <= instruction.near_branch_target - function.offset < function.size
            # What the function catches or cleans up is found by the call's own address.
            if not last or length < JUMP_BYTES or inside or function.frame.has_lsda:
                return CALL_INSIDE
        if ends_flow(instruction) and not last:
            return TOO_SHORT
    return "" if taken else TOO_SHORT


def _refuse_padding(function: Function, site: int, length: int) -> str:
    """Whether what follows a function shorter than a jump is padding that nobody executes."""
    image, end = function.module.image, function.offset + function.size
    missing = JUMP_BYTES - length
    following = bisect_left(image.frames.starts, end)
    taken = any(start < end + missing for start in image.frames.starts[following : following + 1])
    if site + length != end or taken or image.names_address(end, end + missing):
        return TOO_SHORT
    covered = 0
    for instruction in Decoder(64, image.read(end, _PADDING_READ_BYTES), ip=end):
        if instruction.mnemonic not in (Mnemonic.NOP, Mnemonic.INT3):
            break
        covered += instruction.len
    return "" if covered >= missing else TOO_SHORT


def _boundaries(taken: list[Instruction], site: int) -> tuple[int, ...]:
    offsets = [int(instruction.ip) - site for instruction in taken]
    if taken and not ends_flow(taken[-1]):
        offsets.append(int(taken[-1].next_ip) - site)
    return tuple(offsets)


def _rows(function: Function, site: int, offsets: Sequence[int]) -> tuple[tuple[int, int, int], ...] | None:
    try:
        rows = function.frame.rules().rows
    except FrameError:
        return None
    found: list[tuple[int, int, int]] = []
    before = (RSP, 8)
    for offset in offsets:
        row = [row for row in rows if row.address <= site + offset][-1]
        if row.register < 0:
            return None
        if (row.register, row.offset) != before:
            before = (row.register, row.offset)
            found.append((offset, *before))
    return tuple(found)


def find_slots(target: Target, plans: Sequence[FunctionPlan]) -> list[FunctionPlan]:
    """One plan for each GOT slot that leads to a function whose strategy is GOT_SLOT.

    Slots of the dynamic linker and the probe library are left alone. A slot that still leads to the dynamic
    linker counts for the function that its name will be bound to.

    Raises:
        NfprobeError: the target has ended.
    """
    from otel_nfprobe.slots import slots_leading_to

    wanted = {plan.address: plan for plan in plans if plan.is_slot}
    found = []
    for slot in slots_leading_to(target, {address: plan.function for address, plan in wanted.items()}):
        plan = wanted[slot.function]
        found.append(replace(plan, site=slot.address, site_bytes=slot.value.to_bytes(8, "little")))
    return found


def refused(plans: Sequence[FunctionPlan]) -> dict[str, int]:
    """Number of refused functions by reason, the most frequent first."""
    counts: dict[str, int] = {}
    for plan in plans:
        if plan.strategy is None:
            counts[plan.reason] = counts.get(plan.reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


__all__ = [
    "FunctionPlan",
    "NfprobeError",
    "find_slots",
    "plan_function",
    "plan_functions",
    "refused",
    "relocate_displaced",
]
