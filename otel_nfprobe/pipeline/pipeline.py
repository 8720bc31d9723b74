# SPDX-License-Identifier: Apache-2.0
"""The pipeline: drained records in, columns out. A thin cover of native/core/pipeline.h.

It pairs entries with exits, builds batches and follows packets; it does no I/O and reads no clock. Called by
the session with the records of each thread, in the order of its ring, and by tests.
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

KEPT_CALLS = 1 << 17  # memory for so many is used again


@dataclass(frozen=True)
class PipelineCounts:
    """What became of the records; the fields are those of struct nfp_pipeline_counts."""

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

    After each round in which all threads were fed, `take`: a packet's receive and its transmission may be in
    the rings of two threads, and what is unmatched after two rounds is given up.

    Args:
        roles: one enum nfp_role per function id, uint8.

    Raises:
        MemoryError: there is none.
    """

    def __init__(self, roles: NDArray[np.uint8]) -> None:
        roles = np.ascontiguousarray(roles, np.uint8)
        pipeline = lib.nfp_pipeline_create(ffi.from_buffer("uint8_t[]", roles), len(roles))
        if pipeline == ffi.NULL:
            raise MemoryError("no memory for the pipeline")
        self._pipeline = ffi.gc(pipeline, lib.nfp_pipeline_destroy)
        self._columns = ffi.new("struct nfp_columns *")
        self._memory = np.empty(0, CALL)
        self._unshared = sys.getrefcount(self._memory)  # the references to it while nobody else has one

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free its memory; no other method may be called after this one."""
        if self._pipeline is not None:
            ffi.release(self._pipeline)
            self._pipeline = None

    def set_roles(self, roles: NDArray[np.uint8]) -> None:
        """Set the roles of all functions, added ones included; function ids keep their meaning.

        Raises:
            MemoryError: there is none.
        """
        roles = np.ascontiguousarray(roles, np.uint8)
        if lib.nfp_pipeline_roles(self._pipeline, ffi.from_buffer("uint8_t[]", roles), len(roles)):
            raise MemoryError("no memory for the roles of the functions")

    def set_costs(self, costs: Rows) -> None:
        """Set what a probed call of each function costs by itself (dtype COST, by function id).

        Raises:
            MemoryError: there is none.
        """
        rows = np.ascontiguousarray(costs, COST)
        if lib.nfp_pipeline_costs(self._pipeline, ffi.cast("struct nfp_cost *", rows.ctypes.data), len(rows)):
            raise MemoryError("no memory for the costs of the functions")

    def set_counter_costs(self, costs: Rows) -> None:
        """Set what a probed call of each function counts by itself (dtype COUNTER_COST, by function id).

        Raises:
            MemoryError: there is none.
        """
        rows = np.ascontiguousarray(costs, COUNTER_COST)
        pointer = ffi.cast("struct nfp_counter_cost *", rows.ctypes.data)
        if lib.nfp_pipeline_counter_costs(self._pipeline, pointer, len(rows)):
            raise MemoryError("no memory for the costs of the functions")

    def set_counter_set(self, number: int, costs: Rows) -> None:
        """Say that readings are of other counters from here on.

        Args:
            number: how often they were changed.
            costs: as of `set_counter_costs`.
        """
        lib.nfp_pipeline_count_anew(self._pipeline, number)
        self.set_counter_costs(costs)

    def feed(self, thread: int, records: Rows) -> None:
        """Take in the next records of a thread.

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
        """Take in the next records of several threads, as a sweep gives them (rings.py).

        Raises:
            ValueError: the thread table has no such entry.
        """
        pointers = ffi.from_buffer("struct nfp_sweep_part[]", parts), ffi.from_buffer("struct nfp_record[]", records)
        if lib.nfp_pipeline_feed_parts(self._pipeline, pointers[0], len(parts), pointers[1], len(records)):
            raise ValueError("a thread index is out of range, or there is no memory for it")

    def end_threads(self, threads: Sequence[int]) -> None:
        """Say that threads are gone: nothing open in them will be ended, their indexes may be used again."""
        lib.nfp_pipeline_end_threads(self._pipeline, ffi.new("uint32_t[]", threads), len(threads))

    def finish(self) -> None:
        """Say that the session is over: the next take gives everything that is left."""
        lib.nfp_pipeline_finish(self._pipeline)

    def take(self, is_part: bool = False) -> Columns:
        """Give what is complete since the last take, as copies.

        Args:
            is_part: in the middle of a round: only what need not wait for its end.
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
        """The calls of a take, in the memory of an earlier one if nothing refers to that any more.

        New memory for each take would be cleared by the kernel, which takes longer than to copy the calls.
        """
        if not 0 < count <= KEPT_CALLS:
            return _copy(items, count, CALL)
        # Whatever was made of it, a view of a view or a buffer of C, refers to it.
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
