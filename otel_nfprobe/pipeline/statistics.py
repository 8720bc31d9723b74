# SPDX-License-Identifier: Apache-2.0
"""Statistics of all calls, batches and packets, in bounded memory. A thin wrapper of native/core/statistics.h.

Fed with all drained columns. Quantiles are exact to 1/64 of the value.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import COST, Columns, Rows

FUNCTION = np.dtype(
    [
        ("function", "<u4"),
        ("count", "<u8"),
        ("clipped", "<u8"),
        ("total_ticks", "<u8"),
        ("self_ticks", "<u8"),
        ("min_ticks", "<u8"),
        ("p50_ticks", "<u8"),
        ("p90_ticks", "<u8"),
        ("p99_ticks", "<u8"),
        ("max_ticks", "<u8"),
        ("self_p50_ticks", "<u8"),
        ("raw_total_ticks", "<u8"),
        ("raw_self_ticks", "<u8"),
        ("raw_min_ticks", "<u8"),
        ("raw_max_ticks", "<u8"),
    ]
)

SUMMARY_FIELDS = ("count", "clipped", "total", "min", "max")


class Distribution(IntEnum):
    CALL_TICKS = lib.NFP_CALL_TICKS
    SELF_TICKS = lib.NFP_SELF_TICKS
    BATCH_SIZE = lib.NFP_BATCH_SIZE
    BATCH_TICKS = lib.NFP_BATCH_TICKS
    PACKET_TICKS = lib.NFP_PACKET_TICKS
    PACKET_OWN_TICKS = lib.NFP_PACKET_OWN_TICKS
    RAW_TICKS = lib.NFP_RAW_TICKS


SIZES_EXACT = lib.NFP_SIZES_EXACT
"""Batches of fewer packets are counted by their exact size."""
ORIGINS = ("stamp", "capture", "poll", "receive")
"""Start of a packet's latency, as enum nfp_origin: its timestamp, its generator's capture, the last poll that left its
queue empty, or the receive call, if nothing earlier is known."""


class Statistics:
    """Counts, sums, extremes and quantiles of all added values; those of two sessions can be merged.

    Raises:
        MemoryError: out of memory.
    """

    def __init__(self) -> None:
        statistics = lib.nfp_statistics_create()
        if statistics == ffi.NULL:
            raise MemoryError("no memory for statistics")
        self._statistics = ffi.gc(statistics, lib.nfp_statistics_destroy)

    def add(self, columns: Columns) -> None:
        """Adds drained columns. Raises MemoryError if there is none for a new function's histogram."""
        calls, batches, packets = (
            np.ascontiguousarray(rows) for rows in (columns.calls, columns.batches, columns.packets)
        )
        given = ffi.new("struct nfp_columns *")
        if len(calls):
            given.calls = ffi.from_buffer("struct nfp_call[]", calls)
        if len(batches):
            given.batches = ffi.from_buffer("struct nfp_batch[]", batches)
        if len(packets):
            given.packets = ffi.from_buffer("struct nfp_packet[]", packets)
        given.call_count, given.batch_count, given.packet_count = len(calls), len(batches), len(packets)
        if lib.nfp_statistics_add(self._statistics, given):
            raise MemoryError("no memory for statistics")

    def set_costs(self, costs: Rows) -> None:
        """Sets the overhead of a probed call of each function (dtype COST, by function ID), for later adds."""
        rows = np.ascontiguousarray(costs, COST)
        pointer = ffi.cast("struct nfp_cost *", rows.ctypes.data)
        if lib.nfp_statistics_costs(self._statistics, pointer, len(rows)):
            raise MemoryError("no memory for statistics")

    def merge(self, other: Statistics) -> None:
        """Adds everything in `other`; function IDs must mean the same functions."""
        if lib.nfp_statistics_merge(self._statistics, other._statistics):
            raise MemoryError("no memory for statistics")

    def summary(self, distribution: Distribution, function: int = 0) -> dict[str, int]:
        """Returns `count`, `clipped`, `total`, `min` and `max`, in ticks or packets."""
        summary = ffi.new("struct nfp_summary *")
        lib.nfp_statistics_summary(self._statistics, distribution, function, summary)
        return {name: int(getattr(summary, name)) for name in SUMMARY_FIELDS}

    def quantile(self, distribution: Distribution, quantile: float, function: int = 0) -> int:
        """Returns the smallest value that a share `quantile` (0 to 1) of all do not exceed; 0 if empty."""
        return int(lib.nfp_statistics_quantile(self._statistics, distribution, function, quantile))

    def origins(self) -> dict[str, int]:
        """Returns the number of PACKET_TICKS per origin, by the names of ORIGINS."""
        counts = ffi.new("uint64_t[]", len(ORIGINS))
        lib.nfp_statistics_origins(self._statistics, counts)
        return dict(zip(ORIGINS, map(int, counts), strict=True))

    def describe_prior(self, ns_per_tick: float) -> dict[str, int]:
        """Returns how many `packets` can have waited since before the records began (BatchFlag.PRIOR), and the longest
        of their latencies, `longest_ns`. No other number counts those latencies.
        """
        prior = lib.nfp_statistics_prior(self._statistics)
        return {"packets": int(prior.packets), "longest_ns": round(prior.longest_ticks * ns_per_tick)}

    def histogram(self, distribution: Distribution, function: int = 0) -> NDArray[np.uint64]:
        """Returns the non-empty buckets, ascending; for BATCH_SIZE each size below SIZES_EXACT has its own.

        Returns:
            array of shape (n, 2): the largest value of the bucket, and its count.
        """
        room = 64 * 32 + SIZES_EXACT
        buckets = ffi.new("struct nfp_bucket[]", room)
        found = lib.nfp_statistics_histogram(self._statistics, distribution, function, buckets, room)
        flat = np.frombuffer(ffi.buffer(buckets, found * ffi.sizeof("struct nfp_bucket")), np.uint64)
        pairs: NDArray[np.uint64] = flat.reshape(-1, 2).copy()
        return pairs

    def functions(self) -> Rows:
        """Returns one row of dtype FUNCTION per called function, by function ID."""
        rows = []
        for function in range(lib.nfp_statistics_functions(self._statistics)):
            row = self._function(function)
            if row[1]:
                rows.append(row)
        return np.array(rows, FUNCTION)

    def call_counts(self) -> NDArray[np.uint64]:
        """Returns the number of calls of each function, by function ID."""
        counts = np.zeros(lib.nfp_statistics_functions(self._statistics), np.uint64)
        pointer = ffi.cast("uint64_t *", counts.ctypes.data)
        lib.nfp_statistics_call_counts(self._statistics, pointer, len(counts))
        return counts

    def _function(self, function: int) -> tuple[Any, ...]:
        calls = self.summary(Distribution.CALL_TICKS, function)
        own = self.summary(Distribution.SELF_TICKS, function)
        raw = self.summary(Distribution.RAW_TICKS, function)
        cost = int(lib.nfp_statistics_self_cost(self._statistics, function))
        p50, p90, p99 = (self.quantile(Distribution.CALL_TICKS, q, function) for q in (0.5, 0.9, 0.99))
        return (
            function,
            calls["count"],
            calls["clipped"],
            calls["total"],
            max(0, own["total"] - cost),
            calls["min"],
            p50,
            p90,
            p99,
            calls["max"],
            self.quantile(Distribution.SELF_TICKS, 0.5, function),
            raw["total"],
            own["total"],
            raw["min"],
            raw["max"],
        )
