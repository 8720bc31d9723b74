# SPDX-License-Identifier: Apache-2.0
"""Flow filter: an expression in the language of pcap-filter(7), compiled and run by libpcap.

The filter runs on headers that are rebuilt from the kept fields of a packet (native/core/flow_filter.h).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.linux.bpf import Instruction
from otel_nfprobe.pipeline.libpcap import load_libpcap, read_text

# ---- what a program reads -------------------------------------------------------------------------------------------
# Which bytes of a packet a libpcap filter program reads, followed along each of its paths.
#
# Only the flow of a packet is kept. A filter that reads anything else (TCP flags, time to live, payload) would see
# invented bytes, so it is refused at the start. The programs are classic Berkeley packet filters for raw IP, and only
# jump forward. Pure.


_LOAD, _LOAD_INDEX, _STORE, _STORE_INDEX, _ARITHMETIC, _JUMP, _RETURN, _MISCELLANEOUS = range(8)
_ABSOLUTE, _INDIRECT, _LENGTH_NIBBLE = 0x20, 0x40, 0xA0
_SIZES = {0x00: 4, 0x08: 2, 0x10: 1}
_AND, _ALWAYS, _EQUAL, _ANY_BIT = 0x50, 0x00, 0x10, 0x40
_FROM_INDEX = 0x08
_TO_ACCUMULATOR = 0x80

# What the accumulator holds; PLAIN may be used in any way.
_PLAIN, _FIRST, _VERSION, _PROTOCOL, _FRAGMENT, _OFFSET = range(6)
_VERSION_BITS, _OFFSET_BITS = 0xF0, 0x1FFF
_WITH_PORTS = frozenset((6, 17, 33, 132, 136))
_TYPE_AND_CODE = frozenset((1, 58))
_FRAGMENT_HEADER = 44  # of IPv6: such headers are skipped, so no packet ends in one
_KNOWN = {4: ((4, 6), (12, 20)), 6: ((8, 40),)}
_PROTOCOL_AT = {4: 9, 6: 6}
_IPV6_BYTES = 40


class UnknownBytesError(Exception):
    """The program reads bytes of a packet that are not kept; the text names them."""


@dataclass(frozen=True)
class _State:
    at: int = 0
    version: int = 0  # of IP, once compared
    protocol: int = -1  # of IP, once compared
    holds: int = _PLAIN
    index_is_header: bool = False


def check_reads(program: Sequence[Instruction]) -> None:
    """Returns if the program reads only bytes of a packet that are kept.

    Raises:
        UnknownBytesError: it reads something else.
    """
    seen: set[_State] = set()
    waiting = [_State()]
    while waiting:
        state = waiting.pop()
        if state in seen or state.at >= len(program):
            continue
        seen.add(state)
        waiting += _step(program[state.at], state)


def _step(instruction: Instruction, state: _State) -> Iterator[_State]:
    kind, after = instruction.code & 7, replace(state, at=state.at + 1)
    if kind == _RETURN:
        return
    if kind == _JUMP:
        yield from _jump(instruction, after)
    elif kind == _LOAD:
        yield replace(after, holds=_load(instruction, state))
    elif kind == _LOAD_INDEX:
        yield replace(after, index_is_header=instruction.code & 0xE0 == _LENGTH_NIBBLE and instruction.value == 0)
    elif kind == _ARITHMETIC:
        yield replace(after, holds=_calculate(instruction, state))
    elif kind == _MISCELLANEOUS and instruction.code & 0xF8 == _TO_ACCUMULATOR:
        if state.index_is_header:
            raise UnknownBytesError("the length of the IP header")
        yield replace(after, holds=_PLAIN)
    else:
        _refuse_parts(state)  # it is stored, after which its meaning is unknown
        yield replace(after, index_is_header=False) if kind == _MISCELLANEOUS else after


def _load(instruction: Instruction, state: _State) -> int:
    mode, at, size = instruction.code & 0xE0, instruction.value, _SIZES.get(instruction.code & 0x18, 4)
    if mode == _ABSOLUTE:
        return _load_header(at, size, state)
    if mode == _INDIRECT:
        if not state.index_is_header:
            raise UnknownBytesError("bytes at a computed offset")
        _check_transport(at, size, state)
    return _PLAIN


def _load_header(at: int, size: int, state: _State) -> int:
    if (at, size) == (0, 1):
        return _FIRST
    if not state.version:
        raise UnknownBytesError(f"byte {at} of packets of any kind")
    if (at, size) == (_PROTOCOL_AT[state.version], 1):
        return _PROTOCOL
    if state.version == 4 and (at, size) == (6, 2):
        return _FRAGMENT
    if state.version == 6 and at >= _IPV6_BYTES:
        _check_transport(at - _IPV6_BYTES, size, state)
    elif not any(start <= at and at + size <= end for start, end in _KNOWN[state.version]):
        raise UnknownBytesError(f"byte {at} of the IPv{state.version} header")
    return _PLAIN


def _check_transport(at: int, size: int, state: _State) -> None:
    known = 4 if state.protocol in _WITH_PORTS else 2 if state.protocol in _TYPE_AND_CODE else 0
    if at + size > known and not (state.version == 6 and state.protocol == _FRAGMENT_HEADER):
        raise UnknownBytesError(f"byte {at} after the IP header")


def _calculate(instruction: Instruction, state: _State) -> int:
    operation = instruction.code & 0xF0 if not instruction.code & _FROM_INDEX else None
    if operation == _AND and state.holds == _FIRST and instruction.value == _VERSION_BITS:
        return _VERSION
    if operation == _AND and state.holds == _FRAGMENT and instruction.value == _OFFSET_BITS:
        return _OFFSET
    _refuse_parts(state)
    if instruction.code & _FROM_INDEX and state.index_is_header:
        raise UnknownBytesError("the length of the IP header")
    return _PLAIN


def _jump(instruction: Instruction, after: _State) -> Iterator[_State]:
    operation, value = instruction.code & 0xF0, instruction.value
    if operation == _ALWAYS:
        yield replace(after, at=after.at + value)
        return
    is_offset = (after.holds, operation, value) in ((_FRAGMENT, _ANY_BIT, _OFFSET_BITS), (_OFFSET, _EQUAL, 0))
    if not is_offset:
        _refuse_parts(after)
    if instruction.code & _FROM_INDEX and after.index_is_header:
        raise UnknownBytesError("the length of the IP header")
    met = after
    if operation == _EQUAL and after.holds == _VERSION and value in (0x40, 0x60):
        met = replace(after, version=value >> 4)
    elif operation == _EQUAL and after.holds == _PROTOCOL:
        met = replace(after, protocol=value)
    yield replace(met, at=after.at + instruction.jump_true)
    yield replace(after, at=after.at + instruction.jump_false)


# Only a part of these bytes is known.
def _refuse_parts(state: _State) -> None:
    if state.holds == _FIRST:
        raise UnknownBytesError("the length of the IP header")
    if state.holds in (_FRAGMENT, _OFFSET):
        raise UnknownBytesError("the flags and the offset of fragments")


# ---- filters --------------------------------------------------------------------------------------------------------


_RAW_IP = 12  # DLT_RAW
_SNAPLEN_BYTES = 262_144
_ANY_NETMASK = 0xFFFFFFFF  # PCAP_NETMASK_UNKNOWN


class FlowFilter:
    """Selects the packets that match an expression.

    Args:
        expression: such as `dst port 443 and net 10.0.0.0/8`; libpcap may ask the resolver for names in it.

    Raises:
        UsageError: libpcap is missing or rejects it, or it reads fields of a packet that are not kept.
    """

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self._ffi, self._pcap = load_libpcap("--flow")
        self._program = self._ffi.gc(self._ffi.new("struct bpf_program *"), self._pcap.pcap_freecode)
        self._compile(expression)
        try:
            check_reads(self._instructions())
        except UnknownBytesError as error:
            raise UsageError(
                f"--flow {expression!r} reads {error}, which is not kept of a packet: addresses, protocol, ports,"
                " type and code of ICMP, IP id and length are.",
                "man pcap-filter",
            ) from None
        address = int(self._ffi.cast("uintptr_t", self._pcap.pcap_offline_filter))
        self._run = ffi.cast("nfp_flow_run *", address)
        self._address = ffi.cast("void *", int(self._ffi.cast("uintptr_t", self._program)))

    def match(self, packets: Rows) -> npt.NDArray[np.bool_]:
        """Returns which packets (dtype PACKET) match."""
        packets = np.ascontiguousarray(packets)
        matches = np.zeros(len(packets), np.uint8)
        rows = ffi.cast("struct nfp_packet *", packets.ctypes.data)
        lib.nfp_flow_match(self._run, self._address, rows, len(packets), ffi.from_buffer("uint8_t[]", matches))
        return matches.astype(np.bool_)

    def _compile(self, expression: str) -> None:
        pcap = self._pcap.pcap_open_dead(_RAW_IP, _SNAPLEN_BYTES)
        try:
            text = expression.encode(errors="replace")
            if self._pcap.pcap_compile(pcap, self._program, text, 1, _ANY_NETMASK):
                said = read_text(self._ffi, self._pcap.pcap_geterr(pcap))
                raise UsageError(f"--flow {expression!r} cannot be used: {said}.", "man pcap-filter")
        finally:
            self._pcap.pcap_close(pcap)

    def _instructions(self) -> Sequence[Instruction]:
        found = self._program.bf_insns[0 : self._program.bf_len]
        return [Instruction(one.code, one.jt, one.jf, one.k) for one in found]
