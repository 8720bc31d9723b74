# SPDX-License-Identifier: Apache-2.0
"""The pipeline: drained records in, columns out. A thin wrapper of native/core/pipeline.h.

It pairs entries with exits, builds batches and follows packets; no I/O, no clock.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import (
    BATCH,
    CALL,
    CALL_COUNTERS,
    COST,
    COUNTER_COST,
    HANDOVER,
    PACKET,
    RECORD,
    TOPIC,
    Columns,
    Rows,
    copy_rows,
    order_topics,
)
from otel_nfprobe.base.holdrows import HOLD

KEPT_CALLS = 1 << 17  # memory for this many is reused


@dataclass(frozen=True)
class PipelineCounts:
    """What happened to the records; the fields are those of struct nfp_pipeline_counts."""

    records: int
    invalid: int
    stray_packets: int
    calls: int
    unpaired_entries: int
    unpaired_exits: int
    open: int
    marked: int
    lost: tuple[int, int, int]
    mistimed: int
    batches: int
    received: int
    transmitted: int
    resent: int
    dropped: int
    punted: int
    absorbed: int
    freed: int
    pending: int
    unknown: int
    generated: int
    ungated: int
    discarded: int
    identified: int
    handed_over: int
    taken_over: int
    unplaced: int


class Pipeline:
    """One session's records on their way to columns.

    Call `take` after each round in which all threads were fed: a packet's receive and its transmission may be in the
    rings of two threads, and what is unmatched after two rounds is given up.

    Args:
        roles: one enum nfp_role per function id, uint8.

    Raises:
        MemoryError: out of memory.
    """

    def __init__(self, roles: NDArray[np.uint8]) -> None:
        roles = np.ascontiguousarray(roles, np.uint8)
        pipeline = lib.nfp_pipeline_create(ffi.from_buffer("uint8_t[]", roles), len(roles))
        if pipeline == ffi.NULL:
            raise MemoryError("no memory for the pipeline")
        self._pipeline = ffi.gc(pipeline, lib.nfp_pipeline_destroy)
        self._columns = ffi.new("struct nfp_columns *")
        self._memory = np.empty(0, CALL)
        self._unshared = sys.getrefcount(self._memory)  # its reference count while it is not shared

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees its memory; no other method may be called afterwards."""
        if self._pipeline is not None:
            ffi.release(self._pipeline)
            self._pipeline = None

    def set_roles(self, roles: NDArray[np.uint8]) -> None:
        """Sets the roles of all functions, including added ones; function IDs keep their meaning.

        Raises:
            MemoryError: out of memory.
        """
        roles = np.ascontiguousarray(roles, np.uint8)
        if lib.nfp_pipeline_roles(self._pipeline, ffi.from_buffer("uint8_t[]", roles), len(roles)):
            raise MemoryError("no memory for the roles of the functions")

    def set_costs(self, costs: Rows) -> None:
        """Sets the overhead of a probed call of each function (dtype COST, by function ID).

        Raises:
            MemoryError: out of memory.
        """
        rows = np.ascontiguousarray(costs, COST)
        if lib.nfp_pipeline_costs(self._pipeline, ffi.cast("struct nfp_cost *", rows.ctypes.data), len(rows)):
            raise MemoryError("no memory for the costs of the functions")

    def set_counter_costs(self, costs: Rows) -> None:
        """Sets what the probes of a call add to counters (dtype COUNTER_COST, by function ID).

        Raises:
            MemoryError: out of memory.
        """
        rows = np.ascontiguousarray(costs, COUNTER_COST)
        pointer = ffi.cast("struct nfp_counter_cost *", rows.ctypes.data)
        if lib.nfp_pipeline_counter_costs(self._pipeline, pointer, len(rows)):
            raise MemoryError("no memory for the costs of the functions")

    def set_counter_set(self, number: int, costs: Rows) -> None:
        """Declares that subsequent readings are of other counters.

        Args:
            number: of the counter set.
            costs: as in `set_counter_costs`.
        """
        lib.nfp_pipeline_count_anew(self._pipeline, number)
        self.set_counter_costs(costs)

    def feed(self, thread: int, records: Rows) -> None:
        """Processes the next records of a thread.

        Args:
            thread: its index in the thread table.
            records: of dtype RECORD, lap bits cleared.

        Raises:
            ValueError: the thread table has no such entry.
        """
        records = np.ascontiguousarray(records, RECORD)
        if len(records):
            self.feed_raw(thread, ffi.from_buffer("struct nfp_record[]", records), len(records))

    def feed_raw(self, thread: int, records: Any, count: int) -> None:
        """As `feed`, from a cffi array of `count` struct nfp_record."""
        if lib.nfp_pipeline_feed(self._pipeline, thread, records, count):
            raise ValueError(f"thread index {thread} is out of range, or there is no memory for it")

    def feed_parts(self, parts: Rows, records: Rows) -> None:
        """Processes the next records of several threads, as a sweep returns them (rings.py).

        Raises:
            ValueError: the thread table has no such entry.
        """
        pointers = ffi.from_buffer("struct nfp_sweep_part[]", parts), ffi.from_buffer("struct nfp_record[]", records)
        if lib.nfp_pipeline_feed_parts(self._pipeline, pointers[0], len(parts), pointers[1], len(records)):
            raise ValueError("a thread index is out of range, or there is no memory for it")

    def end_threads(self, threads: Sequence[int]) -> None:
        """Declares that threads have ended: their open calls stay incomplete, their indexes may be reused."""
        lib.nfp_pipeline_end_threads(self._pipeline, ffi.new("uint32_t[]", threads), len(threads))

    def finish(self) -> None:
        """Declares the end of the session: the next `take` returns everything left."""
        lib.nfp_pipeline_finish(self._pipeline)

    def take(self, is_part: bool = False) -> Columns:
        """Returns copies of what was completed since the last call.

        Args:
            is_part: in the middle of a round: only what does not depend on its end.
        """
        columns = self._columns
        (lib.nfp_pipeline_take_part if is_part else lib.nfp_pipeline_take)(self._pipeline, columns)
        return Columns(
            self._copy_calls(columns.calls, columns.call_count),
            _copy(columns.batches, columns.batch_count, BATCH),
            _copy(columns.packets, columns.packet_count, PACKET),
            order_topics(_copy(columns.topics, columns.topic_count, TOPIC)),
            _copy(columns.counters, columns.counters_count, CALL_COUNTERS),
            _copy(columns.handovers, columns.handover_count, HANDOVER),
            _copy(columns.reemitted_batches, columns.reemitted_batch_count, BATCH),
            _copy(columns.reemitted_calls, columns.reemitted_call_count, CALL),
            _copy(columns.holds, columns.hold_count, HOLD),
        )

    def _copy_calls(self, items: Any, count: int) -> Rows:
        """Returns copies of the calls, in reused memory if nothing refers to it any longer.

        The kernel would clear new memory each time, which takes longer than copying the calls.
        """
        if not 0 < count <= KEPT_CALLS:
            return _copy(items, count, CALL)
        # Any object derived from it, such as a view or a C buffer, holds a reference.
        if sys.getrefcount(self._memory) > self._unshared or len(self._memory) < count:
            self._memory = np.empty(min(2 * count, KEPT_CALLS), CALL)
        ffi.memmove(ffi.from_buffer(self._memory, require_writable=True), items, count * CALL.itemsize)
        return self._memory[:count]

    def counts(self) -> PipelineCounts:
        counts = ffi.new("struct nfp_pipeline_counts *")
        lib.nfp_pipeline_count(self._pipeline, counts)
        values = {name: getattr(counts, name) for name in PipelineCounts.__dataclass_fields__}
        values["lost"] = tuple(counts.lost)
        return PipelineCounts(**values)


def _copy(items: Any, count: int, dtype: np.dtype[Any]) -> Rows:
    if not count:
        return np.empty(0, dtype)
    return copy_rows(np.frombuffer(ffi.buffer(items, count * dtype.itemsize), dtype))
