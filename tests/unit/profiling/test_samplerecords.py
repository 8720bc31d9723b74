# SPDX-License-Identifier: Apache-2.0
"""The kernel's records of samples with values: read as a plain model reads them, whatever is missing or damaged."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from otel_nfprobe.profiling.profiler import find_increases, record_dtype, split_records
from otel_nfprobe.profiling.samples import NOT_KNOWN

IDS = (71, 70, 99)
LOST, THROTTLE = struct.pack("<IHHQQ", 2, 0, 24, 1, 30), struct.pack("<IHHQQQ", 5, 0, 32, 1, 2, 3)


class Sample(NamedTuple):
    """One record as the kernel writes it."""

    address: int
    values: tuple[int, ...]
    enabled_ns: int = 0
    running_ns: int = 0
    ids: tuple[int, ...] = IDS

    def pack(self) -> bytes:
        body = struct.pack("<QIIQIIQ", self.address, 1, 2, 3, 4, 0, 5)
        body += struct.pack("<QQQ", len(self.values), self.enabled_ns, self.running_ns)
        body += b"".join(struct.pack("<QQ", *pair) for pair in zip(self.values, self.ids, strict=True))
        return struct.pack("<IHH", 9, 2, 8 + len(body)) + body


def read(parts: Sequence[bytes]) -> tuple[list[int], list[list[int]], int]:
    """Addresses and increases of what comes in these parts, and how many were lost."""
    before, broken, lost = np.empty(0, record_dtype(len(IDS))), False, 0
    addresses, found = [], []
    for part in parts:
        taken = split_records(part, len(IDS))
        breaks = np.append(taken.breaks, 0) if broken else taken.breaks
        broken = bool(np.any(breaks == len(taken.records)))
        lost += taken.lost
        addresses += taken.records["address"].tolist()
        found += find_increases(taken.records, before, breaks, np.array(IDS, np.uint64)).T.tolist()
        before = taken.records[-1:] if len(taken.records) else before
    return addresses, found, lost


def model(records: Sequence[Sample | bytes]) -> list[list[int]]:
    """The same, one record after the other."""
    found, before, broken = [], None, False
    for record in records:
        if isinstance(record, bytes):
            broken = True
            continue
        known = before is not None and not broken and before.ids == record.ids == IDS
        if known:
            known = record.enabled_ns - before.enabled_ns == record.running_ns - before.running_ns
            known = known and all(new >= old for new, old in zip(record.values, before.values, strict=True))
        rise = [new - old for new, old in zip(record.values, before.values, strict=True)] if known else []
        found.append(rise or [NOT_KNOWN] * len(IDS))
        before, broken = record, False
    return found


def test_what_counters_rose_by() -> None:
    data = Sample(7, (1, 20, 5)).pack() + Sample(8, (4, 20, 1 << 40), 9, 9).pack()
    addresses, found, lost = read([data])
    assert addresses == [7, 8]
    assert found == [[NOT_KNOWN] * 3, [3, 0, (1 << 40) - 5]]
    assert lost == 0
    assert read([data, b"", data])[1][2] == [NOT_KNOWN] * 3  # they never fall


@pytest.mark.parametrize(
    "second",
    [
        Sample(8, (2, 2, 2), ids=(71, 70, 98)),  # another group of as many
        Sample(8, (2, 2), ids=IDS[:2]),  # a smaller one: its leader has gone
        Sample(8, (2, 2, 2, 2), ids=(*IDS, 5)),
        Sample(8, (2, 2, 2), 100, 60),  # others had the counters for some time
        Sample(8, (2, 0, 2)),
    ],
)
def test_what_cannot_be_known(second: Sample) -> None:
    records = [Sample(7, (1, 1, 1)), second, Sample(9, (3, 3, 3), *second[2:4]), Sample(9, (4, 4, 5), *second[2:4])]
    addresses, found, _ = read([b"".join(record.pack() for record in records)])
    assert addresses == [7, 8, 9, 9]
    assert found == model(records)
    assert found[1] == [NOT_KNOWN] * 3
    assert found[3] == [1, 1, 2]


def test_behind_lost_records_nothing_is_known() -> None:
    first, *rest = (Sample(number, (number, number, number)).pack() for number in range(5))
    for gap in (LOST, THROTTLE):
        for parts in ([first, gap, *rest], [first + gap, *rest], [first, gap + rest[0], *rest[1:]]):
            _, found, lost = read(parts)
            assert found[:3] == [[NOT_KNOWN] * 3, [NOT_KNOWN] * 3, [1, 1, 1]]
            assert lost == (30 if gap is LOST else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(60))
def test_as_a_plain_model_reads_it(seed: int) -> None:
    """Groups that come and go, gaps, multiplexing; read in parts that end anywhere between two records."""
    chance = random.Random(seed)
    records: list[Sample | bytes] = []
    values, enabled, running, ids = [0] * 3, 0, 0, IDS
    for number in range(300):
        if chance.random() < 0.05:
            ids = chance.choice((IDS, IDS, IDS[:2], (1, 2, 3), (*IDS, 8), ()))
            values, enabled, running = [chance.randrange(100) for _ in ids], 0, 0
        if chance.random() < 0.05:
            records.append(chance.choice((LOST, THROTTLE)))
        values = [value + chance.choice((0, 0, 1, 1000, 1 << 33)) for value in values]
        passed = chance.randrange(1, 2_000_000)
        enabled, running = enabled + passed, running + passed - (chance.random() < 0.05)
        records.append(Sample(number, tuple(values), enabled, running, ids))
    parts, at = [], 0
    while at < len(records):
        size = chance.choice((0, 1, 2, 7, 50))
        parts.append(b"".join(r if isinstance(r, bytes) else r.pack() for r in records[at : at + size]))
        at += size
    addresses, found, _ = read(parts)
    assert addresses == list(range(300))
    assert found == model(records)


def test_hostile_sizes() -> None:
    good = Sample(7, (1, 1, 1)).pack()
    sizes = (0, 1, 7, 8, 16, 47, 48, 64, 71, 72, 73, 88, len(good) - 8, len(good) + 8, 65535)
    for size in sizes:
        data = good[:6] + struct.pack("<H", size) + good[8:]
        for count in (0, 1, 3, 4, 1 << 28, 1 << 60, (1 << 64) - 1):
            changed = data[:48] + struct.pack("<Q", count) + data[56:]
            taken = split_records(changed + good, 3)
            assert len(taken.records) <= 2
            assert split_records(changed, 3).lost == 0
    for damaged in (b"", b"\0" * 31, good[:20], b"\xff" * 64):
        for values in (0, 1, 3):
            assert len(split_records(damaged, values).records) == 0


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_survived(seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(b"".join(Sample(n, (n, n, n)).pack() + chance.choice((b"", LOST)) for n in range(20)))
    for _ in range(chance.choice((1, 5, 50))):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 9, 72, 120, 255))
    taken = split_records(bytes(data), 3)
    assert len(taken.records) <= len(data) // 48
    assert (taken.breaks <= len(taken.records)).all()
    found = find_increases(taken.records, taken.records[:0], taken.breaks, np.array(IDS, np.uint64))
    assert found.shape == (3, len(taken.records))


def test_samples_without_values() -> None:
    """As they are where a session counts nothing."""
    bare = struct.pack("<IHHQIIQIIQ", 9, 2, 48, 7, 1, 2, 3, 4, 0, 5)
    taken = split_records(bare + LOST + THROTTLE + bare)
    assert (taken.records["address"].tolist(), taken.lost, taken.breaks.tolist()) == ([7, 7], 30, [1, 1])
    assert len(split_records(bare * 3).records) == 3
    assert len(split_records(bare + Sample(1, (1, 1, 1)).pack()).records) == 1
