# SPDX-License-Identifier: Apache-2.0
"""The columns as NumPy sees them: the dtypes of records, calls, batches, packets and the thread table.

They are the structures of native/core/columns.h and native/include/nfprobe/{record,session}.h, byte for
byte; tests/unit/base/test_columns.py compares every field. Pure: arrays in, arrays out. Used by everything after
the drain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.holdrows import HOLD, join_holds

Rows = NDArray[np.void]
"""A structured array of one of the dtypes below."""

NONE = 0xFFFFFFFF
"""No parent, no batch, no function."""

RECORD = np.dtype([("word", "<u8"), ("tag", "<u4"), ("rsp", "<u4")])

CALL = np.dtype(
    [
        ("start_ticks", "<u8"),
        ("end_ticks", "<u8"),
        ("self_ticks", "<u8"),
        ("value", "<u8"),
        ("function", "<u4"),
        ("thread", "<u4"),
        ("parent", "<u4"),
        ("batch", "<u4"),
        ("depth", "<u2"),
        ("flags", "<u2"),
        ("cost_ticks", "<u4"),
    ]
)

COST = np.dtype([("inside_ticks", "<u2"), ("whole_ticks", "<u2")])
"""What one probed call costs by itself: between its two time stamps, and in all."""

BATCH = np.dtype(
    [
        ("id", "<u8"),
        ("start_ticks", "<u8"),
        ("end_ticks", "<u8"),
        ("thread", "<u4"),
        ("function", "<u4"),
        ("size", "<u4"),
        ("requested", "<u4"),
        ("transmitted", "<u4"),
        ("dropped", "<u4"),
        ("first_call", "<u4"),
        ("calls", "<u4"),
        ("first_packet", "<u4"),
        ("packets", "<u4"),
        ("flags", "<u4"),
        ("queue", "<u4"),
        ("earliest_ticks", "<u8"),
        ("arrival_ticks", "<u8"),
    ]
)

PACKET = np.dtype(
    [
        ("digest", "<u8"),
        ("buffer", "<u8"),
        ("arrival_ticks", "<u8"),
        ("receive_ticks", "<u8"),
        ("done_ticks", "<u8"),
        ("source", "u1", (16,)),
        ("destination", "u1", (16,)),
        ("source_port", "<u2"),
        ("destination_port", "<u2"),
        ("length", "<u2"),
        ("ip_id", "<u2"),
        ("protocol", "u1"),
        ("ip_version", "u1"),
        ("disposition", "u1"),
        ("flags", "u1"),
        ("batch", "<u4"),
        ("index", "<u4"),
        ("done_function", "<u4"),
        ("done_digest", "<u8"),
        ("receive_interface", "<u4"),
        ("done_number", "<u4"),
    ]
)

HANDOVER = np.dtype([("packet", "<u4"), ("batch", "<u4"), ("index", "<u4"), ("flags", "<u4")])
"""A packet went on in another batch than that which received it: at `index` of that batch's burst."""

TOPIC = np.dtype([("digest", "<u8"), ("size", "<u4"), ("text", "u1", (84,))])
"""The topic of those messages whose digest is equal; `text` is UTF-8, a long topic's ends in three dots."""

CALL_COUNTERS = np.dtype(
    [
        ("call", "<u4"),
        ("flags", "<u4"),
        ("inclusive", "<u8", (6,)),
        ("self", "<u8", (6,)),
        ("inside", "<u4"),
        ("set", "<u4"),
    ]
)
"""What was counted in a call, without its probes; calls without a row were not counted. `set`: of which counters."""

COUNTER_COST = np.dtype([("inside", "<i4", (6,)), ("whole", "<i4", (6,))])
"""What one probed call counts by itself, by counter: of its own counts, and of those around it."""

MESSAGE = np.dtype([("body_bytes", "<u4"), ("topic_bytes", "<u4")])
"""What a message, a packet of `ip_version` MESSAGE_VERSION, holds in the first bytes of `source`."""

MESSAGE_VERSION = 15

LATE_WISH = np.dtype([("late_ticks", "<u8"), ("sample", "<u8")])
"""Which packets of a thread deserve to be identified."""

THREAD = np.dtype(
    [
        ("state", "<u4"),
        ("tid", "<u4"),
        ("start_ticks", "<u8"),
        ("lost", "<u8", (3,)),
        ("name", "S16"),
        ("handed_over_packets", "<u8"),
        ("empty_polls", "<u8"),
        ("empty_ticks", "<u8"),
        ("batches", "<u8"),
        ("received_packets", "<u8"),
        ("transmit_calls", "<u8"),
        ("transmitted_packets", "<u8"),
        ("refused_packets", "<u8"),
        ("dropped_packets", "<u8"),
        ("tail", "<u8"),
        ("late", LATE_WISH),
        ("taken_over_packets", "<u8"),
        ("punted_packets", "<u8"),
        ("reserved1", "<u8", (3,)),
        ("position", "<u8"),
        ("identified_packets", "<u8"),
        ("unplaced_packets", "<u8"),
        ("unheld_packets", "<u8"),
        ("checked_packets", "<u8"),
        ("differing_packets", "<u8"),
        ("copying", "<u8"),
        ("checked_calls", "<u8"),
    ]
)


class CallFlag(IntFlag):
    CLIPPED = 1
    UNWOUND = 2
    VALUE = 4
    RECEIVE = 8
    TRANSMIT = 16
    DROP = 32
    MARK = 64
    SHARED = 128
    CONTINUED = 256


class CountersFlag(IntFlag):
    VALID = 1
    SELF_VALID = 2


class BatchFlag(IntFlag):
    FULL = 1
    LOSSY = 2
    UNFINISHED = 4
    SATURATED = 8
    UNDETAILED = 16
    CHOSEN = 32
    DRAWN = 64
    TAKEN_OVER = 128


class HandoverFlag(IntFlag):
    AGAIN = 1


class PacketFlag(IntFlag):
    ARRIVAL_KNOWN = 1
    REPEATED = 2
    ARRIVAL_UNIX_NS = 4
    UNSURE = 8
    FRAGMENT = 16
    CUT = 32
    MALFORMED = 64
    INNER = 128


UNKNOWN, TRANSMITTED, DROPPED, PUNTED, ABSORBED = range(5)
"""Dispositions of a packet."""


def _empty(dtype: np.dtype[Any]) -> Callable[[], Rows]:
    return lambda: np.empty(0, dtype)


@dataclass
class Columns:
    """Finished calls, batches and packets; `batch`, `parent` and `first_*` are indices within one Columns.

    A take of the pipeline gives the batches of one thread in any order; `id` rises with their start.
    `handovers` are by rising packet, those of one packet by time; with HandoverFlag.AGAIN their batches are in `again`,
    which has batches, with their calls, that an earlier take has given.
    """

    calls: Rows = field(default_factory=_empty(CALL))
    batches: Rows = field(default_factory=_empty(BATCH))
    packets: Rows = field(default_factory=_empty(PACKET))
    topics: Rows = field(default_factory=_empty(TOPIC))  # of the messages among the packets, by rising digest
    counters: Rows = field(default_factory=_empty(CALL_COUNTERS))
    handovers: Rows = field(default_factory=_empty(HANDOVER))
    reemitted_batches: Rows = field(default_factory=_empty(BATCH))
    reemitted_calls: Rows = field(default_factory=_empty(CALL))
    holds: Rows = field(default_factory=_empty(HOLD))  # the last ones, by rising end; earlier takes have them, too

    def topic(self, digest: int) -> str:
        """The topic of the messages with this digest; "" when it is not known."""
        row = int(np.searchsorted(self.topics["digest"], np.uint64(digest)))
        if row == len(self.topics) or int(self.topics["digest"][row]) != digest:
            return ""
        topic = self.topics[row]
        return bytes(topic["text"][: int(topic["size"])]).decode("utf-8", "replace")


def counter_cost_rows(costs: Mapping[int, tuple[Sequence[int], Sequence[int]]]) -> Rows:
    """Dtype COUNTER_COST by function id, of what a call counts by itself: of its own counts and in all."""
    rows = np.zeros(max(costs, default=-1) + 1, COUNTER_COST)
    for id, pair in costs.items():
        for name, counts in zip(("inside", "whole"), pair, strict=True):
            some = np.clip(counts[: rows[name].shape[1]], -(1 << 31), (1 << 31) - 1)
            rows[name][id][: len(some)] = some
    return rows


def concatenate(parts: Iterable[Columns]) -> Columns:
    """Several takes as one, indices rewritten.

    The parts must have fewer than 2**32 - 1 calls in all.
    """
    kept: Sequence[Columns] = list(parts)
    if not kept:
        return Columns()
    calls = np.concatenate([part.calls for part in kept])
    batches = np.concatenate([part.batches for part in kept])
    packets = np.concatenate([part.packets for part in kept])
    counters = np.concatenate([part.counters for part in kept])
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
    topics = order_topics(np.concatenate([part.topics for part in kept]))
    holds = join_holds([part.holds for part in kept])
    return Columns(calls, batches, packets, topics, counters, *_concatenate_handovers(kept), holds)


def _concatenate_handovers(parts: Sequence[Columns]) -> tuple[Rows, Rows, Rows]:
    """Handovers of several takes, with the batches and calls that are given again."""
    handovers = np.concatenate([part.handovers for part in parts])
    batches = np.concatenate([part.reemitted_batches for part in parts])
    calls = np.concatenate([part.reemitted_calls for part in parts])
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
    """A copy of rows that lie together, as bytes: NumPy copies structures field by field, thirty times as slowly."""
    copied: Rows = rows.view(f"V{rows.dtype.itemsize}").copy().view(rows.dtype)
    return copied


def order_topics(topics: Rows) -> Rows:
    """Each topic once, by rising digest."""
    if len(topics) < 2:
        return topics
    _, first = np.unique(topics["digest"], return_index=True)
    return topics[first]


def with_again(columns: Columns) -> Columns:
    """The same with all batches of its handovers among its batches, behind those that are its own."""
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
        calls=np.concatenate((columns.calls, calls)),
        batches=np.concatenate((columns.batches, batches)),
        handovers=handovers,
        reemitted_batches=_empty(BATCH)(),
        reemitted_calls=_empty(CALL)(),
    )


def place_handovers(columns: Columns) -> tuple[Rows, NDArray[np.uint32]]:
    """The handovers to batches that are among the columns' own, and the number of each one of its packet, from 1."""
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
    """Turn arrival stamps in Unix ns into ticks, in place; to be done before latencies are looked at.

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
    # What came longer ago was stamped by another clock, or when a capture was made that is played now.
    known = ticks_of_unix_ns(stamps + np.uint64(ARRIVAL_AGE_MAX_NS)) >= packets["receive_ticks"][stamped]
    packets["arrival_ticks"][stamped] = np.where(known, ticks_of_unix_ns(stamps), 0)
    flags = packets["flags"][stamped] & np.uint8(0xFF ^ PacketFlag.ARRIVAL_UNIX_NS)
    packets["flags"][stamped] = np.where(known, flags | np.uint8(PacketFlag.ARRIVAL_KNOWN), flags)


def life_start_ticks(columns: Columns) -> NDArray[np.uint64]:
    """Where each packet's life begins: its arrival, or since when it can have waited when nobody stamped it.

    A stamp later than the receive call's entry is not believed: the clocks differ by more than the wait. In
    recordings without `earliest_ticks` the receive call's entry is where an unstamped packet's life begins.
    native/core/arrival.h has the same rule.

    Returns:
        one number of ticks per packet.
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
    """Since when the packets of each batch were in the function, where not all of them are described.

    The stamp of the packet that was received first, or else since when its packets can have waited, or else the receive
    call's entry. native/core/arrival.h has the same rule.
    """
    earliest, arrival = batches["earliest_ticks"], batches["arrival_ticks"]
    start: NDArray[np.uint64] = np.where(earliest != 0, earliest, batches["start_ticks"])
    return np.where(arrival != 0, arrival, start)


def arrival_known(packets: Rows, batch_start_ticks: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which packets' own arrival is known and believed; `batch_start_ticks`: of each one's batch."""
    known: NDArray[np.bool_] = (packets["flags"] & PacketFlag.ARRIVAL_KNOWN) != 0
    known &= (packets["arrival_ticks"] != 0) & (packets["arrival_ticks"] <= batch_start_ticks)
    return known


def latency_ticks(columns: Columns) -> NDArray[np.uint64]:
    """How long each packet was in the NF, in ticks; 0 while it is not known what became of it.

    Returns:
        one number of ticks per packet.
    """
    start, done = life_start_ticks(columns), columns.packets["done_ticks"]
    known = (columns.packets["disposition"] != UNKNOWN) & (done > start)
    return np.where(known, done - start, np.uint64(0))
