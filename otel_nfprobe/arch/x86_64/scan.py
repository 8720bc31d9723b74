# SPDX-License-Identifier: Apache-2.0
"""Code scan in Python: branches, exits, and how functions use their caller's frame.

The in-stack call moves a function 16 bytes away from its stack arguments, so the question is whether it, or the target
of its tail jumps, ever reads at or above its canonical frame address (CFA); the frame rules of `.eh_frame` tell where
that is. Reads bytes only. The C core (native/core/codescan.h) does the same for functions whose instructions it all
knows; this is for the others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from iced_x86 import Code, Decoder, FlowControl, Instruction, MemorySizeExt, Mnemonic, OpKind, Register, RegisterExt

from otel_nfprobe.arch.code_facts import (
    POPS_ARGUMENTS,
    RETURN_ADDRESS,
    STACK_ARGUMENTS,
    UNDECODABLE,
    UNKNOWN_FRAME,
    FunctionScan,
)
from otel_nfprobe.arch.x86_64.realigned import DWARF_REGISTERS, RBP, RSP, find_uses, register_of
from otel_nfprobe.arch.x86_64.relocate import goes_on
from otel_nfprobe.elf.cursor import FrameError
from otel_nfprobe.elf.ehframe import DEREFERENCED, EXPRESSION, Frame, Row
from otel_nfprobe.elf.elf import ElfImage

NEAR_ENTRY_BYTES = 48  # own branch targets are kept when they are this close to the start
FUNCTION_BYTES_MAX = 16 << 20
ALIAS_REACH_BYTES = 64  # copies of the stack pointer are followed if they point this close below the CFA
_LONGEST_INSTRUCTION_BYTES = 15
_NOP = b"\x90"
ENTRY_ALIAS = -8  # the stack pointer at entry: it points at the return address

# Kinds of instructions; PLAIN ones matter only for their memory operand.
_PLAIN, _MOVE, _LEA, _POP, _BRANCH, _CALL, _INDIRECT, _RETURN, _CALL_INDIRECT, _INVALID = range(10)
_UNSEEN = 255
_kinds = bytearray([_UNSEEN]) * 8192

_STACK_REGISTERS = frozenset((Register.RSP, Register.RBP))  # only their moves matter while no copy of them is known
_MOVES = frozenset((Code.MOV_R64_RM64, Code.MOV_RM64_R64, Code.MOV_R32_RM32, Code.MOV_RM32_R32))
ARGUMENT_REGISTERS = (Register.RDI, Register.RSI, Register.RDX, Register.RCX, Register.R8, Register.R9)
SCRATCH = frozenset((Register.RAX, *ARGUMENT_REGISTERS, Register.R10, Register.R11))


def scan_function(image: ElfImage, frame: Frame) -> FunctionScan:
    """Decodes one function."""
    return _Scanner(image, frame).run()


def branch_targets(code: bytes, address: int) -> list[int]:
    """Returns targets of direct branches and calls in bytes that no frame describes."""
    targets = []
    for instruction in Decoder(64, code, ip=address):
        kind = _kinds[instruction.code]
        if kind == _UNSEEN:
            kind = _classify(instruction)
        if kind in (_BRANCH, _CALL):
            targets.append(int(instruction.near_branch_target))
    return targets


def stub_slot(image: ElfImage, address: int) -> int | None:
    """Returns the GOT slot that a PLT stub at the address jumps through, or None if there is no such stub."""
    for instruction in Decoder(64, image.read(address, 32), ip=address):
        if instruction.code in (Code.ENDBR64, Code.NOPD, Code.NOPW):
            continue
        if instruction.code == Code.JMP_RM64 and instruction.is_ip_rel_memory_operand:
            return int(instruction.ip_rel_memory_address)
        return None
    return None


def memory_uses(code: bytes, address: int) -> Iterator[tuple[int, bool]]:
    """Yields addresses of words that instructions name by themselves, and whether they are called or jumped through."""
    for instruction in Decoder(64, code, ip=address):
        if instruction.memory_base == Register.RIP:
            is_call = instruction.flow_control in (FlowControl.INDIRECT_CALL, FlowControl.INDIRECT_BRANCH)
            yield int(instruction.ip_rel_memory_address), is_call


def is_conditional(image: ElfImage, site: int) -> bool:
    """Returns whether the direct jump at an address is a conditional one."""
    opcode = image.read(site, 2)
    return opcode[0] & 0xF0 == 0x70 or (opcode[0] == 0x0F and opcode[1] & 0xF0 == 0x80)


def _classify(instruction: Instruction) -> int:
    code, flow = instruction.code, instruction.flow_control
    kind = _PLAIN
    if code == Code.INVALID:
        kind = _INVALID
    elif flow in (
        FlowControl.CONDITIONAL_BRANCH,
        FlowControl.UNCONDITIONAL_BRANCH,
        FlowControl.XBEGIN_XABORT_XEND,
    ):
        kind = _BRANCH if instruction.op0_kind == OpKind.NEAR_BRANCH64 else _PLAIN
    elif flow == FlowControl.CALL:
        kind = _CALL if instruction.op0_kind == OpKind.NEAR_BRANCH64 else _PLAIN
    elif flow == FlowControl.INDIRECT_BRANCH:
        kind = _INDIRECT
    elif flow == FlowControl.INDIRECT_CALL:
        kind = _CALL_INDIRECT
    elif flow == FlowControl.RETURN:
        kind = _RETURN
    elif code in _MOVES:
        kind = _MOVE
    elif instruction.mnemonic == Mnemonic.LEA:
        kind = _LEA
    elif code == Code.POP_R64:
        kind = _POP
    _kinds[code] = kind
    return kind


class _Scanner:
    """Decodes one function. The loop in `run` is the hot path: two attribute reads per instruction."""

    def __init__(self, image: ElfImage, frame: Frame) -> None:
        self.image = image
        self.scan = FunctionScan(frame)
        self.low = frame.start
        self.high = frame.start + frame.size
        self.rows: Sequence[Row] = ()
        self.row_starts: list[int] = []
        self.watched: set[int] = {Register.RSP}
        self.aliases: dict[int, int] = {}  # register -> its value minus the CFA
        self.with_frame = {RBP, DEREFERENCED}  # in Row.register: rbp points into the frame
        self.realigned: int | None = None  # the register that holds the CFA where the stack is aligned
        self.previous: Instruction | None = None

    def run(self) -> FunctionScan:
        frame = self.scan.frame
        code = self.image.read(frame.start, frame.size) if frame.size <= FUNCTION_BYTES_MAX else b""
        if len(code) != frame.size:
            self.scan.trouble = UNDECODABLE
            return self.scan
        if not self._prepare(frame):
            self.scan.trouble = UNKNOWN_FRAME
        kinds, watched, aliases = _kinds, self.watched, self.aliases
        for instruction in Decoder(64, code, ip=frame.start):
            kind = kinds[instruction.code]
            if kind == _UNSEEN:
                kind = _classify(instruction)
            base = instruction.memory_base
            if base and base in watched:
                self._address(instruction, kind, base)
            elif kind and (kind != _MOVE or aliases or instruction.op1_register in _STACK_REGISTERS):
                self._act(instruction, kind)
            self.previous = instruction
        if self.realigned is not None:
            self._use_realigned(self.realigned)
        self.scan.runs_on = self._runs_on(code)
        return self.scan

    def _use_realigned(self, register: int) -> None:
        for instruction, distance, of_return in find_uses(self.image, self.scan.frame, register):
            self._set_trouble(RETURN_ADDRESS if of_return else STACK_ARGUMENTS)
            if distance is None:
                self.scan.takes_address = True
            elif not of_return:
                self._count(instruction, distance)

    def _runs_on(self, code: bytes) -> bool:
        last = self.previous
        if last is not None and last.mnemonic == Mnemonic.NOP:  # padding inside the frame
            last = None
            for instruction in Decoder(64, code, ip=self.low):
                last = instruction if instruction.mnemonic != Mnemonic.NOP else last
        return last is None or last.code == Code.INVALID or goes_on(last)

    def _prepare(self, frame: Frame) -> bool:
        try:
            rules = frame.rules()
        except FrameError:
            return False
        self.rows = rules.rows
        self.row_starts = [row.address for row in rules.rows]
        self.scan.outermost = rules.outermost
        # gcc puts a nop, followed by the frame rules, before an exception handler at the very start of a .cold part.
        first = self._row(frame.start + (self.image.read(frame.start, 1) == _NOP))
        self.scan.own_entry = first.register == RSP and first.offset == 8
        self.realigned = register_of(rules.rows)
        usable = True
        for row in rules.rows:
            if row.register == EXPRESSION or row.register >= len(DWARF_REGISTERS):
                usable = False
            elif row.register < 0:
                usable &= self.realigned is not None
            elif DWARF_REGISTERS[row.register] == self.realigned:
                self.with_frame.add(row.register)
            else:
                self.watched.add(DWARF_REGISTERS[row.register])
        return usable

    def _row(self, address: int) -> Row:
        return self.rows[bisect_right(self.row_starts, address) - 1]

    def _set_trouble(self, reason: str) -> None:
        self.scan.reads_return |= reason == RETURN_ADDRESS
        if not self.scan.trouble:
            self.scan.trouble = reason

    # ---- memory operands on the stack ----------------------------------------------------------------------

    def _address(self, instruction: Instruction, kind: int, base: int) -> None:
        distance = self._distance(instruction, base)
        if kind == _LEA:
            self._copy(instruction.op0_register, distance)
            return
        if distance is not None:
            self._touch(instruction, distance)
        if kind == _MOVE and instruction.op1_kind == OpKind.MEMORY:
            self.aliases_drop(instruction.op0_register)
        elif kind == _MOVE:
            self._look_for_frame(instruction)
        elif kind != _PLAIN:
            self._act(instruction, kind)

    def _distance(self, instruction: Instruction, base: int) -> int | None:
        """Returns the operand's address minus the CFA, if known."""
        if not self.rows:
            return None
        displacement = int(instruction.memory_displacement)
        if displacement >> 63:
            displacement -= 1 << 64
        row = self._row(instruction.ip)
        if row.register >= 0 and DWARF_REGISTERS[row.register] == base:
            return displacement - row.offset
        return displacement + self.aliases[base] if base in self.aliases else None

    def _touch(self, instruction: Instruction, distance: int) -> None:
        if distance >= 0:
            self._set_trouble(STACK_ARGUMENTS)
            self._count(instruction, distance)
        elif distance >= -8:
            self._set_trouble(RETURN_ADDRESS)

    def _count(self, instruction: Instruction, distance: int) -> None:
        self.scan.argument_words = max(self.scan.argument_words, _argument_words(instruction, distance))
        if instruction.memory_index != Register.NONE:
            self.scan.takes_address = True

    def _copy(self, register: int, distance: int | None) -> None:
        """Sets `register` to CFA + distance."""
        self.aliases_drop(register)
        if distance is None or register == Register.RSP or (register == self.realigned and distance == 0):
            return
        if distance >= 0:
            self._set_trouble(STACK_ARGUMENTS)
            self.scan.takes_address = True
        elif distance >= -ALIAS_REACH_BYTES and self.aliases.get(register, 0) != ENTRY_ALIAS:
            self.aliases[register] = distance
            self.watched.add(register)

    def aliases_drop(self, register: int) -> None:
        """Drops an overwritten register. Copies of the stack pointer at entry are followed permanently."""
        if self.aliases:
            full = RegisterExt.full_register(register)  # type: ignore[arg-type]
            if self.aliases.get(full, ENTRY_ALIAS) != ENTRY_ALIAS:
                del self.aliases[full]

    # ---- instructions that matter without a stack operand --------------------------------------------------

    def _act(self, instruction: Instruction, kind: int) -> None:
        scan = self.scan
        if kind == _MOVE:
            self._move(instruction)
        elif kind == _LEA:
            if instruction.is_ip_rel_memory_operand:
                scan.references.append(int(instruction.ip_rel_memory_address))
            self.aliases_drop(instruction.op0_register)
        elif kind == _POP:
            self._pop(instruction)
        elif kind == _BRANCH:
            self._branch(int(instruction.near_branch_target), int(instruction.ip))
        elif kind in (_CALL, _CALL_INDIRECT):
            if kind == _CALL:
                scan.calls.append(int(instruction.near_branch_target))
                scan.call_sites.append(int(instruction.ip))
            for register in [register for register in self.aliases if register in SCRATCH]:
                self.aliases_drop(register)
        elif kind == _RETURN:
            scan.has_exit = True
            if not self.rows or self._row(instruction.ip)[1:] != (RSP, 8):
                scan.exits_elsewhere = True
            if instruction.code == Code.RETNQ_IMM16:
                self._set_trouble(POPS_ARGUMENTS)
        elif kind == _INDIRECT:
            self._indirect(instruction)
        elif kind == _INVALID:
            scan.trouble = UNDECODABLE

    def _move(self, instruction: Instruction) -> None:
        self._look_for_frame(instruction)
        if instruction.op0_kind != OpKind.REGISTER:
            return
        source = instruction.op1_register if instruction.op1_kind == OpKind.REGISTER else Register.NONE
        if source == Register.RSP and self.rows:
            row = self._row(instruction.ip)
            self._copy(instruction.op0_register, -row.offset if row.register == RSP else None)
        else:
            self.aliases_drop(instruction.op0_register)

    def _look_for_frame(self, instruction: Instruction) -> None:
        """Checks for the frame pointer used as a value: it leads to the return address above it."""
        if instruction.op1_register != Register.RBP or instruction.op0_register == Register.RSP or not self.rows:
            return
        row = self._row(instruction.ip)
        if row.register in (RBP, DEREFERENCED) or (
            row.register >= 0 and DWARF_REGISTERS[row.register] == self.realigned
        ):
            self._set_trouble(RETURN_ADDRESS)

    def _pop(self, instruction: Instruction) -> None:
        self.aliases_drop(instruction.op0_register)
        if self.rows:
            row = self._row(instruction.ip)
            if row.register == RSP and row.offset == 8:
                self._set_trouble(RETURN_ADDRESS)

    def _branch(self, target: int, site: int) -> None:
        if self.low <= target < self.high:
            if target < self.low + NEAR_ENTRY_BYTES:
                self.scan.near.append(target)
        else:
            self.scan.jumps.append(target)
            self.scan.jump_sites.append(site)
            self.scan.jumps_leave.append(bool(self.rows) and self._row(site)[1:] == (RSP, 8))
            self.scan.has_exit = True

    def _indirect(self, instruction: Instruction) -> None:
        if instruction.is_ip_rel_memory_operand:
            self.scan.slot_jumps.append(int(instruction.ip_rel_memory_address))
            self.scan.slot_sites.append(int(instruction.ip))
            self.scan.has_exit = True
            return
        row = self._row(instruction.ip) if self.rows else None
        is_table = (
            row is None or row[1:] != (RSP, 8) or _is_table(self.image, self.scan.frame, instruction, self.previous)
        )
        if not is_table:
            self.scan.has_exit = True
            self.scan.pointer_jumps.append(int(instruction.ip))
        else:
            self.scan.has_table = True


def count_argument_words(image: ElfImage, site: int, distance: int) -> int:
    """Returns the words of stack arguments up to the end of the operand of the instruction at `site`, `distance` from
    the CFA.
    """
    return _argument_words(_decode_at(image, site), distance)


def _argument_words(instruction: Instruction, distance: int) -> int:
    return -(-(distance + max(8, MemorySizeExt.size(instruction.memory_size))) // 8)


def is_table_jump(image: ElfImage, frame: Frame, site: int, before: int) -> bool:
    """Returns whether the indirect jump at `site` goes through a jump table of its own function.

    Args:
        before: address of the preceding instruction; `site` for none.
    """
    previous = _decode_at(image, before) if before != site else None
    return _is_table(image, frame, _decode_at(image, site), previous)


def _decode_at(image: ElfImage, address: int) -> Instruction:
    return Decoder(64, image.read(address, _LONGEST_INSTRUCTION_BYTES), ip=address).decode()


def _is_table(image: ElfImage, frame: Frame, instruction: Instruction, previous: Instruction | None) -> bool:
    if instruction.segment_prefix == Register.DS:  # notrack
        return True
    if instruction.op0_kind == OpKind.MEMORY:
        return instruction.memory_base == Register.NONE and _reads_own_address(image, frame, instruction)
    if previous is None or previous.op0_kind != OpKind.REGISTER:
        return False
    if previous.op0_register != instruction.op0_register:
        return False
    if previous.mnemonic == Mnemonic.ADD:
        return True
    return (
        previous.mnemonic == Mnemonic.MOV
        and previous.memory_index != Register.NONE
        and _reads_own_address(image, frame, previous)
    )


def _reads_own_address(image: ElfImage, frame: Frame, instruction: Instruction) -> bool:
    word = image.read(int(instruction.memory_displacement), 8)
    return frame.start <= int.from_bytes(word, "little") < frame.start + frame.size
