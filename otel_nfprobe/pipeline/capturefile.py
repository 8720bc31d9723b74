# SPDX-License-Identifier: Apache-2.0
"""Capture files: pcap in every form, read front to back in pieces, whatever its bytes are. pcapng.py does the other.

Memory is bounded by CHUNK_BYTES and PACKET_BYTES_MAX, not by the file; it can be a pipe. What is whole before
damage is given, and `damage` says where it ends.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.pipeline.digest import LINK_ETHERNET, LINK_IP

CHUNK_BYTES = 1 << 20
PACKET_BYTES_MAX = 1 << 18  # libpcap's MAXIMUM_SNAPLEN: more is damage
SECOND_NS = 10**9

_HEADER_BYTES = 24
# First word -> ns per unit of the fraction, bytes of a packet's header ("modified" pcap has eight more).
_FORMS = {0xA1B2C3D4: (1000, 16), 0xA1B23C4D: (1, 16), 0xA1B2CD34: (1000, 24)}
_PCAPNG = b"\x0a\x0d\x0d\x0a"
_COMPRESSED = {b"\x1f\x8b": "gunzip", b"\x28\xb5\x2f\xfd": "unzstd", b"\xfd7zX": "unxz", b"\x04\x22\x4d\x18": "unlz4"}


FACTS_BYTES = 56
FACTS = np.dtype(
    {
        "names": ["digest", "length", "flags"],
        "formats": ["<u8", "<u4", "u1"],
        "offsets": [0, 44, 54],
        "itemsize": FACTS_BYTES,
    }
)
"""What is read of struct nfp_packet_facts (native/abi/headers.h)."""


@dataclass(frozen=True)
class Link:
    """How the frames of a link type become what the digest's code reads: `skip` bytes, then Ethernet or IP.

    A Linux cooked header of version 1 ends as an Ethernet header does, with the ethertype; in one of version 2
    it stands at the beginning and is copied to where Ethernet has it.
    """

    skip: int
    layer: int
    type_first: bool = False


# LINKTYPE_NULL, ETHERNET, DLT_RAW of three systems, LINKTYPE_LOOP, LINUX_SLL, IPV4, IPV6, LINUX_SLL2.
LINKS = {
    0: Link(4, LINK_IP),
    1: Link(0, LINK_ETHERNET),
    12: Link(0, LINK_IP),
    14: Link(0, LINK_IP),
    101: Link(0, LINK_IP),
    108: Link(4, LINK_IP),
    113: Link(2, LINK_ETHERNET),
    228: Link(0, LINK_IP),
    229: Link(0, LINK_IP),
    276: Link(6, LINK_ETHERNET, type_first=True),
}
_SLL2_TYPE_AT = 18


@dataclass
class CapturedPackets:
    """Some packets of a capture, as lists of one entry for each.

    `data` holds their bytes; `offsets` and `readable` say where those of each are, without the link layer's part
    that is skipped; `lengths` are those on the wire, and the digest's code finds `layers` there.
    """

    data: bytearray
    unix_ns: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    readable: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)

    def add(self, unix_ns: int, start: int, captured: int, length: int, link: Link) -> None:
        """Takes the packet whose frame has `captured` bytes at `start`."""
        skip = link.skip
        if link.type_first and captured >= _SLL2_TYPE_AT + 2:
            self.data[start + _SLL2_TYPE_AT : start + _SLL2_TYPE_AT + 2] = self.data[start : start + 2]
        self.unix_ns.append(unix_ns)
        self.offsets.append(start + skip if captured > skip else start)
        self.readable.append(captured - skip if captured > skip else 0)
        whole = length if length > captured else captured
        self.lengths.append(whole - skip if whole > skip else 0)
        self.layers.append(link.layer)

    def arrays(self) -> tuple[NDArray[np.uint64], ...]:
        """Offsets, readable bytes, lengths and layers, 64 bits each."""
        parts = (self.offsets, self.readable, self.lengths, self.layers)
        return tuple(np.array(part, np.uint64) for part in parts)


def describe_packets(piece: CapturedPackets, key: Any, link_flags: int) -> bytes:
    """The facts of each packet, rows of FACTS, as the probes find them.

    Args:
        key: of the ids, a cffi uint64_t[2].
        link_flags: 0 or LINK_INNER.
    """
    offsets, readable, lengths, layers = piece.arrays()
    layers |= np.uint64(link_flags)
    count = len(offsets)
    facts = ffi.new("uint8_t[]", count * FACTS_BYTES)
    data = ffi.from_buffer("uint8_t[]", piece.data)
    at, there, whole, kinds = (ffi.from_buffer("uint64_t[]", array) for array in (offsets, readable, lengths, layers))
    lib.nfp_digest_describe_all(data, at, there, whole, kinds, count, key, facts)
    return bytes(ffi.buffer(facts))


class CaptureReader(Protocol):
    """A capture file that is read once.

    Attributes:
        damage: a sentence when not all of it could be read, else empty.
        skipped: packets of link types that are not read.
    """

    damage: str
    skipped: int

    def pieces(self) -> Iterator[CapturedPackets]:
        """All whole packets in the order of the file."""


class PcapReader:
    """A pcap file, from behind its first four bytes.

    Raises:
        UsageError: its header is not whole, or its link type is none of LINKS.
    """

    def __init__(self, stream: BinaryIO, name: str, magic: bytes) -> None:
        self.damage = ""
        self.skipped = 0
        self._stream = stream
        self._name = name
        self._order = "<" if struct.unpack("<I", magic)[0] in _FORMS else ">"
        self._unit_ns, self._header_bytes = _FORMS[struct.unpack(self._order + "I", magic)[0]]
        header = read_exactly(stream, _HEADER_BYTES - 4)
        if len(header) < _HEADER_BYTES - 4:
            raise UsageError(f"{name} is cut inside its header, so there is no packet in it.", "nfprobe ids --help")
        link_type = struct.unpack(self._order + "I", header[-4:])[0] & 0xFFFF  # above it: the length of a checksum
        if link_type not in LINKS:
            raise UsageError(
                f"{name} has link type {link_type}; ids reads Ethernet, raw IP, loopback and Linux cooked captures.",
                "nfprobe ids --help",
            )
        self._link = LINKS[link_type]

    def pieces(self) -> Iterator[CapturedPackets]:
        """All whole packets in the order of the file."""
        rest, done = bytearray(), _HEADER_BYTES
        while not self.damage:
            more = read_some(self._stream, CHUNK_BYTES)
            piece = CapturedPackets(rest + more)
            at = self._walk(piece, done)
            yield piece
            done += at
            rest = piece.data[at:]
            if not more:
                break
        if rest and not self.damage:
            self.damage = cut_sentence(self._name, done)

    def _walk(self, piece: CapturedPackets, done: int) -> int:
        # Takes the packets that are whole; returns where the next one begins.
        unpack = struct.Struct(self._order + "4I").unpack_from
        data, header_bytes, unit_ns = piece.data, self._header_bytes, self._unit_ns
        at, end = 0, len(piece.data)
        while at + header_bytes <= end:
            seconds, fraction, captured, length = unpack(data, at)
            start = at + header_bytes
            if captured > PACKET_BYTES_MAX:
                self.damage = damage_sentence(self._name, done + at)
                break
            if start + captured > end:
                break
            piece.add(seconds * SECOND_NS + fraction * unit_ns, start, captured, length, self._link)
            at = start + captured
        return at


def open_capture(path: str) -> CaptureReader:
    """The reader of a capture file; `-` is standard input.

    Raises:
        UsageError: it cannot be opened, or is no capture.
    """
    stream = _open(path)
    name = "standard input" if path == "-" else path
    magic = read_exactly(stream, 4)
    if magic == _PCAPNG:
        from otel_nfprobe.pipeline.pcapng import PcapngReader

        return PcapngReader(stream, name)
    if len(magic) == 4 and any(struct.unpack(order + "I", magic)[0] in _FORMS for order in "<>"):
        return PcapReader(stream, name, magic)
    for start, tool in _COMPRESSED.items():
        if magic.startswith(start):
            raise UsageError(f"{name} is compressed.", f"{tool} < {path} | nfprobe ids -")
    raise UsageError(f"{name} is not a capture file (pcap or pcapng).", "nfprobe ids --help")


def _open(path: str) -> BinaryIO:
    try:
        return sys.stdin.buffer if path == "-" else open(path, "rb")
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.", f"ls -l {path}") from None


def read_exactly(stream: BinaryIO, count: int) -> bytes:
    """`count` bytes, or fewer at the end of the file.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return stream.read(count)
    except OSError as error:
        raise UsageError(f"The capture cannot be read: {error.strerror}.", "nfprobe ids --help") from None


def read_some(stream: BinaryIO, count: int) -> bytes:
    """At most `count` bytes, as many as are there without waiting for more; none at the end of the file."""
    try:
        return stream.read1(count)  # type: ignore[attr-defined, no-any-return]
    except OSError as error:
        raise UsageError(f"The capture cannot be read: {error.strerror}.", "nfprobe ids --help") from None


def cut_sentence(name: str, offset: int) -> str:
    """That a file ends inside a packet."""
    return f"{name} is cut: the packet at byte {offset:,} is not whole."


def damage_sentence(name: str, offset: int) -> str:
    """That a file goes on with something that cannot be a packet."""
    return f"{name} is damaged at byte {offset:,}: nothing after it is read."
