# SPDX-License-Identifier: Apache-2.0
"""Text of whole columns: ids, addresses and names as Arrow arrays, made by NumPy, without an object per row.

Pure. Only IPv6 addresses and topics are written one by one, each different one once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from otel_nfprobe.base.columns import Columns, Rows

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_OCTETS = np.array([list(f"{octet}.".ljust(4).encode()) for octet in range(256)], np.uint8)
_OCTET_USED = np.array([[place <= len(str(octet)) for place in range(4)] for octet in range(256)])
_LAST_OCTET_USED = np.array([[place < len(str(octet)) for place in range(4)] for octet in range(256)])


def hex_text(values: NDArray[np.uint64]) -> pa.Array:
    """16 hexadecimal digits of each."""
    octets = values.astype(">u8").view(np.uint8).reshape(-1, 8)
    digits = np.empty((len(values), 16), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[octets >> 4], _HEX[octets & 15]
    return _strings(digits.reshape(-1), np.full(len(values), 16, np.int64))


def ipv4_text(addresses: NDArray[np.uint8]) -> pa.Array:
    """`10.0.0.1` of each; addresses: shape (n, 4)."""
    used = np.concatenate((_OCTET_USED[addresses[:, :3]], _LAST_OCTET_USED[addresses[:, 3:]]), axis=1)
    return _strings(_OCTETS[addresses][used], used.sum(axis=(1, 2)))


def address_text(packets: Rows, field: str) -> pa.Array:
    """`source` or `destination` of packets (dtype PACKET); null where there is no IP address."""
    versions = packets["ip_version"]
    is_4, is_6 = versions == 4, versions == 6
    kinds, place = np.unique(packets[field][is_6], axis=0, return_inverse=True)
    texts = pa.array([str(IPv6Address(kind.tobytes())) for kind in kinds], pa.string())
    values = pa.concat_arrays([ipv4_text(packets[field][is_4][:, :4]), texts])
    rows = np.zeros(len(packets), np.int64)
    rows[is_4] = np.arange(is_4.sum())
    rows[is_6] = is_4.sum() + place.reshape(-1)
    return values.take(pa.array(rows, mask=~(is_4 | is_6)))


def topic_text(columns: Columns) -> pa.Array:
    """The topic of each packet that is a message; null otherwise."""
    topics, digests = columns.topics, columns.packets["digest"]
    texts = [bytes(topic["text"][: int(topic["size"])]).decode("utf-8", "replace") for topic in topics]
    rows = np.searchsorted(topics["digest"], digests)
    known = rows < len(topics)
    known[known] = topics["digest"][rows[known]] == digests[known]
    return pa.array(texts, pa.string()).take(pa.array(rows, mask=~known))


def name_text(names: Sequence[str], rows: NDArray[np.integer]) -> pa.Array:
    """One of few names for each row; null where there is no such name. Dictionary encoded."""
    known = (rows >= 0) & (rows < len(names))
    indices = pa.array(np.where(known, rows, 0).astype(np.int32), mask=~known)
    return pa.DictionaryArray.from_arrays(indices, pa.array(names, pa.string()))


def numbered_text(names: Mapping[int, str], numbers: NDArray[np.uint32]) -> pa.Array:
    """Names by number + 1, as packets have those of an NF; null where a number is 0 or has none. Dictionary encoded."""
    known = np.array(sorted(names), np.int64)
    wanted = numbers.astype(np.int64) - 1
    rows = np.searchsorted(known, wanted)
    found = np.zeros(len(rows), np.bool_)
    inside = rows < len(known)
    found[inside] = known[rows[inside]] == wanted[inside]
    return name_text([names[number] for number in known.tolist()], np.where(found, rows, -1))


def same_text(text: str, count: int) -> pa.Array:
    """The same in each row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text], pa.string()))


def _strings(data: NDArray[np.uint8], lengths: NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data)))
