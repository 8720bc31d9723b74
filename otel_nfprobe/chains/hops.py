# SPDX-License-Identifier: Apache-2.0
"""Hops: each packet of a recording as one compact row, in ns of one clock. Pure: columns in, rows out.

A hop is one packet's stay in one network function. Its row has what joining needs (ids), what its way is made of
(when it arrived, was received, sent and done) and what its queue did (batch, polls).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import (
    NONE,
    UNKNOWN,
    BatchFlag,
    CallFlag,
    Columns,
    Rows,
    arrival_known,
    life_start_ticks,
)

HOPS_MAX = 2_000_000  # per recording, 256 MB; later packets are left out and counted

HOP = np.dtype(
    [
        ("id", "<u8"),
        ("content", "<u8"),
        ("done_content", "<u8"),
        ("flow", "<u8"),
        ("batch_id", "<u8"),
        ("start_ns", "<i8"),
        ("begin_ns", "<i8"),
        ("receive_ns", "<i8"),
        ("send_ns", "<i8"),
        ("done_ns", "<i8"),
        ("emptied_ns", "<i8"),
        ("thread", "<u4"),
        ("index", "<u4"),
        ("size", "<u4"),
        ("disposition", "u1"),
        ("flags", "u1"),
    ]
)
"""id, content: packet id and content id as received; done_content: as sent. flow: a number of the flow's addresses and
ports as received. start_ns: arrival, or the earliest time at which it can have arrived; begin_ns, receive_ns: entry and
exit of its receive call; send_ns, done_ns: entry and exit of the call that transmitted or dropped it; emptied_ns: when
its queue was last seen empty, 0: unknown. index: position in its burst; size: of its batch. flags: HopFlag.
"""


class HopFlag(IntFlag):
    FULL = 1  # its poll returned as many packets as were asked for
    SATURATED = 2  # its queue was not seen empty
    STAMPED = 4  # its arrival is exact


def read_hops(columns: Columns, convert: Callable[[NDArray[np.uint64]], NDArray[np.int64]]) -> Rows:
    """Returns the hops of all packets of these columns that were identified and have an end, in the order of receipt.

    Args:
        convert: ticks to ns of the clock that all recordings share, array to array.
    """
    packets = columns.packets
    placed = (packets["batch"] < len(columns.batches)) & (packets["id"] != 0) & (packets["disposition"] != UNKNOWN)
    rows = np.flatnonzero(placed & (packets["done_ticks"] > 0))
    packets, starts = packets[rows], life_start_ticks(columns)[rows]
    batches = columns.batches[packets["batch"]]
    hops = np.zeros(len(rows), HOP)
    hops["id"], hops["content"], hops["done_content"] = packets["id"], packets["digest"], packets["done_digest"]
    hops["done_content"] = np.where(packets["done_digest"] != 0, packets["done_digest"], packets["digest"])
    hops["flow"] = _number_flows(packets)
    hops["batch_id"], hops["thread"], hops["size"] = batches["id"], batches["thread"], batches["size"]
    hops["index"], hops["disposition"] = packets["index"], packets["disposition"]
    for name, ticks in (
        ("start_ns", starts),
        ("begin_ns", batches["start_ticks"]),
        ("receive_ns", packets["receive_ticks"]),
        ("send_ns", _find_sends(columns, packets)),
        ("done_ns", packets["done_ticks"]),
    ):
        hops[name] = convert(np.ascontiguousarray(ticks))
    saturated = (batches["flags"] & BatchFlag.SATURATED) != 0
    known = (batches["earliest_ticks"] != 0) & ~saturated
    hops["emptied_ns"] = np.where(known, convert(np.ascontiguousarray(batches["earliest_ticks"])), 0)
    stamped = arrival_known(packets, batches["start_ticks"])
    full = (batches["flags"] & BatchFlag.FULL) != 0
    hops["flags"] = full * HopFlag.FULL + saturated * HopFlag.SATURATED + stamped * HopFlag.STAMPED
    return hops


def order_hops(hops: Rows) -> Rows:
    """Returns the hops by thread, batch and position: the order in which each thread worked on them."""
    ordered: Rows = hops[np.lexsort((hops["index"], hops["batch_id"], hops["begin_ns"], hops["thread"]))]
    return ordered


def make_keys(hops: Rows) -> NDArray[np.uint64]:
    """Returns what identifies each hop in its recording: its batch and its position, as `Matches` has it."""
    keys: NDArray[np.uint64] = hops["batch_id"] << np.uint64(16) | (hops["index"] & np.uint32(0xFFFF)).astype(np.uint64)
    return keys


def _find_sends(columns: Columns, packets: Rows) -> NDArray[np.uint64]:
    """Returns when the call was entered by whose end each packet was done; its receipt where that call is not there."""
    calls = columns.calls
    done = calls[(calls["flags"] & (CallFlag.TRANSMIT | CallFlag.DROP)) != 0]
    if not len(done):
        return np.array(packets["receive_ticks"])
    done = done[np.lexsort((done["start_ticks"], done["end_ticks"]))]
    at = np.searchsorted(done["end_ticks"], packets["done_ticks"]).clip(0, len(done) - 1)
    found = done["end_ticks"][at] == packets["done_ticks"]
    found &= packets["done_function"] != NONE
    return np.where(found, np.maximum(done["start_ticks"][at], packets["receive_ticks"]), packets["receive_ticks"])


def _number_flows(packets: Rows) -> NDArray[np.uint64]:
    words = [packets[name].copy().view("<u8").reshape(-1, 2)[:, half] for name in ("source", "destination")
             for half in (0, 1)]  # fmt: skip
    ports = packets["source_port"].astype(np.uint64) << np.uint64(32) | packets["destination_port"].astype(np.uint64)
    words.append(ports << np.uint64(8) | packets["protocol"].astype(np.uint64))
    number = np.zeros(len(packets), np.uint64)
    for word in words:
        number = (number ^ word) * np.uint64(0x9E3779B97F4A7C15)
        number ^= number >> np.uint64(29)
    return number
