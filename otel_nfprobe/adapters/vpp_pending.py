# SPDX-License-Identifier: Apache-2.0
"""Where a running VPP keeps the frames that are pending: what input nodes have filled, up to the end of the turn.

    vlib_main_t -> node_main -> pending_frames -> frame, node, next frame: 16 bytes each

The place differs between releases. vlib_put_next_frame, which libvlib exports, tells it: of all that this function
reads in vlib_main_t it is the one vector that it may have to move. So it is of 22.02 and later.
"""

from __future__ import annotations

from collections.abc import Iterable

from iced_x86 import Code, Decoder, FlowControl, Instruction, OpKind, Register

from otel_nfprobe.adapters.vpp_graph import MAIN_BYTES, module_of
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.symbols import Function, function_at
from otel_nfprobe.target.target import Target

SYMBOL = "vlib_put_next_frame"
FRAMES_MAX = 4096  # pending at a time
_LOADS, _STORES = Code.MOV_R64_RM64, Code.MOV_RM64_R64


def find_pending(target: Target, mains: Iterable[int]) -> int | None:
    """Offset in every vlib_main_t of the vector of pending frames; None when it is not found.

    Args:
        mains: addresses of the vlib_main_t of all threads.
    """
    module = module_of(target, SYMBOL)
    function = None if module is None else function_at(module, module.image.exports[SYMBOL].address)
    offsets = set() if function is None else _moved_vectors(function)
    if len(offsets) != 1:
        return None
    (offset,) = offsets
    return offset if all(_is_vector(target, main + offset) for main in mains) else None


def _moved_vectors(function: Function) -> set[int]:
    """Offsets behind the first argument of words that the function reads, and writes back."""
    code = function.module.image.read(function.offset, function.size)
    loaded, stored = set(), set()
    argument = {Register.RDI}
    for instruction in Decoder(64, code, ip=function.offset):
        if instruction.code == _LOADS and instruction.op1_kind == OpKind.MEMORY:
            loaded |= _displacement(instruction) if instruction.memory_base in argument else set()
        elif instruction.code == _STORES and instruction.op0_kind == OpKind.MEMORY:
            stored |= _displacement(instruction)
        elif instruction.code == _STORES and instruction.op1_register in argument:
            argument.add(instruction.op0_register)
        elif instruction.flow_control == FlowControl.RETURN and loaded & stored:
            break
    return {offset for offset in loaded & stored if offset < MAIN_BYTES}


def _displacement(instruction: Instruction) -> set[int]:
    plain = instruction.memory_index == Register.NONE and instruction.memory_base != Register.RSP
    return {int(instruction.memory_displacement)} if plain and instruction.memory_displacement else set()


def _is_vector(target: Target, place: int) -> bool:
    try:
        address = target.read_word(place)
        return address % 8 == 0 and int.from_bytes(target.read(address - 8, 4), "little") <= FRAMES_MAX
    except NfprobeError:
        return False
