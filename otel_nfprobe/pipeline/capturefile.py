# SPDX-License-Identifier: Apache-2.0
"""Capture files, pcap and pcapng, read sequentially by libpcap in pieces.

Memory is bounded by CHUNK_BYTES, not by the file; it can be a pipe. Everything before damage is returned, and `damage`
describes what libpcap found there. Files whose interfaces differ in link type or snapshot length are not supported.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.pipeline.identity import LINK_ETHERNET, LINK_IP
from otel_nfprobe.pipeline.libpcap import load_libpcap, read_text

CHUNK_BYTES = 1 << 20
SECOND_NS = 10**9

_NANOSECONDS = 1  # PCAP_TSTAMP_PRECISION_NANO
_ERROR_BYTES = 256  # PCAP_ERRBUF_SIZE
_TAKEN, _AT_END = 1, -2  # of pcap_next_ex
_NS_MAX = 2**63
_START_BYTES = 4
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
"""The fields used of struct nfp_packet_facts (native/abi/headers.h)."""


@dataclass(frozen=True)
class Link:
    """How frames of a link type are prepared for the digest's code: `skip` bytes, then Ethernet or IP.

    A Linux cooked header of version 1 ends like an Ethernet header, with the ethertype; version 2 starts with it, so it
    is copied to the position that Ethernet has.
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
    """Some packets of a capture, as lists with one entry per packet.

    `data` holds their bytes; `offsets` and `readable` locate those of each, without the skipped part of the link layer;
    `lengths` are those on the wire, and the digest's code starts at `layers`.
    """

    data: bytearray
    unix_ns: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    readable: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)

    def add(self, unix_ns: int, start: int, captured: int, length: int, link: Link) -> None:
        """Adds the packet whose frame has `captured` bytes at `start`."""
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
        """Returns offsets, readable bytes, lengths and layers, 64 bits each."""
        parts = (self.offsets, self.readable, self.lengths, self.layers)
        return tuple(np.array(part, np.uint64) for part in parts)


def describe_packets(piece: CapturedPackets, key: Any, link_flags: int) -> bytes:
    """Returns the facts of each packet, rows of FACTS, as the probes find them.

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


def find_ids(facts: bytes) -> NDArray[np.uint64]:
    """The id of each packet, from its facts (describe_packets)."""
    ids = np.zeros(len(facts) // FACTS_BYTES, np.uint64)
    lib.nfp_digest_ids(ffi.from_buffer("uint8_t[]", facts), len(ids), ffi.from_buffer("uint64_t[]", ids))
    return ids


class CaptureReader:
    """A capture file, read once.

    Attributes:
        damage: a sentence if not all of it could be read, otherwise empty.

    Raises:
        UsageError: it cannot be opened, is not a capture, or its link type is not in LINKS.
    """

    def __init__(self, path: str) -> None:
        self.damage = ""
        self._name = "standard input" if path == "-" else path
        start = _read_start(path)
        self._ffi, self._pcap = load_libpcap("Reading a capture")
        error = self._ffi.new("char[]", _ERROR_BYTES)
        name = self._ffi.new("char[]", os.fsencode(path))
        opened = self._pcap.pcap_open_offline_with_tstamp_precision(name, _NANOSECONDS, error)
        if opened == self._ffi.NULL:
            raise _not_opened(path, self._name, start, read_text(self._ffi, error))
        self._file = self._ffi.gc(opened, self._pcap.pcap_close)
        link_type = self._pcap.pcap_datalink(opened)
        if link_type not in LINKS:
            raise UsageError(
                f"{self._name} has link type {link_type}; ids reads Ethernet, raw IP, loopback and Linux cooked"
                " captures.",
                "nfprobe ids --help",
            )
        self._link = LINKS[link_type]
        self._pipe = [0] if path == "-" else []

    def pieces(self) -> Iterator[CapturedPackets]:
        """Yields all complete packets in the order of the file."""
        count, is_over = 0, False
        while not is_over:
            piece = CapturedPackets(bytearray())
            is_over = self._fill(piece)
            count += len(piece.unix_ns)
            yield piece
        if self.damage:
            self.damage = f"{self._name} is truncated or damaged after packet {count:,}: {self.damage}."

    def _fill(self, piece: CapturedPackets) -> bool:
        # Reads packets until the piece is large, or reading the next one could block. True at the end of the file.
        header, bytes_at = self._ffi.new("struct pcap_pkthdr **"), self._ffi.new("uint8_t **")
        take, file, buffer, data, link = self._pcap.pcap_next_ex, self._file, self._ffi.buffer, piece.data, self._link
        start = 0
        while start < CHUNK_BYTES:
            taken = take(file, header, bytes_at)
            if taken != _TAKEN:
                self.damage = "" if taken == _AT_END else read_text(self._ffi, self._pcap.pcap_geterr(file))
                return True
            found = header[0]
            captured = found.captured
            data += buffer(bytes_at[0], captured)
            unix_ns = found.seconds * SECOND_NS + found.fraction
            piece.add(min(max(unix_ns, 0), _NS_MAX), start, captured, found.length, link)
            start += captured
            if self._pipe and not select.select(self._pipe, [], [], 0)[0]:
                break
        return False


def _read_start(path: str) -> bytes:
    """Returns the first bytes of a regular file; none of a pipe, which cannot be read twice.

    Raises:
        UsageError: it cannot be opened.
    """
    try:
        if path == "-" or stat.S_ISFIFO(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read(_START_BYTES)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.", f"ls -l {path}") from None


def _not_opened(path: str, name: str, start: bytes, said: str) -> UsageError:
    for magic, tool in _COMPRESSED.items():
        if start.startswith(magic):
            return UsageError(f"{name} is compressed.", f"{tool} < {path} | nfprobe ids -")
    if said == "unknown file format" or not start:
        return UsageError(f"{name} is not a capture file (pcap or pcapng).", "nfprobe ids --help")
    return UsageError(f"{name} is not a complete capture file: {said}.", "nfprobe ids --help")
