# SPDX-License-Identifier: Apache-2.0
"""What threads counted from one sample to the next, beside the samples themselves. Pure.

Of each sample and counter one number: what the counter rose by since the thread's sample before, or NOT_KNOWN. A set
of samples that were counted together has one row for each counter. Written by profiler.py, kept in recordings (blocks
SAMPLE_COUNTS), used by flame.py and report.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.profiling.samples import SAMPLES_MAX

NOT_KNOWN = (1 << 64) - 1
NAMES_MAX = 64  # of one set; a probe reads six counters, and the kernel has some ten of its own
NAME_CHARACTERS_MAX = 256
VALUES_MAX = 1 << 24  # of a whole recording; later counters are left out

Words = NDArray[np.uint64]


class SampleCounts(NamedTuple):
    """Of the samples of one set.

    Attributes:
        names: of the counters.
        counts: shape (counters, samples).
    """

    names: tuple[str, ...]
    counts: Words


class CountedSamples(NamedTuple):
    """Samples (dtype SAMPLE), and what was counted before each of them."""

    rows: Rows
    counted: SampleCounts


def encode_counts(counted: SampleCounts) -> bytes:
    """The payload of a SAMPLE_COUNTS block."""
    counts = np.ascontiguousarray(counted.counts, "<u8").tobytes()
    return bytes(recording_pb2.SampleCounts(name=counted.names, counts=counts).SerializeToString())


def decode_counts(payload: bytes) -> SampleCounts:
    """What encode_counts made.

    Raises:
        ValueError, DecodeError: it did not.
    """
    message: Any = recording_pb2.SampleCounts.FromString(payload)
    names = tuple(message.name)
    usable = all(0 < len(name) <= NAME_CHARACTERS_MAX and name.isprintable() for name in names)
    if not 0 < len(names) <= NAMES_MAX or len(set(names)) < len(names) or not usable:
        raise ValueError
    return SampleCounts(names, np.frombuffer(message.counts, "<u8").reshape(len(names), -1))


class CountColumns:
    """Puts together the counts of all samples of a recording, block by block."""

    def __init__(self) -> None:
        self._samples = self._open = 0
        self._parts: list[tuple[int, SampleCounts]] = []

    def add_samples(self, count: int) -> None:
        """A block of so many samples comes."""
        self._samples += count
        self._open = count

    def add(self, counted: SampleCounts) -> None:
        """Counts of the samples that came last; counts of others are left out."""
        start = self._samples - self._open
        if self._open and counted.counts.shape[1] == self._open and start < SAMPLES_MAX:
            self._parts.append((start, counted))
            self._open = 0

    def finish(self) -> dict[str, Words]:
        """Of each counter one number for each of the first SAMPLES_MAX samples."""
        samples = min(self._samples, SAMPLES_MAX)
        columns: dict[str, Words] = {}
        for start, (names, counts) in self._parts:
            for name, row in zip(names, counts, strict=True):
                if name not in columns:
                    if (len(columns) + 1) * samples > VALUES_MAX:
                        continue
                    columns[name] = np.full(samples, NOT_KNOWN, np.uint64)
                columns[name][start : start + len(row)] = row[: samples - start]
        return columns


def is_known(counts: Words) -> NDArray[np.bool_]:
    """Which of them are known."""
    known: NDArray[np.bool_] = counts != np.uint64(NOT_KNOWN)
    return known


def find_name(names: Iterable[str], asked: str) -> str | None:
    """The counter that a person means; case does not matter, unless it has to."""
    known = list(names)
    if asked in known:
        return asked
    return next((name for name in known if name.casefold() == asked.casefold()), None)


def describe_counts(columns: dict[str, Words]) -> dict[str, dict[str, int]]:
    """Of each counter how many samples say what it counted, and the sum."""
    found = {}
    for name, column in columns.items():
        known = column[is_known(column)]
        found[name] = {"samples": len(known), "total": sum(known.tolist())}
    return found
