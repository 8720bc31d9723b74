# SPDX-License-Identifier: Apache-2.0
"""NumPy dtypes of records, calls, batches, packets and the thread table.

They are the structures of native/core/columns.h and native/abi/{record,session}.h, which say what the fields mean.
Pure: arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe._core import lib
from otel_nfprobe.base.holdrows import HOLD, join_holds
from otel_nfprobe.base.layouts import dtype_of

Rows = NDArray[np.void]
"""A structured array of one of the dtypes below."""

NONE = lib.NFP_NONE
"""No parent, no batch, no function."""

RECORD = dtype_of("nfp_record")
CALL = dtype_of("nfp_call")
COST = dtype_of("nfp_cost")
"""Overhead of one probed call: between its two timestamps, and in total."""
BATCH = dtype_of("nfp_batch")
PACKET = dtype_of("nfp_packet")
HANDOVER = dtype_of("nfp_handover")
"""A packet moved on to another batch than the one that received it, at `index` of that batch's burst."""
TOPIC = dtype_of("nfp_topic")
"""The topic of all messages with this digest; `text` is UTF-8, long topics are cut and end in three dots."""
CALL_COUNTERS = dtype_of("nfp_call_counters")
"""Counter deltas of a call, without its probes; calls without a row were not counted. `set`: the counter set."""
COUNTER_COST = dtype_of("nfp_counter_cost")
"""What the probes of one call add to each counter: to the call's own counts, and to those of the calls around it."""
MESSAGE = dtype_of("nfp_message")
"""Layout of the first bytes of `source` for a message, a packet whose `ip_version` is MESSAGE_VERSION."""
MESSAGE_VERSION = lib.NFP_VERSION_MESSAGE
THREAD = dtype_of("nfp_thread_shared")


class CallFlag(IntFlag):
    CLIPPED = lib.NFP_CALL_CLIPPED
    UNWOUND = lib.NFP_CALL_UNWOUND
    VALUE = lib.NFP_CALL_VALUE
    RECEIVE = lib.NFP_CALL_RECEIVE
    TRANSMIT = lib.NFP_CALL_TRANSMIT
    DROP = lib.NFP_CALL_DROP
    MARK = lib.NFP_CALL_MARK
    SHARED = lib.NFP_CALL_SHARED
    CONTINUED = lib.NFP_CALL_CONTINUED


class CountersFlag(IntFlag):
    VALID = lib.NFP_COUNTERS_VALID
    SELF_VALID = lib.NFP_COUNTERS_SELF_VALID


class BatchFlag(IntFlag):
    FULL = lib.NFP_BATCH_FULL
    LOSSY = lib.NFP_BATCH_LOSSY
    UNFINISHED = lib.NFP_BATCH_UNFINISHED
    SATURATED = lib.NFP_BATCH_SATURATED
    UNDETAILED = lib.NFP_BATCH_UNDETAILED
    CHOSEN = lib.NFP_BATCH_CHOSEN
    DRAWN = lib.NFP_BATCH_DRAWN
    TAKEN_OVER = lib.NFP_BATCH_TAKEN_OVER
    PRIOR = lib.NFP_BATCH_PRIOR


class HandoverFlag(IntFlag):
    AGAIN = lib.NFP_HANDOVER_AGAIN


class PacketFlag(IntFlag):
    ARRIVAL_KNOWN = lib.NFP_PACKET_ARRIVAL_KNOWN
    REPEATED = lib.NFP_PACKET_REPEATED
    ARRIVAL_UNIX_NS = lib.NFP_PACKET_ARRIVAL_UNIX_NS
    AMBIGUOUS = lib.NFP_PACKET_AMBIGUOUS
    FRAGMENT = lib.NFP_PACKET_FRAGMENT
    CUT = lib.NFP_PACKET_CUT
    MALFORMED = lib.NFP_PACKET_MALFORMED
    INNER = lib.NFP_PACKET_INNER


UNKNOWN = lib.NFP_UNKNOWN  # dispositions of a packet
TRANSMITTED = lib.NFP_TRANSMITTED
DROPPED = lib.NFP_DROPPED
PUNTED = lib.NFP_PUNTED
ABSORBED = lib.NFP_ABSORBED


def _empty(dtype: np.dtype[Any]) -> Callable[[], Rows]:
    return lambda: np.empty(0, dtype)


@dataclass
class Columns:
    """Finished calls, batches and packets; `batch`, `parent` and `first_*` are indices within one Columns.

    A drain of the pipeline returns the batches of one thread in any order; `id` rises with their start. `handovers` are
    sorted by packet, those of one packet by time; with HandoverFlag.AGAIN their batches are in `reemitted_batches`:
    batches, with their calls, that an earlier drain already emitted.
    """

    calls: Rows = field(default_factory=_empty(CALL))
    batches: Rows = field(default_factory=_empty(BATCH))
    packets: Rows = field(default_factory=_empty(PACKET))
    topics: Rows = field(default_factory=_empty(TOPIC))  # of the messages among the packets, sorted by digest
    counters: Rows = field(default_factory=_empty(CALL_COUNTERS))
    handovers: Rows = field(default_factory=_empty(HANDOVER))
    reemitted_batches: Rows = field(default_factory=_empty(BATCH))
    reemitted_calls: Rows = field(default_factory=_empty(CALL))
    holds: Rows = field(default_factory=_empty(HOLD))  # the most recent, sorted by end; may repeat earlier ones

    def topic(self, digest: int) -> str:
        """Returns the topic of the messages with this digest; "" when unknown."""
        row = int(np.searchsorted(self.topics["digest"], np.uint64(digest)))
        if row == len(self.topics) or int(self.topics["digest"][row]) != digest:
            return ""
        topic = self.topics[row]
        return bytes(topic["text"][: int(topic["size"])]).decode("utf-8", "replace")


def counter_cost_rows(costs: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Rows:
    """Returns rows of dtype COUNTER_COST by function ID: what the probes of a call add to its own counts, and in
    total.
    """
    rows = np.zeros(max(costs, default=-1) + 1, COUNTER_COST)
    for id, pair in costs.items():
        for name, counts in zip(("inside", "whole"), pair, strict=True):
            some = np.clip(counts[: rows[name].shape[1]], -(1 << 31), (1 << 31) - 1)
            rows[name][id][: len(some)] = some
    return rows


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Joins arrays of one structured dtype, at least one.

    np.concatenate alone would compare the names and types of their fields in Python, for longer than copying takes.
    """
    dtype = parts[0].dtype
    assert all(part.dtype == dtype for part in parts)
    plain = np.dtype((np.void, dtype.itemsize))
    joined: Rows = np.concatenate([part.view(plain) for part in parts]).view(dtype)
    return joined


def concatenate(parts: Iterable[Columns]) -> Columns:
    """Joins several Columns into one and rewrites their indices.

    The parts must have fewer than 2**32 - 1 calls in total.
    """
    kept: Sequence[Columns] = list(parts)
    if not kept:
        return Columns()
    calls = join_rows([part.calls for part in kept])
    batches = join_rows([part.batches for part in kept])
    packets = join_rows([part.packets for part in kept])
    counters = join_rows([part.counters for part in kept])
    call = batch = packet = counted = 0
    for part in kept:
        call_end, batch_end = call + len(part.calls), batch + len(part.batches)
        packet_end = packet + len(part.packets)
        counters["call"][counted : counted + len(part.counters)] += np.uint32(call)
        counted += len(part.counters)
        _shift(calls["parent"][call:call_end], call)
        _shift(calls["batch"][call:call_end], batch)
        batches["first_call"][batch:batch_end] += np.uint32(call)
        batches["first_packet"][batch:batch_end] += np.uint32(packet)
        _shift(packets["batch"][packet:packet_end], batch)
        call, batch, packet = call_end, batch_end, packet_end
    topics = order_topics(join_rows([part.topics for part in kept]))
    holds = join_holds([part.holds for part in kept])
    return Columns(calls, batches, packets, topics, counters, *_concatenate_handovers(kept), holds)


def _concatenate_handovers(parts: Sequence[Columns]) -> tuple[Rows, Rows, Rows]:
    """Joins the handovers of several Columns, with the re-emitted batches and calls."""
    handovers = join_rows([part.handovers for part in parts])
    batches = join_rows([part.reemitted_batches for part in parts])
    calls = join_rows([part.reemitted_calls for part in parts])
    if not len(handovers):
        return handovers, batches, calls
    first = packet = batch = again = call = 0
    for part in parts:
        rows = handovers[first : first + len(part.handovers)]
        is_again = (rows["flags"] & HandoverFlag.AGAIN) != 0
        rows["packet"] += np.uint32(packet)
        rows["batch"] += np.where(is_again, again, batch).astype(np.uint32)
        batches["first_call"][again : again + len(part.reemitted_batches)] += np.uint32(call)
        _shift(calls["parent"][call : call + len(part.reemitted_calls)], call)
        _shift(calls["batch"][call : call + len(part.reemitted_calls)], again)
        first, packet, batch = first + len(rows), packet + len(part.packets), batch + len(part.batches)
        again, call = again + len(part.reemitted_batches), call + len(part.reemitted_calls)
    return handovers, batches, calls


def copy_rows(rows: Rows) -> Rows:
    """Copies contiguous rows as bytes: NumPy copies structures field by field, thirty times as slowly."""
    copied: Rows = rows.view(f"V{rows.dtype.itemsize}").copy().view(rows.dtype)
    return copied


def order_topics(topics: Rows) -> Rows:
    """Returns each topic once, sorted by digest."""
    if len(topics) < 2:
        return topics
    _, first = np.unique(topics["digest"], return_index=True)
    return topics[first]


def with_again(columns: Columns) -> Columns:
    """Returns the columns with the re-emitted batches of their handovers appended to their own batches."""
    if not len(columns.reemitted_batches):
        return columns
    batches, calls, handovers = (
        columns.reemitted_batches.copy(),
        columns.reemitted_calls.copy(),
        columns.handovers.copy(),
    )
    handovers["batch"] += np.where(handovers["flags"] & HandoverFlag.AGAIN, len(columns.batches), 0).astype(np.uint32)
    batches["first_call"] += np.uint32(len(columns.calls))
    _shift(calls["parent"], len(columns.calls))
    _shift(calls["batch"], len(columns.batches))
    return replace(
        columns,
        calls=join_rows((columns.calls, calls)),
        batches=join_rows((columns.batches, batches)),
        handovers=handovers,
        reemitted_batches=_empty(BATCH)(),
        reemitted_calls=_empty(CALL)(),
    )


def place_handovers(columns: Columns) -> tuple[Rows, NDArray[np.uint32]]:
    """Returns the handovers whose batch is among the columns' own, and for each its ordinal within its packet,
    from 1.
    """
    rows = columns.handovers.copy()
    first = np.searchsorted(rows["packet"], rows["packet"])
    numbers = (np.arange(len(rows)) - first + 1).astype(np.uint32)
    again = np.flatnonzero(rows["flags"] & HandoverFlag.AGAIN)
    if len(again):
        row_of = {id: row for row, id in enumerate(columns.batches["id"].tolist())}
        ids = columns.reemitted_batches["id"][rows["batch"][again]].tolist()
        rows["batch"][again] = [row_of.get(id, NONE) for id in ids]
    there = rows["batch"] < len(columns.batches)
    return rows[there], numbers[there]


def _shift(indices: NDArray[np.uint32], base: int) -> None:
    indices[indices != NONE] += np.uint32(base)


ARRIVAL_AGE_MAX_NS = 10_000_000_000


def convert_arrivals(packets: Rows, ticks_of_unix_ns: Callable[[NDArray[np.uint64]], NDArray[np.uint64]]) -> None:
    """Converts arrival timestamps from Unix ns to ticks, in place; call before computing latencies.

    Args:
        packets: of dtype PACKET.
        ticks_of_unix_ns: the clock's conversion, array to array of the same shape.
    """
    if not len(packets):
        return
    stamped = (packets["flags"] & PacketFlag.ARRIVAL_UNIX_NS) != 0
    if not stamped.any():
        return
    stamps = packets["arrival_ticks"][stamped]
    # An older timestamp comes from another clock, or from a capture that is being replayed.
    known = ticks_of_unix_ns(stamps + np.uint64(ARRIVAL_AGE_MAX_NS)) >= packets["receive_ticks"][stamped]
    packets["arrival_ticks"][stamped] = np.where(known, ticks_of_unix_ns(stamps), 0)
    flags = packets["flags"][stamped] & np.uint8(0xFF ^ PacketFlag.ARRIVAL_UNIX_NS)
    packets["flags"][stamped] = np.where(known, flags | np.uint8(PacketFlag.ARRIVAL_KNOWN), flags)


def life_start_ticks(columns: Columns) -> NDArray[np.uint64]:
    """Returns where each packet's life begins: at its arrival or, without a timestamp, at the earliest time it can have
    come.

    A timestamp later than the entry of the receive call is not trusted: the clocks differ by more than the wait. In
    recordings without `earliest_ticks` the life of a packet without a timestamp begins at the entry of the receive
    call. native/core/arrival.h implements the same rule.

    Returns:
        ticks, one per packet.
    """
    packets = columns.packets
    start: NDArray[np.uint64] = packets["receive_ticks"].copy()
    placed = packets["batch"] < len(columns.batches)
    start[placed] = columns.batches["start_ticks"][packets["batch"][placed]]
    known = arrival_known(packets, start)
    earliest = np.zeros(len(packets), np.uint64)
    earliest[placed] = columns.batches["earliest_ticks"][packets["batch"][placed]]
    return np.where(known, packets["arrival_ticks"], np.where(earliest != 0, earliest, start))


def age_start_ticks(batches: Rows) -> NDArray[np.uint64]:
    """Returns since when the packets of each batch were in the NF, where not all of them are described.

    That is the timestamp of the packet received first, else the earliest time its packets can have come, else the entry
    of the receive call. native/core/arrival.h implements the same rule.
    """
    earliest, arrival = batches["earliest_ticks"], batches["arrival_ticks"]
    start: NDArray[np.uint64] = np.where(earliest != 0, earliest, batches["start_ticks"])
    return np.where(arrival != 0, arrival, start)


def arrival_known(packets: Rows, batch_start_ticks: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Returns which packets have a known and trusted arrival; `batch_start_ticks`: of each packet's batch."""
    known: NDArray[np.bool_] = (packets["flags"] & PacketFlag.ARRIVAL_KNOWN) != 0
    known &= (packets["arrival_ticks"] != 0) & (packets["arrival_ticks"] <= batch_start_ticks)
    return known


def latency_ticks(columns: Columns) -> NDArray[np.uint64]:
    """Returns how long each packet was in the NF, in ticks; 0 while its disposition is unknown.

    Returns:
        ticks, one per packet.
    """
    start, done = life_start_ticks(columns), columns.packets["done_ticks"]
    known = (columns.packets["disposition"] != UNKNOWN) & (done > start)
    return np.where(known, done - start, np.uint64(0))


def counted_latency_ticks(columns: Columns) -> NDArray[np.uint64]:
    """As `latency_ticks`, but 0 for the packets that no statistics count: they can have waited since before the records
    began, so what made them late is not there. native/core/statistics.c implements the same rule.
    """
    batches, batch = columns.batches, columns.packets["batch"]
    latency = latency_ticks(columns)
    placed = np.flatnonzero(batch < len(batches))
    rows = batches[batch[placed]]
    waited = life_start_ticks(columns)[placed] < rows["start_ticks"]
    latency[placed[((rows["flags"] & BatchFlag.PRIOR) != 0) & waited]] = 0
    return latency
