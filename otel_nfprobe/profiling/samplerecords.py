# SPDX-License-Identifier: Apache-2.0
"""The kernel's records of samples: where a thread was, and what the counters of the sampled group had counted. Pure.

    header  address  pid tid  time  cpu  period  | number of values  ns enabled  ns running  (value, id) for each

The part behind the line is there where the samples hold values; the event that samples is one of them.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.linux.perfring import HEADER
from otel_nfprobe.profiling.samplecounts import NOT_KNOWN, Words

SAMPLE_TYPE = lib.PERF_SAMPLE_IP | lib.PERF_SAMPLE_TID | lib.PERF_SAMPLE_TIME | lib.PERF_SAMPLE_CPU
SAMPLE_TYPE |= lib.PERF_SAMPLE_PERIOD
READ_FORMAT = lib.PERF_FORMAT_TOTAL_TIME_ENABLED | lib.PERF_FORMAT_TOTAL_TIME_RUNNING
READ_FORMAT |= lib.PERF_FORMAT_ID | lib.PERF_FORMAT_GROUP
# Of a record's misc.
MODE, IN_KERNEL = lib.PERF_RECORD_MISC_CPUMODE_MASK, lib.PERF_RECORD_MISC_KERNEL
EXACT = lib.PERF_RECORD_MISC_EXACT_IP

_RECORD_SAMPLE, _RECORD_LOST = lib.PERF_RECORD_SAMPLE, lib.PERF_RECORD_LOST
_LOST_AT = 16  # in its record: how many
_PLACE = [
    ("type", "<u4"),
    ("misc", "<u2"),
    ("size", "<u2"),
    ("address", "<u8"),
    ("pid", "<u4"),
    ("tid", "<u4"),
    ("time_ns", "<u8"),
    ("cpu", "<u4"),
    ("reserved", "<u4"),
    ("period", "<u8"),
]
_READ = [("count", "<u8"), ("enabled_ns", "<u8"), ("running_ns", "<u8")]
_VALUE = np.dtype([("value", "<u8"), ("id", "<u8")])
_PLACE_BYTES = np.dtype(_PLACE).itemsize
_READ_BYTES = np.dtype(_READ).itemsize

Records = NDArray[np.void]


@cache
def record_dtype(values: int) -> np.dtype[Any]:
    """One record that holds so many values."""
    return np.dtype([*_PLACE, *_READ, ("values", _VALUE, (values,))] if values else _PLACE)


class Taken(NamedTuple):
    """What a buffer held.

    Attributes:
        records: dtype record_dtype.
        breaks: before which of them (len(records): behind the last) the kernel said that something is missing.
        lost: samples that are missing.
    """

    records: Records
    breaks: NDArray[np.intp]
    lost: int


def split_records(data: bytes, values: int = 0) -> Taken:
    """Takes the samples out of whole records.

    Args:
        values: how many each sample holds. Of a sample that holds others, since its group was changed, they are 0,
            and so are their ids.
    """
    dtype = record_dtype(values)
    if data and len(data) % dtype.itemsize == 0:
        records = np.frombuffer(data, dtype)
        if np.all((records["type"] == _RECORD_SAMPLE) & (records["size"] == dtype.itemsize)):
            return Taken(records, np.empty(0, np.intp), 0)
    kept: list[Records] = [np.empty(0, dtype)]
    breaks, lost, at = [], 0, 0
    while at + HEADER.size <= len(data):
        kind, _, size = HEADER.unpack_from(data, at)
        if size < HEADER.size or at + size > len(data):
            break
        if kind != _RECORD_SAMPLE:
            breaks.append(len(kept) - 1)
            if kind == _RECORD_LOST and size >= _LOST_AT + 8:
                lost += int(struct.unpack_from("<Q", data, at + _LOST_AT)[0])
        elif size == dtype.itemsize:
            kept.append(np.frombuffer(data, dtype, 1, at))
        elif values and _is_whole(data, at, size):
            other = np.zeros(1, dtype)
            other.view(np.uint8)[:_PLACE_BYTES] = np.frombuffer(data, np.uint8, _PLACE_BYTES, at)
            kept.append(other)
        at += size
    return Taken(np.concatenate(kept), np.array(breaks, np.intp), lost)


def _is_whole(data: bytes, at: int, size: int) -> bool:
    if size < _PLACE_BYTES + _READ_BYTES:
        return False
    (count,) = struct.unpack_from("<Q", data, at + _PLACE_BYTES)
    return size == _PLACE_BYTES + _READ_BYTES + int(count) * _VALUE.itemsize


def find_increases(records: Records, before: Records, breaks: NDArray[np.intp], ids: Words) -> Words:
    """What each counter of a group rose by from one sample to the next.

    Args:
        records: of one thread, with values.
        before: the one before them, or none.
        breaks: as split_records gives them.
        ids: of the counters, in the group's order.

    Returns:
        shape (len(ids), len(records)): NOT_KNOWN at the first sample of all, behind a break, where the group was
        another one, and where it did not count all the time that the thread ran.
    """
    rows = np.concatenate((before, records))
    found = np.full((len(ids), len(records)), NOT_KNOWN, np.uint64)
    if len(rows) < 2 or not len(records):
        return found
    values, ran = rows["values"]["value"], rows["running_ns"]
    whole = (rows["values"]["id"] == ids).all(axis=1)
    known = whole[1:] & whole[:-1] & (values[1:] >= values[:-1]).all(axis=1)
    known &= np.diff(rows["enabled_ns"]) == np.diff(ran)
    behind = breaks[breaks < len(records)] - (1 - len(before))
    known[behind[behind >= 0]] = False
    found[:, len(records) - len(known) :][:, known] = np.diff(values, axis=0)[known].T
    return found
