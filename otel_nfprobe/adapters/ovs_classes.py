# SPDX-License-Identifier: Apache-2.0
"""Where a stripped Open vSwitch keeps the functions of its kinds of ports.

Each kind is a constant table of functions (struct netdev_class) that begins with a pointer to its name. Where in
a table `send` and `rxq_recv` stand differs between versions. In a build with DPDK the kind "dpdk" tells: both of its
functions, and no others of it, refer to rte_eth_fp_ops, and `send` comes first. Reads the target only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.elf.modules import Module
from otel_nfprobe.target.target import Target

DPDK = "dpdk"
# Kinds whose packets pass only here. "dpdk" itself is seen in its drivers.
KINDS = ("system", "tap", "internal", "dummy", "afxdp", "afxdp-nonpmd", "dpdkvhostuser", "dpdkvhostuserclient")
CLASS_BYTES_MAX = 1024
WORD_BYTES = 8


class PortKind(NamedTuple):
    """A kind of ports: its name, and addresses in the target."""

    name: str
    receive: int
    send: int


class _Data(NamedTuple):
    """Words of the program's data from an address on."""

    address: int
    words: NDArray[Any]

    def places_of(self, values: Sequence[int]) -> list[int]:
        """Indexes of the words that have one of the values."""
        return [int(index) for index in np.flatnonzero(np.isin(self.words, np.array(values, np.uint64)))]


def find_port_kinds(target: Target, table_address: int) -> list[PortKind]:
    """The kinds of ports whose functions can be told; none when the tables are not found.

    Args:
        table_address: of rte_eth_fp_ops in the target.
    """
    program = target.modules()[0]
    data = list(_data_of(target, program))
    callers = _functions_that_use(program, data, table_address)
    offsets = _find_offsets(program, data, callers)
    if offsets is None:
        return []
    starts = {program.base + start for start in program.image.frames.starts}
    found = []
    for name in KINDS:
        for part in data:
            for place in part.places_of(_addresses_of_text(program, name)):
                send, receive = (_word(part, place + offset) for offset in offsets)
                if send != receive and {send, receive} <= starts:
                    found.append(PortKind(name, receive, send))
    return _without_doubtful(found)


def _without_doubtful(kinds: list[PortKind]) -> list[PortKind]:
    """Other tables begin with such a name, too: of several, the one is meant whose functions serve another kind."""
    names = Counter(kind.name for kind in kinds)
    shared = Counter((kind.receive, kind.send) for kind in kinds)
    return [kind for kind in kinds if names[kind.name] == 1 or shared[kind.receive, kind.send] > 1]


def dpdk_kind(target: Target, table_address: int) -> PortKind | None:
    """The functions of DPDK ports above their drivers, or None."""
    program = target.modules()[0]
    data = list(_data_of(target, program))
    callers = _functions_that_use(program, data, table_address)
    for part, place, offsets in _dpdk_classes(program, data, callers):
        send, receive = (_word(part, place + offset) for offset in offsets)
        return PortKind(DPDK, receive, send)
    return None


def _find_offsets(program: Module, data: list[_Data], callers: list[int]) -> tuple[int, int] | None:
    """Where `send` and `rxq_recv` stand, in words; None when several answers are possible."""
    found = {offsets for _, _, offsets in _dpdk_classes(program, data, callers)}
    return found.pop() if len(found) == 1 else None


def _dpdk_classes(
    program: Module, data: list[_Data], callers: list[int]
) -> Iterator[tuple[_Data, int, tuple[int, int]]]:
    for part in data:
        uses = part.places_of(callers)
        for place in part.places_of(_addresses_of_text(program, DPDK)):
            inside = [use - place for use in uses if 0 < use - place < CLASS_BYTES_MAX // WORD_BYTES]
            if len(inside) == 2:
                yield part, place, (inside[0], inside[1])


def _functions_that_use(program: Module, data: list[_Data], table_address: int) -> list[int]:
    """Functions of the program that refer to the table, or to a word that holds its address (GOT)."""
    referred = [table_address]
    for part in data:
        referred += [part.address + WORD_BYTES * index for index in part.places_of([table_address])]
    frames = program.image.frames.frames
    starts = program.image.frames.starts
    found = set()
    for low, high in program.image.code_ranges:
        code = np.frombuffer(program.image.read(low, high - low), np.uint8)
        for address in _references(code, low, {word - program.base for word in referred}):
            index = bisect_right(starts, address) - 1
            if index >= 0 and address < frames[index].start + frames[index].size:
                found.add(program.base + frames[index].start)
    return sorted(found)


def _references(code: NDArray[np.uint8], low: int, referred: set[int]) -> Iterator[int]:
    """Addresses of displacements that lead, from their own end, to one of the file's own addresses."""
    for shift in range(4):
        part = code[shift : shift + (len(code) - shift) // 4 * 4].view("<i4").astype(np.int64)
        places = low + shift + 4 * np.arange(len(part))
        for index in np.flatnonzero(np.isin(part + places + 4, np.array(sorted(referred), np.int64))):
            yield int(places[index])


def _data_of(target: Target, program: Module) -> Iterator[_Data]:
    for mapping in target.maps():
        if mapping.path == program.path and "x" not in mapping.permissions:
            content = target.read(mapping.start, (mapping.end - mapping.start) // WORD_BYTES * WORD_BYTES)
            yield _Data(mapping.start, np.frombuffer(content, "<u8"))


def _addresses_of_text(program: Module, text: str) -> list[int]:
    """Addresses in the target of a text with its zero byte, also as the end of a longer one."""
    wanted, found = text.encode() + b"\0", []
    for segment in program.image.segments:
        content = program.image.read(segment.address, segment.file_bytes)
        place = content.find(wanted)
        while place >= 0:
            found.append(program.base + segment.address + place)
            place = content.find(wanted, place + 1)
    return found


def _word(part: _Data, index: int) -> int:
    return int(part.words[index]) if index < len(part.words) else 0
