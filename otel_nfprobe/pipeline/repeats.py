# SPDX-License-Identifier: Apache-2.0
"""Repeats: marks packets whose digest was seen before. A thin wrapper of native/core/repeats.h.

Equal packets have equal digests, and a trace ID made from a digest must not join two packets of one NF. Memory is
bounded: packets whose digests exceed it are marked as unsure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows

WINDOW_NS = 10**9
DIGESTS_MAX = 2_000_000  # per window; at most two tables of 32 MiB
FOREVER_NS = 2**64 - 1


@dataclass(frozen=True)
class RepeatsCounts:
    """Packets in total and by mark; the fields are those of struct nfp_repeats_counts."""

    packets: int
    repeated: int
    unsure: int
    fragments: int
    cut: int
    malformed: int
    inner: int

    def as_summary(self) -> dict[str, int]:
        """Returns the object `ids` of a session's summary."""
        return {
            "repeated": self.repeated,
            "unsure": self.unsure,
            "fragments": self.fragments,
            "truncated": self.cut,
            "malformed": self.malformed,
            "inner": self.inner,
        }


class Repeats:
    """Remembers the digests of a time window and of the one before it.

    Args:
        window_ns: windows begin at multiples of it, in Unix ns.
        digests_max: remembered per window.
    """

    def __init__(self, window_ns: int = WINDOW_NS, digests_max: int = DIGESTS_MAX) -> None:
        repeats = lib.nfp_repeats_create(window_ns, digests_max)
        if repeats == ffi.NULL:
            raise MemoryError("no memory for the digests of packets")
        self._repeats = ffi.gc(repeats, lib.nfp_repeats_destroy)

    def mark(self, packets: Rows, clock: Clock) -> None:
        """Sets PacketFlag.REPEATED or UNSURE of packets (dtype PACKET) in place, in the order of their receipt."""
        if not len(packets):
            return
        ticks = packets["receive_ticks"]
        if np.all(ticks[1:] >= ticks[:-1]):
            self._mark(packets, clock)
            return
        order = np.argsort(ticks, kind="stable")
        ordered = packets[order]
        self._mark(ordered, clock)
        packets["flags"][order] = ordered["flags"]

    def _mark(self, packets: Rows, clock: Clock) -> None:
        anchors = ffi.from_buffer("struct nfp_anchor[]", clock.anchors)
        rows = ffi.from_buffer("struct nfp_packet[]", packets)
        lib.nfp_repeats_mark(self._repeats, rows, len(packets), anchors, len(clock.anchors))

    def look(self, digests: NDArray[np.uint64], unix_ns: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Returns PacketFlag.REPEATED, UNSURE or 0 for each digest, seen at these times."""
        marks = np.zeros(len(digests), np.uint8)
        looked_up = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(digests, np.uint64))
        times = ffi.from_buffer("uint64_t[]", np.ascontiguousarray(unix_ns, np.uint64))
        lib.nfp_repeats_look(self._repeats, looked_up, times, len(marks), ffi.from_buffer("uint8_t[]", marks))
        return marks

    def counts(self) -> RepeatsCounts:
        """Returns the counts so far."""
        counts: Any = ffi.new("struct nfp_repeats_counts *")
        lib.nfp_repeats_count(self._repeats, counts)
        return RepeatsCounts(**{name: getattr(counts, name) for name in RepeatsCounts.__dataclass_fields__})
