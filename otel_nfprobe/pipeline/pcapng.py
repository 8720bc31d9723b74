# SPDX-License-Identifier: Apache-2.0
"""pcapng: sections of blocks, each with its own byte order and interfaces (draft-ietf-opsawg-pcapng).

Reads enhanced, simple and the older packet blocks; skips every other one. Trusts no length in it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.pipeline.capturefile import (
    CHUNK_BYTES,
    LINKS,
    PACKET_BYTES_MAX,
    SECOND_NS,
    CapturedPackets,
    Link,
    cut_sentence,
    damage_sentence,
    read_some,
)

INTERFACES_MAX = 4096  # of one section

_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
_READ = (_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET)
_BYTE_ORDER_MAGIC = 0x1A2B3C4D
_HEAD_BYTES = 8
_FRAME_BYTES = 12  # type and length before the body, the length again behind it
_BODY_BYTES_MAX = PACKET_BYTES_MAX + 65536  # of a block that is read; options are small
_PACKET_HEAD_BYTES = 20
_RESOLUTION, _OFFSET = 9, 14  # options of an interface
_NS_MAX = 2**63


@dataclass
class _Interface:
    link: Link | None  # None: of a link type that is not read
    snap_length: int
    units_per_second: int = 10**6
    offset_s: int = 0

    def unix_ns(self, high: int, low: int) -> int:
        ns = (high << 32 | low) * SECOND_NS // self.units_per_second + self.offset_s * SECOND_NS
        return min(max(ns, 0), _NS_MAX)


class _DamageError(Exception):
    """A block cannot be what it says it is."""


class PcapngReader:
    """A pcapng file, from behind its first four bytes.

    Raises:
        UsageError: it does not begin with a whole section header.
    """

    def __init__(self, stream: BinaryIO, name: str) -> None:
        self.damage = ""
        self.skipped = 0
        self._stream = stream
        self._name = name
        self._order = "<"
        self._interfaces: list[_Interface] = []

    def pieces(self) -> Iterator[CapturedPackets]:
        """All whole packets in the order of the file.

        Raises:
            UsageError: the file ends before its first block does.
        """
        rest = bytearray(struct.pack(">I", _SECTION))
        done = to_skip = 0
        while not self.damage:
            more = read_some(self._stream, CHUNK_BYTES)
            piece = CapturedPackets(rest + more)
            at = min(to_skip, len(piece.data))
            to_skip -= at
            if not to_skip:
                at, to_skip = self._walk(piece, at, done)
            yield piece
            done += at
            rest = piece.data[at:]
            if not more:
                break
        if (rest or to_skip) and not self.damage:
            self.damage = cut_sentence(self._name, done).replace("packet", "block")
        if self.damage and not done:
            raise UsageError(f"{self._name} is not a whole capture file: {self.damage}", "nfprobe ids --help")

    def _walk(self, piece: CapturedPackets, at: int, done: int) -> tuple[int, int]:
        # Takes the blocks that are whole; returns where the next one begins, and how far that is beyond the piece.
        data, end = piece.data, len(piece.data)
        try:
            while at + _FRAME_BYTES <= end:
                kind, length = self._begin_block(data, at)
                if at + length > end:
                    return (at, 0) if kind in _READ else (end, at + length - end)
                if struct.unpack_from(self._order + "I", data, at + length - 4)[0] != length:
                    raise _DamageError
                if kind in _READ:
                    self._take_block(piece, kind, at + _HEAD_BYTES, at + length - 4)
                at += length
        except _DamageError:
            self.damage = damage_sentence(self._name, done + at)
        return at, 0

    def _begin_block(self, data: bytearray, at: int) -> tuple[int, int]:
        kind, length = struct.unpack_from(self._order + "2I", data, at)
        if kind == _SECTION:  # the same in both byte orders
            magic = data[at + _HEAD_BYTES : at + _FRAME_BYTES]
            orders = [order for order in "<>" if struct.unpack(order + "I", magic)[0] == _BYTE_ORDER_MAGIC]
            if not orders:
                raise _DamageError
            self._order = orders[0]
            (length,) = struct.unpack_from(self._order + "I", data, at + 4)
        too_long = kind in _READ and length > _BODY_BYTES_MAX
        if length < _FRAME_BYTES or length % 4 or too_long:
            raise _DamageError
        return kind, length

    def _take_block(self, piece: CapturedPackets, kind: int, start: int, end: int) -> None:
        if kind == _SECTION:
            self._interfaces = []
        elif kind == _INTERFACE:
            self._take_interface(piece.data, start, end)
        elif kind == _SIMPLE_PACKET:
            self._take_simple(piece, start, end)
        else:
            self._take_packet(piece, kind, start, end)

    def _take_interface(self, data: bytearray, start: int, end: int) -> None:
        if end - start < 8 or len(self._interfaces) == INTERFACES_MAX:
            raise _DamageError
        link_type, snap_length = struct.unpack_from(self._order + "H2xI", data, start)
        interface = _Interface(LINKS.get(link_type), snap_length)
        self._interfaces.append(interface)
        at = start + 8
        while at + 4 <= end:
            code, length = struct.unpack_from(self._order + "2H", data, at)
            value = data[at + 4 : min(end, at + 4 + length)]
            if code == _RESOLUTION and len(value) == 1:
                bits = value[0] & 0x7F
                interface.units_per_second = 2**bits if value[0] & 0x80 else 10**bits
            elif code == _OFFSET and len(value) == 8:
                interface.offset_s = struct.unpack(self._order + "q", value)[0]
            elif code == 0:
                break
            at += 4 + (length + 3) // 4 * 4

    def _interface(self, number: int) -> _Interface:
        if number >= len(self._interfaces):
            raise _DamageError
        return self._interfaces[number]

    def _take_packet(self, piece: CapturedPackets, kind: int, start: int, end: int) -> None:
        if end - start < _PACKET_HEAD_BYTES:
            raise _DamageError
        number, high, low, captured, length = struct.unpack_from(self._order + "5I", piece.data, start)
        if kind == _OLD_PACKET:  # the interface has half of the first word
            (number,) = struct.unpack_from(self._order + "H", piece.data, start)
        start += _PACKET_HEAD_BYTES
        if captured > end - start:
            raise _DamageError
        interface = self._interface(number)
        if interface.link is None:
            self.skipped += 1
        else:
            piece.add(interface.unix_ns(high, low), start, captured, length, interface.link)

    def _take_simple(self, piece: CapturedPackets, start: int, end: int) -> None:
        if end - start < 4:
            raise _DamageError
        (length,) = struct.unpack_from(self._order + "I", piece.data, start)
        interface = self._interface(0)
        captured = min(length, end - start - 4, interface.snap_length or length)
        if interface.link is None:
            self.skipped += 1
        else:
            piece.add(0, start + 4, captured, length, interface.link)
