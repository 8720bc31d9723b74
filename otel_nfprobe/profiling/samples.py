# SPDX-License-Identifier: Apache-2.0
"""Samples: where threads of the target were, many times a second, as rows; and names of addresses. Pure.

A row is one moment: its time, the thread, and the address of the current instruction. Places are address ranges with
their function. Kept in recordings (blocks SAMPLES and PLACES).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntFlag
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base import recording_pb2
from otel_nfprobe.base.columns import Rows

SAMPLE = np.dtype(
    [
        ("ticks", "<u8"),
        ("address", "<u8"),
        ("thread", "<u4"),
        ("cpu", "<u4"),
        ("period", "<u4"),
        ("flags", "<u4"),
    ]
)
"""thread: its index in the thread table; period: ns, or cycles with HARDWARE, since the thread's previous sample;
flags: SampleFlag."""

SAMPLES_MAX = 1 << 20  # per recording
KERNEL = "[kernel]"
KERNEL_SUFFIX = "_[k]"  # as in flame graphs of perf
UNKNOWN = "[unknown]"


class SampleFlag(IntFlag):
    PRECISE = 1  # the address is exact; otherwise approximate
    HARDWARE = 2  # from a hardware counter; otherwise from the kernel's clock
    IN_KERNEL = 4


@dataclass(frozen=True, slots=True)
class AddressRange:
    """A range of addresses of the target.

    Attributes:
        start, size: the range, in bytes.
        module: path, or a word in brackets.
        offset: of `start`, the file's own address.
        name: of the function; "" if only the module is known.
    """

    start: int
    size: int
    module: str
    offset: int
    name: str


def no_samples() -> Rows:
    """Returns an empty array of rows."""
    return np.empty(0, SAMPLE)


def encode_places(places: Iterable[AddressRange]) -> bytes:
    """Returns the payload of a PLACES block."""
    message = recording_pb2.Places(place=[recording_pb2.Place(**asdict(place)) for place in places])
    return bytes(message.SerializeToString())


def decode_places(payload: bytes) -> list[AddressRange]:
    """Returns the places of a PLACES block. Raises DecodeError if it is malformed."""
    items: Any = recording_pb2.Places.FromString(payload).place
    return [AddressRange(item.start, item.size, item.module, item.offset, item.name) for item in items]


class AddressNames:
    """Names of addresses.

    Args:
        places: named ones take precedence; if two contain an address, the one that starts later does.
    """

    def __init__(self, places: Sequence[AddressRange]) -> None:
        self._named = _Ranges([place for place in places if place.name])
        self._modules = _Ranges([place for place in places if not place.name])

    def name(self, address: int, in_kernel: bool) -> str:
        """Returns the function (with `_[k]` in the kernel), or module and file address, or a word in brackets."""
        place = self._named.find(address)
        if place is not None:
            return place.name + KERNEL_SUFFIX if in_kernel else place.name
        place = self._modules.find(address)
        if place is not None and place.module.startswith("["):
            return place.module
        if place is not None:
            return f"{os.path.basename(place.module)}+{address - place.start + place.offset:#x}"
        return KERNEL if in_kernel else UNKNOWN


class _Ranges:
    def __init__(self, places: list[AddressRange]) -> None:
        self._places = sorted({place.start: place for place in places}.values(), key=lambda place: place.start)
        self._starts = np.array([place.start for place in self._places], np.uint64)

    def find(self, address: int) -> AddressRange | None:
        index = int(np.searchsorted(self._starts, np.uint64(address), side="right")) - 1
        if index < 0 or address >= self._places[index].start + self._places[index].size:
            return None
        return self._places[index]


def addresses_of(samples: Rows) -> Iterable[tuple[int, bool]]:
    """Returns the address of each sample, and whether it is in the kernel."""
    in_kernel = (samples["flags"] & SampleFlag.IN_KERNEL) != 0
    return zip(samples["address"].tolist(), in_kernel.tolist(), strict=True)


def describe_samples(samples: Rows) -> dict[str, Any] | None:
    """Returns how many samples there are, by kind; None if there are none."""
    if not len(samples):
        return None
    counts = {flag.name.lower(): int(np.count_nonzero(samples["flags"] & flag)) for flag in SampleFlag if flag.name}
    event = "cycles" if counts.pop("hardware") else "cpu-clock"
    return {"event": event, "samples": len(samples), **counts}


def find_calls(calls: Rows, ticks: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Returns the innermost call of one thread that was running at each given time.

    Args:
        calls: of dtype CALL, ordered by start; `parent` is relative to the first of them, and means none if out of
            range.
        ticks: shape (n,).

    Returns:
        shape (n,): index of the call, or -1.
    """
    if not len(calls):
        return np.full(len(ticks), -1, np.int64)
    found = np.searchsorted(calls["start_ticks"], ticks, side="right").astype(np.int64) - 1
    parents = np.where(calls["parent"] < len(calls), calls["parent"].astype(np.int64), -1)
    while True:
        # The call that started last has ended: its caller, which has a lower index, may still run.
        over = (found >= 0) & (ticks >= calls["end_ticks"][found])
        if not over.any():
            return found
        found[over] = np.minimum(parents[found[over]], found[over] - 1)


# ---- counts in samples ----------------------------------------------------------------------------------------------
# Counter increases between samples, stored next to the samples. Pure.
#
# Per sample and counter: by how much the counter increased since the thread's previous sample, or NOT_KNOWN. A set of
# samples that were counted together has one row per counter. Kept in recordings (blocks SAMPLE_COUNTS).


NOT_KNOWN = (1 << 64) - 1
NAMES_MAX = 64  # per set; a probe reads six counters, and the kernel has about ten software ones
NAME_CHARACTERS_MAX = 256
VALUES_MAX = 1 << 24  # per recording; later counters are left out

Words = NDArray[np.uint64]


class SampleCounts(NamedTuple):
    """Counter increases of the samples of one set.

    Attributes:
        names: of the counters.
        counts: shape (counters, samples).
    """

    names: tuple[str, ...]
    counts: Words


class CountedSamples(NamedTuple):
    """Samples (dtype SAMPLE), and the counter increases before each."""

    rows: Rows
    counted: SampleCounts


def encode_counts(counted: SampleCounts) -> bytes:
    """Returns the payload of a SAMPLE_COUNTS block."""
    counts = np.ascontiguousarray(counted.counts, "<u8").tobytes()
    return bytes(recording_pb2.SampleCounts(name=counted.names, counts=counts).SerializeToString())


def decode_counts(payload: bytes) -> SampleCounts:
    """Decodes the result of encode_counts.

    Raises:
        ValueError, DecodeError: malformed.
    """
    message: Any = recording_pb2.SampleCounts.FromString(payload)
    names = tuple(message.name)
    usable = all(0 < len(name) <= NAME_CHARACTERS_MAX and name.isprintable() for name in names)
    if not 0 < len(names) <= NAMES_MAX or len(set(names)) < len(names) or not usable:
        raise ValueError
    return SampleCounts(names, np.frombuffer(message.counts, "<u8").reshape(len(names), -1))


class CountColumns:
    """Assembles the counts of all samples of a recording, block by block."""

    def __init__(self) -> None:
        self._samples = self._open = 0
        self._parts: list[tuple[int, SampleCounts]] = []

    def add_samples(self, count: int) -> None:
        """Announces a block of samples."""
        self._samples += count
        self._open = count

    def add(self, counted: SampleCounts) -> None:
        """Adds counts of the most recent samples; counts of others are left out."""
        start = self._samples - self._open
        if self._open and counted.counts.shape[1] == self._open and start < SAMPLES_MAX:
            self._parts.append((start, counted))
            self._open = 0

    def finish(self) -> dict[str, Words]:
        """Returns for each counter one number for each of the first SAMPLES_MAX samples."""
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
    """Returns which of them are known."""
    known: NDArray[np.bool_] = counts != np.uint64(NOT_KNOWN)
    return known


def find_name(names: Iterable[str], asked: str) -> str | None:
    """Returns the counter that the user means; case matters only if it must."""
    known = list(names)
    if asked in known:
        return asked
    return next((name for name in known if name.casefold() == asked.casefold()), None)


def describe_counts(columns: dict[str, Words]) -> dict[str, dict[str, int]]:
    """Returns for each counter how many samples have a count, and the sum."""
    found = {}
    for name, column in columns.items():
        known = column[is_known(column)]
        found[name] = {"samples": len(known), "total": sum(known.tolist())}
    return found
