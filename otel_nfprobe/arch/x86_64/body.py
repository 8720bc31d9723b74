# SPDX-License-Identifier: Apache-2.0
"""Relocated body: a copy of a whole function, with an exit probe on each way out.

    exits       exit probe; ret            one for each kind of return and each jump out of the function
                exit probe; jmp elsewhere
    trampoline  entry probe
    body        the function, then the parts (.cold) that it jumps to; ret and outward jumps go to an exit

The original stays complete after its first bytes: threads inside it finish there. What cannot be copied is refused:
code that jumps through tables would return to the original and miss its exit. Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iced_x86 import (
    BlockEncoder,
    Code,
    Decoder,
    FlowControl,
    Instruction,
    OpKind,
    Register,
)

from otel_nfprobe.arch.branches import ModuleScan
from otel_nfprobe.arch.code_facts import PARTS_MAX, UNDECODABLE, UNKNOWN_FRAME, Body, Exit
from otel_nfprobe.arch.x86_64.realigned import RSP
from otel_nfprobe.arch.x86_64.relocate import NOT_ENCODABLE, OUT_OF_REACH, REACH_BYTES, encode_at, ends_flow
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import Frame

HAS_TABLE = "jumps through a table"
HAS_HANDLERS = "has exception handlers or cleanups"
TAKES_OWN_ADDRESS = "takes an address inside itself"
SHARES_CODE = "jumps into the middle of another function"
RUNS_ON = "continues past its end"
TOO_LONG = "too long to be copied"

BODY_BYTES_MAX = 64 << 10
START = 1  # represents the function's start among the copied instructions: calls to it must reach the probe
BEHIND = 2  # and the following numbers: the jumps added after the parts
_JUMPS = (FlowControl.UNCONDITIONAL_BRANCH, FlowControl.CONDITIONAL_BRANCH)


def check_body(scan: ModuleScan, index: int) -> str:
    """Returns why the function at `index` of the frame table cannot be copied, or ""."""
    try:
        members = find_members(scan, index)
    except RefusedError as refusal:
        return refusal.sentence
    for member in members:
        reason = _refuse_member(scan, index, member)
        if reason:
            return reason
    return ""


def _refuse_member(scan: ModuleScan, index: int, member: int) -> str:
    frame, part = scan.frames[member], scan.at(member)
    low, high = frame.start, frame.start + frame.size
    start = scan.starts[index]
    if part.trouble == UNDECODABLE:
        return UNDECODABLE
    if part.exits_elsewhere or any(frame_at(frame, site) != (RSP, 8) for site in part.slot_sites):
        return UNKNOWN_FRAME
    if frame.has_lsda:
        return HAS_HANDLERS
    if part.has_table:
        return HAS_TABLE
    if any(low <= address < high and address != start for address in [*part.references, *part.calls]):
        return TAKES_OWN_ADDRESS
    if scan.points_into(low + 1, high):
        return HAS_TABLE
    if part.runs_on:
        return RUNS_ON  # its last part has no frame rules of its own (glibc's clone3): its ret would be missed
    return ""


def find_members(scan: ModuleScan, index: int) -> list[int]:
    """Returns the function and the parts that it jumps to, as indexes of the frame table.

    Raises:
        RefusedError: there are too many, or one is not a part but another function.
    """
    if index not in scan.members:
        scan.members[index] = _find_members(scan, index)
    return scan.members[index]


def _find_members(scan: ModuleScan, index: int) -> list[int]:
    members, waiting = [index], [index]
    while waiting:
        member = waiting.pop()
        part = scan.at(member)
        for target, frame_is_gone in zip(part.jumps, part.jumps_leave, strict=True):
            following = scan.index_of(target)
            if following in members or _leaves(scan, target, frame_is_gone):
                continue
            members.append(following)
            waiting.append(following)
    if len(members) > PARTS_MAX or sum(scan.frames[member].size for member in members) > BODY_BYTES_MAX:
        raise RefusedError(TOO_LONG)
    return members


def _leaves(scan: ModuleScan, target: int, frame_is_gone: bool) -> bool:
    """Returns whether a jump ends the call: the frame is gone, and it goes to a call target.

    Raises:
        RefusedError: it goes into another function with the frame still present.
    """
    following = scan.index_of(target)
    if following < 0 or scan.image.section_of(target).startswith(".plt"):
        if not frame_is_gone:
            raise RefusedError(SHARES_CODE)
        return True
    begins = scan.starts[following] == target and scan.at(following).own_entry
    if begins and frame_is_gone:
        return True
    if begins or scan.at(following).own_entry:
        raise RefusedError(SHARES_CODE)
    return False


def frame_at(frame: Frame, address: int) -> tuple[int, int]:
    """Returns register and offset of the canonical frame address at an instruction; (-1, 0) if unknown."""
    try:
        row = [row for row in frame.rules().rows if row.address <= address][-1]
    except FrameError:
        return -1, 0
    return row.register, row.offset


# ---- copying ---------------------------------------------------------------------------------------------------


def find_exits(scan: ModuleScan, index: int) -> list[Exit]:
    """Returns the ways out of a function's copy, each kind once, in the order of its instructions."""
    if index not in scan.exits:
        scan.exits[index] = _find_exits(scan, index)
    return scan.exits[index]


def _find_exits(scan: ModuleScan, index: int) -> list[Exit]:
    found: dict[tuple[int, int], Exit] = {}
    members = find_members(scan, index)
    for member in members:
        for instruction in _decode(scan, member):
            if instruction.flow_control == FlowControl.NEXT:
                continue  # nine out of ten
            key = _exit_key(scan, members, instruction, 0)
            if key is not None and key not in found:
                found[key] = Exit(_exit_instruction(instruction), _exit_room(instruction))
    return list(found.values())


def build_body(scan: ModuleScan, index: int, base: int, new_address: int, exit_address: Callable[[int], int]) -> Body:
    """Copies a function and its parts.

    Args:
        base: load bias of the module: the copy refers to the process's addresses.
        new_address: address of the copy.
        exit_address: address of the n-th exit of find_exits.

    Raises:
        RefusedError: the sentence is the reason.
    """
    exits: dict[tuple[int, int], int] = {}
    copied: list[Instruction] = []
    sources: list[int] = []
    bounds: list[tuple[Frame, int, int]] = []
    members, start = find_members(scan, index), scan.starts[index]
    for member in members:
        first = len(copied)
        instruction = None
        for instruction in _decode(scan, member, base):
            address = instruction.ip - base
            sources.append(address)
            if instruction.flow_control != FlowControl.NEXT or address == start:
                key = _exit_key(scan, members, instruction, base)
                target = exit_address(exits.setdefault(key, len(exits))) if key is not None else None
                copied.append(_moved(instruction, base + start, target))
            else:
                copied.append(instruction)
        end = scan.frames[member].start + scan.frames[member].size
        if instruction is not None and not ends_flow(instruction):
            sources.append(0)
            # At an address of its own: the function may call code that begins at its end, which must not lead here.
            copied.append(_jump(base + end, BEHIND + len(bounds)))
        bounds.append((scan.frames[member], first, len(copied)))
    known = {instruction.ip for instruction in copied}
    for instruction in copied:
        if instruction.flow_control == FlowControl.NEXT:
            continue
        target = _inner_target(instruction, base, bounds)
        if target is not None and target not in known:
            raise RefusedError(NOT_ENCODABLE)
    return _encode(copied, sources, bounds, new_address)


def _inner_target(instruction: Instruction, base: int, bounds: list[tuple[Frame, int, int]]) -> int | None:
    """Returns the target of a jump inside the copy: the start of a copied instruction, otherwise it would leave the
    copy.
    """
    if instruction.flow_control == FlowControl.XBEGIN_XABORT_XEND:
        raise RefusedError(NOT_ENCODABLE)
    if instruction.flow_control not in _JUMPS or instruction.op0_kind != OpKind.NEAR_BRANCH64:
        return None
    target = int(instruction.near_branch_target)
    inside = any(0 <= target - base - frame.start < frame.size for frame, _, _ in bounds)
    return target if inside else None


def _decode(scan: ModuleScan, member: int, base: int = 0) -> list[Instruction]:
    """Yields the instructions of a module loaded at `base`: addresses in them are the process's."""
    frame = scan.frames[member]
    return list(Decoder(64, scan.image.read(frame.start, frame.size), ip=base + frame.start))


def _exit_key(scan: ModuleScan, members: Sequence[int], instruction: Instruction, base: int) -> tuple[int, int] | None:
    """Returns the key of a way out, or None for an instruction that stays inside. Addresses are the file's own."""
    flow = instruction.flow_control
    if flow == FlowControl.RETURN:
        return int(instruction.code), int(instruction.immediate16) if instruction.op_count else 0
    if flow == FlowControl.INDIRECT_BRANCH:
        return -1, int(instruction.ip) - base
    if flow in _JUMPS and instruction.op0_kind == OpKind.NEAR_BRANCH64:
        target = int(instruction.near_branch_target) - base
        return None if scan.index_of(target) in members else (-2, target)
    return None


def _exit_instruction(instruction: Instruction) -> Instruction:
    if instruction.flow_control in _JUMPS:
        return _jump(int(instruction.near_branch_target), int(instruction.ip))
    return instruction


def _exit_room(instruction: Instruction) -> int:
    return 5 if instruction.flow_control in _JUMPS else 15


def _jump(target: int, address: int) -> Instruction:
    jump = Instruction.create_branch(Code.JMP_REL32_64, target)
    jump.ip = address
    return jump


def _moved(instruction: Instruction, start: int, exit_address: int | None) -> Instruction:
    """Returns the instruction for the copy: leaving through its exit.

    Args:
        instruction, start: in the process's addresses, like the function's start.
    """
    address = int(instruction.ip)
    if exit_address is not None and instruction.flow_control not in _JUMPS:
        return _jump(exit_address, address)
    moved = instruction.copy()
    if address == start:
        moved.ip = START
    if exit_address is not None:
        moved.near_branch64 = exit_address
    elif instruction.flow_control in _JUMPS and moved.op0_kind == OpKind.NEAR_BRANCH64:
        moved.near_branch64 = START if instruction.near_branch_target == start else instruction.near_branch_target
    return moved


def _encode(
    copied: Sequence[Instruction], sources: Sequence[int], bounds: list[tuple[Frame, int, int]], new_address: int
) -> Body:
    encoder = BlockEncoder(64)
    encoder.add_many(list(copied))
    try:
        code = bytes(encoder.encode(new_address))
    except ValueError as error:
        raise RefusedError(NOT_ENCODABLE) from error
    offsets: list[int] = []
    last = 0
    for wanted, found in zip(copied, Decoder(64, code, ip=new_address), strict=False):
        if found.mnemonic != wanted.mnemonic or (wanted.is_ip_rel_memory_operand and not _same_target(wanted, found)):
            raise RefusedError(NOT_ENCODABLE)
        offsets.append(last)
        last += found.len
    if len(offsets) != len(copied) or last != len(code):
        raise RefusedError(NOT_ENCODABLE)
    offsets.append(len(code))
    places = {source: offset for source, offset in zip(sources, offsets, strict=False) if source}
    parts = [(frame, offsets[first], offsets[end] - offsets[first]) for frame, first, end in bounds]
    return Body(code, places, parts)


def _same_target(wanted: Instruction, found: Instruction) -> bool:
    """Returns whether an operand relative to the instruction pointer refers to the same address."""
    same = wanted.ip_rel_memory_address == found.ip_rel_memory_address
    return bool(same and found.memory_base != Register.EIP)


def encode_exit(way_out: Exit, base: int, address: int) -> bytes:
    """Encodes the instruction after an exit probe for its address.

    Raises:
        RefusedError: what it refers to is too far away.
    """
    moved = way_out.instruction.copy()
    if moved.op_count and moved.op0_kind == OpKind.NEAR_BRANCH64:
        target = base + int(way_out.instruction.near_branch_target)
        if abs(target - address) > REACH_BYTES:
            raise RefusedError(OUT_OF_REACH)
        moved.near_branch64 = target
    if way_out.instruction.is_ip_rel_memory_operand:
        target = base + int(way_out.instruction.ip_rel_memory_address)
        if abs(target - address) > REACH_BYTES:
            raise RefusedError(OUT_OF_REACH)
        moved.memory_displacement = target
    return encode_at(moved, address)
