# SPDX-License-Identifier: Apache-2.0
"""Copied arguments: how many words of stack arguments a function reads, itself and through its tail jumps.

The strategy *copied arguments* pushes this many words again. What cannot be bounded is refused: a structure passed by
value, whose address escapes, has no size that the code shows. A function of the printf family (it tests al, the number
of vector registers used, before it saves them: System V ABI for x86-64, section 3.5.7) gets as many words as calls of
such functions have in practice. Reads only.
"""

from __future__ import annotations

from iced_x86 import Decoder, Mnemonic, Register

from otel_nfprobe.arch.branches import ModuleScan, scan_module
from otel_nfprobe.arch.code_facts import POINTER_TAIL, STACK_ARGUMENTS
from otel_nfprobe.arch.tailcalls import TailCalls
from otel_nfprobe.base.errors import RefusedError
from otel_nfprobe.elf.modules import Module

COPIED_WORDS_MAX = 64
VARIABLE_WORDS = 32
UNBOUNDED = "passes on the address of its stack arguments"
TOO_MANY = "reads too many stack arguments"
_HEAD_BYTES = 256
_JUMPS_MAX = 64


def count_words(tail_calls: TailCalls, module: Module, index: int) -> int:
    """Returns the number of words that the function at `index` of the module's frame table reads above its return
    address.

    Raises:
        RefusedError: they cannot be counted; the sentence is the reason.
    """
    words, seen = 0, {(id(module), index)}
    waiting = [(module, index)]
    while waiting:
        from_module, from_index = waiting.pop()
        scan = scan_module(from_module.image)
        words = max(words, _own_words(scan, from_index))
        for node, reason in tail_calls.jumps_out(from_module, from_index):
            if reason:
                raise RefusedError(reason)
            if node is not None and (id(node[0]), node[1]) not in seen:
                seen.add((id(node[0]), node[1]))
                waiting.append(node)
        if len(seen) > _JUMPS_MAX:
            raise RefusedError(POINTER_TAIL)
    if words > COPIED_WORDS_MAX:
        raise RefusedError(TOO_MANY)
    return words


def _own_words(scan: ModuleScan, index: int) -> int:
    own = scan.at(index)
    if own.reads_return or (own.trouble and own.trouble != STACK_ARGUMENTS):
        raise RefusedError(own.trouble)
    if not own.takes_address:
        return own.argument_words
    if _takes_variable_arguments(scan, index):
        return max(VARIABLE_WORDS, own.argument_words)
    raise RefusedError(UNBOUNDED)


def _takes_variable_arguments(scan: ModuleScan, index: int) -> bool:
    frame = scan.frames[index]
    head = scan.image.read(frame.start, min(frame.size, _HEAD_BYTES))
    return any(
        instruction.mnemonic == Mnemonic.TEST
        and instruction.op0_register == Register.AL
        and instruction.op1_register == Register.AL
        for instruction in Decoder(64, head, ip=frame.start)
    )
