# SPDX-License-Identifier: Apache-2.0
"""Where an rte_mbuf has the time stamp of its arrival: chosen when the program runs, and found in its memory.

    {head, entry, "RTE_MBUF_DYNFIELD"}     in writable data of librte_mbuf, or of the program: a tail queue
    head -> entries -> {name, size, align, flags, offset}      each field that somebody has asked for

The same for flags: the bit of `ol_flags` that says whether a packet has a stamp. Its unit is the driver's: the
probe takes what is plausible as the processor's time stamp counter or as Unix ns. Reads the target only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import NO_OFFSET, Buffer
from otel_nfprobe.adapters.ethdev import data_of
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.target import Target

FIELDS, FLAGS = b"RTE_MBUF_DYNFIELD", b"RTE_MBUF_DYNFLAG"
STAMP, HAS_STAMP = b"rte_dynfield_timestamp", b"rte_dynflag_rx_timestamp"
QUEUE_NAME_BYTES, NAME_BYTES = 32, 64
QUEUE_NAME_AT = 24  # in struct rte_tailq_elem, whose first word leads to the head
HEAD_NAME_AT = 16  # in struct rte_tailq_head
ENTRIES_MAX = 128
MBUF_BYTES, FLAG_BITS = 128, 64
OL_FLAGS = 24
EITHER = lib.NFP_ARRIVAL_EITHER
STAMP_BYTES = 8


def with_stamp(target: Target, packet: Buffer) -> Buffer:
    """The buffer with its stamp; as it was when nobody has asked DPDK for one, or it is not found."""
    try:
        offset, bit = _find(target, FIELDS, STAMP), _find(target, FLAGS, HAS_STAMP)
    except NfprobeError:  # the program is changing it at this moment, or ends
        return packet
    if offset is None or bit is None:
        return packet
    return replace(packet, arrival=offset, arrival_unit=EITHER, arrival_flags=OL_FLAGS, arrival_bit=bit)


def stamp_note(packet: Buffer) -> str:
    """For a person."""
    if packet.arrival == NO_OFFSET:
        return "packets have no arrival stamps: no driver or program has asked for the field"
    return (
        f"arrival stamps are at {packet.arrival} in rte_mbuf where bit {packet.arrival_bit} of its flags is set; "
        "used if they are ticks of the time stamp counter or Unix ns"
    )


def _find(target: Target, queue: bytes, name: bytes) -> int | None:
    """The offset of the field, or the bit of the flag, of that name."""
    for item in _entries(target, queue):
        if target.read(item, NAME_BYTES).split(b"\0")[0] != name:
            continue
        if queue == FLAGS:
            _, bit = struct.unpack("<II", target.read(item + NAME_BYTES, 8))
            return int(bit) if bit < FLAG_BITS else None
        size, _, _, offset = struct.unpack("<QQQQ", target.read(item + NAME_BYTES, 32))
        return int(offset) if size == STAMP_BYTES and offset <= MBUF_BYTES - STAMP_BYTES else None
    return None


def _entries(target: Target, queue: bytes) -> Iterator[int]:
    """Addresses of what the entries of a tail queue hold."""
    name = queue.ljust(QUEUE_NAME_BYTES, b"\0")
    for _, content in data_of(target, target.modules()):
        place = content.find(name)
        while place >= QUEUE_NAME_AT:
            (head,) = struct.unpack_from("<Q", content, place - QUEUE_NAME_AT)
            if head and target.read(head + HEAD_NAME_AT, QUEUE_NAME_BYTES) == name:
                yield from _walk(target, target.read_word(head))
                return
            place = content.find(name, place + 1)


def _walk(target: Target, entry: int) -> Iterator[int]:
    for _ in range(ENTRIES_MAX):
        if not entry:
            return
        following, _, item = struct.unpack("<QQQ", target.read(entry, 24))
        yield int(item)
        entry = following
