# SPDX-License-Identifier: Apache-2.0
"""Trace packets: the messages of a Perfetto trace, many of one kind at a time. Pure: columns in, bytes out.

Each kind is serialized once by Perfetto's own Python package, with marks in the place of what differs; NumPy copies
that as often as needed and writes the columns over the marks. Numbers are varints of a fixed size: decoders take them
with more bytes than they need (Protocol Buffers, encoding: base 128 varints).

Sources: Perfetto's protos/perfetto/trace/trace_packet.proto and track_event/track_event.proto.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket

from otel_nfprobe.base.columns import Rows

NS_BYTES = 9  # of a varint that holds 63 bits

Bytes = NDArray[np.uint8]
Integers = NDArray[np.integer]


class _Field(NamedTuple):
    mark: bytes
    is_varint: bool


class Marks:
    """Values for the fields of one kind of packet that differ from one packet to the next, by name."""

    def __init__(self) -> None:
        self.fields: dict[str, _Field] = {}

    def number(self, name: str, size: int) -> int:
        """Returns what to set a varint field to, whose values need at most `size` bytes."""
        mark = (1 << 7 * (size - 1)) | len(self.fields) + 1
        self.fields[name] = _Field(_varint(mark, size), True)
        return mark

    def fixed(self, name: str) -> int:
        """The same of a fixed64 field."""
        mark = 0xA5A5A5A5A5A5A500 | len(self.fields) + 1
        self.fields[name] = _Field(mark.to_bytes(8, "little"), False)
        return mark

    def text(self, name: str, size: int) -> str:
        """The same of a string field, whose values have exactly `size` ASCII characters."""
        mark = chr(ord("A") + len(self.fields)) * size
        self.fields[name] = _Field(mark.encode(), False)
        return mark


class Packets(NamedTuple):
    """Serialized packets, one after the other, with the size of each."""

    data: Bytes
    sizes: NDArray[np.int64]


class PacketKind:
    """Packets that differ in some fields only.

    Args:
        packet: one of them, with marks.
        marks: those that are in it.
    """

    def __init__(self, packet: TracePacket, marks: Marks) -> None:
        data = serialize(packet)
        self._template = np.frombuffer(data, np.uint8)
        self._places: dict[str, tuple[slice, bool]] = {}
        for name, (mark, is_varint) in marks.fields.items():
            at = data.find(mark)
            assert at >= 0, f"no packet has a mark for {name}"
            assert data.find(mark, at + 1) < 0, f"the mark of {name} is not the only such value"
            self._places[name] = slice(at, at + len(mark)), is_varint

    def encode(self, count: int, **columns: Integers | Rows) -> Packets:
        """Returns `count` packets.

        Args:
            columns: by the name of a mark its values: integers, or byte strings of the text's size.
        """
        assert columns.keys() == self._places.keys()
        rows = np.empty((count, len(self._template)), np.uint8)
        rows[:] = self._template
        for name, values in columns.items():
            place, is_varint = self._places[name]
            if is_varint:
                _write_varints(rows[:, place], values.astype(np.uint64))
            else:
                texts = np.ascontiguousarray(values)
                rows[:, place] = texts.view(np.uint8).reshape(count, place.stop - place.start)
        return Packets(rows.ravel(), np.full(count, len(self._template), np.int64))


def serialize(packet: TracePacket) -> bytes:
    """Returns a packet as a part of a trace: traces are concatenated to a trace."""
    data: bytes = Trace(packet=[packet]).SerializeToString()
    return data


def pack(packets: Sequence[bytes]) -> Packets:
    """Returns packets that were serialized one by one."""
    return Packets(np.frombuffer(b"".join(packets), np.uint8), np.array([len(data) for data in packets], np.int64))


def arrange(parts: Sequence[Packets], order: Integers) -> bytes:
    """Returns all packets of some parts in another order.

    Args:
        order: positions of packets, counted through all parts.
    """
    data, sizes = np.concatenate([part.data for part in parts]), np.concatenate([part.sizes for part in parts])
    starts, sizes = (np.cumsum(sizes) - sizes)[order], sizes[order]
    moved = starts - (np.cumsum(sizes) - sizes)  # how far each comes from
    arranged: Bytes = data[np.repeat(moved, sizes) + np.arange(sizes.sum())]
    return arranged.tobytes()


def _varint(value: int, size: int) -> bytes:
    return bytes((value >> 7 * at & 0x7F) | (0x80 if at < size - 1 else 0) for at in range(size))


def _write_varints(target: Bytes, values: NDArray[np.uint64]) -> None:
    size = target.shape[1]
    assert not len(values) or int(values.max()) >> 7 * size == 0, "a value needs a larger varint"
    for at in range(size):
        more = 0x80 if at < size - 1 else 0
        target[:, at] = (values >> np.uint64(7 * at) & np.uint64(0x7F)).astype(np.uint8) | more
