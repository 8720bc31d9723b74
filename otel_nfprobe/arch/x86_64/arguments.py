# SPDX-License-Identifier: Apache-2.0
"""Arguments: proof that a call passes no stack arguments, from the code around it.

A function with stack arguments first takes six arguments in registers, the last of them in r9. A call clobbers r9. So
if straight-line code leads from one call to the next without writing r9, the second callee gets fewer than six
arguments. Arguments that go to the stack without filling the registers (structures by value) are stored or pushed
there: code that does so proves nothing. A function of the printf family reads as many arguments as its format
specifies. Reads bytes only.
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
)
from iced_x86 import RegisterExt as Registers

from otel_nfprobe.arch.branches import ModuleScan
from otel_nfprobe.arch.code_facts import FORMATS
from otel_nfprobe.arch.x86_64.scan import ARGUMENT_REGISTERS, stub_slot

CALL_SITES_MAX = 16  # examined per function
STEPS_MAX = 64  # instructions examined before a call
OUTGOING_BYTES = 256  # stores this close to the stack pointer may be arguments
FORMAT_BYTES_MAX = 4096

_WRITES = (OpAccess.WRITE, OpAccess.COND_WRITE, OpAccess.READ_WRITE, OpAccess.READ_COND_WRITE)
_CALLS = (FlowControl.CALL, FlowControl.INDIRECT_CALL)
_FALLS_THROUGH = (FlowControl.NEXT, FlowControl.CONDITIONAL_BRANCH)
_information = InstructionInfoFactory()


class Arguments:
    """Judges the functions of one module. Functions are indexes of its frame table."""

    def __init__(self, scan: ModuleScan) -> None:
        self._scan = scan
        self._known: dict[int, bool] = {}
        self._stub_sites: dict[int, list[int]] | None = None

    def none_on_stack(self, index: int) -> bool:
        """Returns whether the function is proven to take no stack arguments: some caller passes none."""
        if index not in self._known:
            sites = self._sites(self._scan.starts[index])[:CALL_SITES_MAX]
            self._known[index] = any(self.passes_none(self._scan.index_of(site), site, "") for site in sites)
        return self._known[index]

    def passes_none(self, index: int, site: int, callee: str) -> bool:
        """Returns whether the call or jump at `site`, in the function `index`, is proven to pass no stack arguments.

        Args:
            callee: name of the called function, or "".
        """
        if index < 0:
            return False
        start = self._scan.starts[index]
        before = list(Decoder(64, self._scan.image.read(start, site - start), ip=start))[-STEPS_MAX:]
        before.reverse()
        return _destroys_last(before) or (callee in FORMATS and self._format_fits(before, FORMATS[callee]))

    def _sites(self, start: int) -> list[int]:
        """Returns calls of the function: direct ones, and those of the module's own PLT stubs for its names."""
        if self._stub_sites is None:
            self._stub_sites = {}
            names = self._scan.image.slot_names
            for target in self._scan.calls.targets:
                if self._scan.image.section_of(target).startswith(".plt"):
                    slot = stub_slot(self._scan.image, target)
                    symbol = self._scan.image.exports.get(names.get(slot, "")) if slot is not None else None
                    if symbol is not None:
                        self._stub_sites.setdefault(symbol.address, []).extend(self._scan.calls.sites_of(target))
        return self._scan.calls.sites_of(start) + self._stub_sites.get(start, [])

    def _format_fits(self, before: list[Instruction], position: int) -> bool:
        """Returns whether the format is a constant that needs no more arguments than fit in registers."""
        register = ARGUMENT_REGISTERS[position]
        for instruction in before:
            if register in _written(instruction):
                if instruction.mnemonic != Mnemonic.LEA or not instruction.is_ip_rel_memory_operand:
                    return False
                text = self._scan.image.read(int(instruction.ip_rel_memory_address), FORMAT_BYTES_MAX)
                end = text.find(b"\0")
                conversions = text[:end].replace(b"%%", b"")
                taken = conversions.count(b"%") + conversions.count(b"*")
                return end >= 0 and b"$" not in conversions and taken <= len(ARGUMENT_REGISTERS) - position - 1
            if instruction.flow_control not in _FALLS_THROUGH:
                return False
        return False


def _destroys_last(before: list[Instruction]) -> bool:
    """Returns whether a preceding call in straight-line code has clobbered r9. `before`: in reverse order."""
    for instruction in before:
        if instruction.flow_control in _CALLS:
            return True
        if instruction.flow_control not in _FALLS_THROUGH or _may_pass(instruction):
            return False
    return False


def _may_pass(instruction: Instruction) -> bool:
    """Returns whether the instruction can set up a sixth register argument or one on the stack."""
    if instruction.mnemonic == Mnemonic.PUSH:
        return True
    if (
        instruction.op_count
        and instruction.op0_kind == OpKind.MEMORY
        and instruction.memory_base == Register.RSP
        and instruction.memory_displacement < OUTGOING_BYTES
        and instruction.mnemonic not in (Mnemonic.CMP, Mnemonic.TEST)
    ):
        return True
    if instruction.mnemonic in (Mnemonic.POP, Mnemonic.ADD, Mnemonic.LEA) and _restores_stack(instruction):
        return False
    written = _written(instruction)
    return Register.R9 in written or Register.RSP in written


def _restores_stack(instruction: Instruction) -> bool:
    """Returns whether the instruction tears down a frame, moving the stack pointer up: it stores no arguments."""
    if instruction.mnemonic == Mnemonic.POP:
        return bool(instruction.op0_register != Register.R9)
    if instruction.op0_register != Register.RSP:
        return False
    if instruction.mnemonic == Mnemonic.ADD:
        return bool(instruction.op1_kind != OpKind.REGISTER and instruction.immediate32to64 > 0)
    return False


def _written(instruction: Instruction) -> set[int]:
    return {
        Registers.full_register(used.register)
        for used in _information.info(instruction).used_registers()
        if used.access in _WRITES
    }
