# SPDX-License-Identifier: Apache-2.0
"""Arrivals from a capture: matches the packets of a session with those captured at their generator. Pure.

By id, or by content id: packets with the same one, in the order in which the function received them, are matched with
those of the capture in capture order. By order, where headers do not distinguish packets: all packets of a single
queue, in order. Either way a match must be possible: a packet cannot arrive after the poll that returned it, nor long
before its queue was last seen empty. Unmatched packets are counted and keep the arrival known from other sources.

All times are Unix ns; docs/arrival.md explains them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import BatchFlag, Columns
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.causes.arrival import FROM_CAPTURE

TRANSIT_NS = 10_000_000  # maximum, from the generator's timestamp to the queue
UNSEEN_WAIT_NS = 10_000_000_000  # maximum, in a queue that was not seen empty
CLOCK_ERROR_NS = 5_000
PAIRS_NEEDED = 32  # to estimate the offset between two clocks
ORDER_SHARE = 0.9  # of the packets: with fewer matches by order it is a different capture
LOOK_AHEAD = 64  # maximum of consecutive captured packets that were lost

RECEIVED = np.dtype(
    [
        ("key", "<u8"),
        ("id", "<u8"),
        ("start_ns", "<i8"),
        ("latest_ns", "<i8"),
        ("earliest_ns", "<i8"),
        ("queue", "<u8"),
        ("length", "<u2"),
    ]
)
"""A received packet. key: from its batch and position; start_ns: entry of its receive call, latest_ns: its exit;
earliest_ns: when its queue was last seen empty, 0: unknown; queue: thread and queue number.
"""

CAPTURED = np.dtype([("id", "<u8"), ("unix_ns", "<i8"), ("length", "<u4")])


@dataclass
class Matches:
    """Arrivals by packet.

    Attributes:
        keys, arrival_ns: of the matched packets, sorted by key.
        packets: number of packets in the session; captured: in the capture.
        absent: packets whose id is not in the capture, or not in its order.
        impossible: packets found in the capture at a time when they cannot have arrived.
        offset_ns: added to the capture's times.
    """

    keys: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    arrival_ns: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    packets: int = 0
    captured: int = 0
    absent: int = 0
    impossible: int = 0
    offset_ns: int = 0

    @property
    def matched(self) -> int:
        """Number of packets whose arrival comes from the capture."""
        return len(self.keys)

    def describe(self) -> dict[str, int]:
        """Returns the counts as `packets.arrivals` of a report."""
        names = ("matched", "absent", "impossible", "captured", "offset_ns")
        return {name: int(getattr(self, name)) for name in names}

    def apply(self, columns: Columns, clock: Clock) -> None:
        """Writes the arrivals into the packets of these columns."""
        packets, batches = columns.packets, columns.batches
        rows = np.flatnonzero(packets["batch"] < len(batches))
        if not len(rows) or not len(self.keys):
            return
        keys = _make_keys(columns, rows)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        known = self.keys[at] == keys
        rows, at = rows[known], at[known]
        arrival = clock.convert_back(self.arrival_ns[at].astype(np.uint64))
        packets["arrival_ticks"][rows] = np.minimum(arrival, batches["start_ticks"][packets["batch"][rows]])
        packets["flags"][rows] |= np.uint8(FROM_CAPTURE)


def read_received(columns: Columns, clock: Clock, by_content: bool = False) -> NDArray[np.void]:
    """Returns the packets of these columns as rows of RECEIVED; by_content: with the content id for id."""
    packets = columns.packets
    rows = np.flatnonzero(packets["batch"] < len(columns.batches))
    batches = columns.batches[packets["batch"][rows]]
    received = np.zeros(len(rows), RECEIVED)
    received["key"] = _make_keys(columns, rows)
    received["id"], received["length"] = packets["digest" if by_content else "id"][rows], packets["length"][rows]
    received["start_ns"] = clock.convert(batches["start_ticks"]).astype(np.int64)
    received["latest_ns"] = clock.convert(packets["receive_ticks"][rows]).astype(np.int64)
    bounded = (batches["earliest_ticks"] != 0) & ((batches["flags"] & BatchFlag.SATURATED) == 0)
    earliest = clock.convert(batches["earliest_ticks"]).astype(np.int64)
    received["earliest_ns"] = np.where(bounded, earliest, 0)
    received["queue"] = batches["thread"].astype(np.uint64) << np.uint64(32) | batches["queue"]
    return received


def match_by_id(received: NDArray[np.void], captured: NDArray[np.void], offset_ns: int = 0) -> Matches:
    """Matches packets by id; `offset_ns` is added to the capture's times."""
    received = received[np.lexsort((received["key"], received["latest_ns"], received["id"]))]
    captured = captured[np.lexsort((captured["unix_ns"], captured["id"]))]
    low, high = _possible(received)
    times = captured["unix_ns"] + offset_ns
    begin = np.searchsorted(captured["id"], received["id"], side="left")
    end = np.searchsorted(captured["id"], received["id"], side="right")
    fresh = np.ones(len(received), bool)
    fresh[1:] = received["id"][1:] != received["id"][:-1]
    alone = fresh & np.append(fresh[1:], True) & (end - begin == 1)
    arrival = np.zeros(len(received), np.int64)
    only = np.flatnonzero(alone)
    found = times[begin[only]]
    arrival[only] = np.where((found >= low[only]) & (found <= high[only]), found, 0)
    at = 0
    for row in np.flatnonzero(~alone & (end > begin)).tolist():
        at = max(at, int(begin[row]))
        while at < end[row] and times[at] < low[row]:
            at += 1
        if at < end[row] and times[at] <= high[row]:
            arrival[row] = times[at]
            at += 1
    return _conclude(received, captured, arrival, offset_ns, int(np.count_nonzero(begin == end)))


def match_by_order(received: NDArray[np.void], captured: NDArray[np.void], offset_ns: int = 0) -> Matches:
    """Matches the packets of one queue by order, time and length; matches none if too few fit.

    Raises:
        ValueError: packets came from more than one queue.
    """
    if len(distinct(received["queue"])) > 1:
        raise ValueError("more than one queue")
    received = received[np.lexsort((received["key"] & np.uint64(0xFFFF), received["latest_ns"]))]
    low, high = (bound.tolist() for bound in _possible(received))
    times, lengths = (captured["unix_ns"] + offset_ns).tolist(), captured["length"].tolist()
    wanted = received["length"].tolist()
    arrival, at = np.zeros(len(received), np.int64), 0
    for row, length in enumerate(wanted):
        while at < len(times) and times[at] < low[row]:
            at += 1
        last = min(at + LOOK_AHEAD, len(times))
        found = next((i for i in range(at, last) if lengths[i] == length or times[i] > high[row]), last)
        if found < last and times[found] <= high[row]:
            arrival[row] = times[found]
            at = found + 1
    if np.count_nonzero(arrival) < ORDER_SHARE * len(received):
        arrival[:] = 0
    return _conclude(received, captured, arrival, offset_ns, int(np.count_nonzero(arrival == 0)))


def estimate_offset_ns(received: NDArray[np.void], captured: NDArray[np.void]) -> int | None:
    """Returns the offset to add to the capture's times so that the fastest packet did not wait. None: too few
    packets.
    """
    ids, first, counts = np.unique(captured["id"], return_index=True, return_counts=True)
    mine, at, times = np.unique(received["id"], return_index=True, return_counts=True)
    _, here, there = np.intersect1d(ids[counts == 1], mine[times == 1], True, return_indices=True)
    if len(here) < PAIRS_NEEDED:
        return None
    sent = captured["unix_ns"][first[counts == 1][here]]
    return int((received["start_ns"][at[times == 1][there]] - sent).min())


def _make_keys(columns: Columns, rows: NDArray[np.intp]) -> NDArray[np.uint64]:
    packets = columns.packets[rows]
    ids: NDArray[np.uint64] = columns.batches["id"][packets["batch"]] << np.uint64(16)
    ids |= packets["index"] & np.uint64(0xFFFF)
    return ids


def _possible(received: NDArray[np.void]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the time range in which the generator can have stamped each packet: from, until."""
    earliest = received["earliest_ns"]
    low = np.where(earliest != 0, earliest - TRANSIT_NS, received["latest_ns"] - UNSEEN_WAIT_NS)
    return low, received["latest_ns"] + CLOCK_ERROR_NS


def _conclude(
    received: NDArray[np.void], captured: NDArray[np.void], arrival: NDArray[np.int64], offset_ns: int, absent: int
) -> Matches:
    known = np.flatnonzero(arrival)
    known = known[np.argsort(received["key"][known])]
    impossible = len(received) - len(known) - absent
    keys, found = received["key"][known], arrival[known]
    return Matches(keys, found, len(received), len(captured), absent, impossible, offset_ns)
