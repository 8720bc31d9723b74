# SPDX-License-Identifier: Apache-2.0
"""Data flow: how many arguments a function takes and whether it returns a value, from its code alone.

    argument registers read before they are written on some path from the entry   -> at least so many arguments
    a path to a return on which rax and xmm0 keep the caller's values             -> returns nothing
    a value in rax or xmm0 that nothing uses before the return                    -> returns something

Arguments only passed on to another function are not seen: figures are lower bounds. Reads bytes only.
"""

from __future__ import annotations

from iced_x86 import (
    Decoder,
    FlowControl,
    Instruction,
    InstructionInfoFactory,
    Mnemonic,
    OpAccess,
    OpKind,
    Register,
    RegisterExt,
    RflagsBits,
)

from otel_nfprobe.arch.code_facts import Inferred
from otel_nfprobe.arch.x86_64.scan import ARGUMENT_REGISTERS
from otel_nfprobe.elf.elf import ElfImage

FUNCTION_BYTES_MAX = 1 << 16
INSTRUCTIONS_MAX = 512  # examined from the entry on
SAVING_BYTES_MAX = 96  # a variadic function tests al this close to its start
WORD_BYTES = 8
LOOKED_BACK_MAX = 24  # instructions examined before a return

_VECTORS: tuple[int, ...] = (
    Register.XMM0, Register.XMM1, Register.XMM2, Register.XMM3,
    Register.XMM4, Register.XMM5, Register.XMM6, Register.XMM7,
)  # fmt: skip
_NUMBERS: dict[int, int] = {register: number for number, register in enumerate(ARGUMENT_REGISTERS)}
_READS = frozenset((OpAccess.READ, OpAccess.COND_READ, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE))
_WRITES = frozenset((OpAccess.WRITE, OpAccess.READ_WRITE, OpAccess.COND_WRITE, OpAccess.READ_COND_WRITE))
_COMPARES = frozenset((Mnemonic.CMP, Mnemonic.TEST))
_CALLS = frozenset((FlowControl.CALL, FlowControl.INDIRECT_CALL))
_ENDS = frozenset((FlowControl.RETURN, FlowControl.INDIRECT_BRANCH, FlowControl.INTERRUPT, FlowControl.EXCEPTION))
_information = InstructionInfoFactory()
_families: dict[int, int] = {}


def infer(image: ElfImage, start: int, size: int) -> Inferred:
    """Analyzes one function."""
    if size > FUNCTION_BYTES_MAX:
        return Inferred(_Entry(image, start, min(size, FUNCTION_BYTES_MAX)).count(), None, False)
    entry = _Entry(image, start, size)
    count = entry.count()
    return Inferred(count, _returns(entry.code, start), entry.is_variadic)


def _family(register: int) -> int:
    """Returns the full register that contains a register; vector registers by their xmm name."""
    found = _families.get(register)
    if found is None:
        found = RegisterExt.full_register(register)  # type: ignore[arg-type]
        if RegisterExt.is_vector_register(found):
            found = Register.XMM0 + RegisterExt.number(found)
        _families[register] = found
    return found


class _Entry:
    """Follows the paths from the entry until each argument register was read or written."""

    def __init__(self, image: ElfImage, start: int, size: int) -> None:
        self.code = image.read(start, size)
        self.start = start
        self.end = start + len(self.code)
        self.read: set[int] = set()
        self.saved: dict[int, int] = {}  # stack offsets of stored argument registers, by number
        self.is_variadic = False
        self._rax_written = False
        self._left = INSTRUCTIONS_MAX

    def count(self) -> int:
        """Returns the number of arguments that are read."""
        everything: frozenset[int] = frozenset((*ARGUMENT_REGISTERS, *_VECTORS))
        open_ways = [(self.start, everything)]
        seen: dict[int, frozenset[int]] = {}
        while open_ways and self._left > 0:
            address, unwritten = open_ways.pop()
            if not self.start <= address < self.end or unwritten <= seen.get(address, frozenset()):
                continue
            seen[address] = seen.get(address, frozenset()) | unwritten
            open_ways += self._follow(address, set(unwritten))
        general = [_NUMBERS[register] for register in self.read if register in _NUMBERS]
        vectors = [register - Register.XMM0 for register in self.read if register not in _NUMBERS]
        first = self._save_area()
        self.is_variadic |= first is not None
        if self.is_variadic:
            return max(general, default=-1) + 1 if first is None else first
        return max(general, default=-1) + 1 + max(vectors, default=-1) + 1

    def _save_area(self) -> int | None:
        """Returns the first of the argument registers that a variadic function stores contiguously, up to r9.

        Other functions spill some of them contiguously as well: for all but the first, this suffices without a test of
        al.
        """
        last = len(ARGUMENT_REGISTERS) - 1
        first = last
        while first > 0 and self.saved.get(first - 1, 0) == self.saved.get(first, 0) - WORD_BYTES:
            first -= 1
        least = last if self.is_variadic else 1
        return first if last in self.saved and first <= least else None

    def _follow(self, address: int, unwritten: set[int]) -> list[tuple[int, frozenset[int]]]:
        """Continues from an address to the next branch. Returns where the paths lead from there."""
        for instruction in Decoder(64, self.code[address - self.start :], ip=address):
            self._left -= 1
            flow = instruction.flow_control
            if flow in _ENDS or not unwritten or self._left <= 0:
                if flow in _ENDS:
                    self._use(instruction, unwritten)
                return []
            if self._tests_al(instruction):
                self.is_variadic = True
            self._use(instruction, unwritten)
            if flow in _CALLS:
                return []  # a call clobbers them all
            if flow in (FlowControl.CONDITIONAL_BRANCH, FlowControl.UNCONDITIONAL_BRANCH):
                ways = [(int(instruction.near_branch_target), frozenset(unwritten))]
                if flow == FlowControl.CONDITIONAL_BRANCH:
                    ways.append((int(instruction.next_ip), frozenset(unwritten)))
                return ways
        return []

    def _tests_al(self, instruction: Instruction) -> bool:
        return bool(
            instruction.mnemonic == Mnemonic.TEST
            and instruction.op0_register == Register.AL
            and instruction.op1_register == Register.AL
            and int(instruction.ip) < self.start + SAVING_BYTES_MAX
            and not self._rax_written
        )

    def _use(self, instruction: Instruction, unwritten: set[int]) -> None:
        written = []
        stores = instruction.op0_kind == OpKind.MEMORY and instruction.memory_base in (Register.RSP, Register.RBP)
        moves = stores and instruction.op1_kind == OpKind.REGISTER and instruction.mnemonic not in _COMPARES
        for used in _information.info(instruction).used_registers():
            register, access = _family(used.register), used.access
            if register == Register.RAX and access in _WRITES:
                self._rax_written = True  # al is no longer a count of vector registers
            if register not in unwritten:
                continue
            if access in _READS:
                if moves and register in _NUMBERS and register == _family(instruction.op1_register):
                    self.saved[_NUMBERS[register]] = int(instruction.memory_displacement)
                self.read.add(register)
            if access in _WRITES:
                written.append(register)
        unwritten.difference_update(written)


def _returns(code: bytes, start: int) -> bool | None:
    """Judges every return by the straight-line code before it: one that leaves a fresh value decides."""
    before: list[Instruction] = []
    verdicts = set()
    for instruction in Decoder(64, code, ip=start):
        flow = instruction.flow_control
        if flow == FlowControl.RETURN:
            verdicts.add(_leaves_value(before))
            before = []
        elif flow in (FlowControl.UNCONDITIONAL_BRANCH, *_ENDS):
            before = []
        else:
            before.append(instruction)
            del before[:-LOOKED_BACK_MAX]
    if True in verdicts:
        return True
    return False if verdicts == {False} else None


def _leaves_value(before: list[Instruction]) -> bool | None:
    """Returns whether the last value put into rax or xmm0 is still unused at the return; None: not seen.

    A value whose flags are tested is a comparison (gcc checks its stack guard in rax if that is free).
    """
    open_registers = {Register.RAX, Register.XMM0}
    flags_used = compared = False
    for instruction in reversed(before):
        if instruction.flow_control in _CALLS or instruction.fpu_stack_increment_info().writes_top:
            return None
        flags_used |= instruction.flow_control == FlowControl.CONDITIONAL_BRANCH
        sets_flags = bool(instruction.rflags_modified & RflagsBits.ZF)
        reads: set[int] = set()
        for register in _information.info(instruction).used_registers():
            family = _family(register.register)
            if family in open_registers and register.access in _WRITES:
                if not (sets_flags and flags_used):
                    return True
                compared |= family == Register.RAX
            if register.access in _READS or register.access in _WRITES:
                reads.add(family)
        open_registers -= reads
        if sets_flags:
            flags_used = False
    return False if compared else None
