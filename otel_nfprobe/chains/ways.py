# SPDX-License-Identifier: Apache-2.0
"""Ways: how long each joined packet was in each network function and between two of them. Pure: hops in, arrays out.

A packet is in a function from its arrival to the exit of the call that sent it, or to the entry of the call by which
the next one received it, if that is earlier. It arrived at the next one when it was sent, or later: not before that
one's queue was last seen empty. So the time *between* is what certainly passed on the way; at most it was the time
until the next function's receive call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import TRANSMITTED, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.chains.join import Joined

Times = NDArray[np.int64]
SOURCE = -1  # instead of a recording: nothing is before the first one


@dataclass
class Ways:
    """The hops of joined packets, by packet and time; times in ns.

    Attributes:
        joined: packets and their hops.
        arrival_ns, until_ns: since when and until when the packet was there.
        between_ns: how long it was under way before, at least; at_most_ns: and at most. 0 at the first.
        previous: the recording before, or SOURCE.
        latency_ns: of each packet, from its first arrival to its last end.
        excess_ns, between_excess_ns: beyond the median of hops between the same recordings.
        late_ns: of each packet, the latency beyond the median of packets with the same way.
        way: of each packet, the number of its row in `routes`.
        routes: recordings in the order in which packets were there.
    """

    joined: Joined
    arrival_ns: Times
    until_ns: Times
    between_ns: Times
    at_most_ns: Times
    previous: NDArray[np.int16]
    latency_ns: Times
    excess_ns: Times
    between_excess_ns: Times
    late_ns: Times
    way: Times
    routes: list[tuple[int, ...]]

    @property
    def durations_ns(self) -> Times:
        """Returns how long the packet was there, by hop."""
        return self.until_ns - self.arrival_ns


def find_ways(hops: Sequence[Rows], joined: Joined) -> Ways:
    """Finds the times of all joined packets."""
    before, after = joined.neighbours()
    begin, done = joined.field(hops, "begin_ns"), joined.field(hops, "done_ns")
    emptied, start = joined.field(hops, "emptied_ns"), joined.field(hops, "start_ns")
    until = done.copy()
    until[after] = np.minimum(done[after], begin[before])
    sent = np.zeros_like(until)
    sent[before] = until[after]
    arrival = np.where(before, np.minimum(np.maximum(sent, emptied), begin), start)
    arrival = np.minimum(arrival, until)
    between = np.where(before, np.maximum(arrival - sent, 0), 0)
    at_most = np.where(before, np.maximum(begin - sent, 0), 0)
    previous = np.full(len(until), SOURCE, np.int16)
    previous[before] = joined.recording[after]
    first, last = joined.first[:-1], joined.first[1:] - 1
    latency = until[last] - arrival[first] if len(first) else np.zeros(0, np.int64)
    way, routes = _find_routes(joined, len(hops))
    edges = (previous.astype(np.int64) + 1) * len(hops) + joined.recording
    excess = _beyond_median(until - arrival, edges)
    return Ways(
        joined,
        arrival,
        until,
        between,
        at_most,
        previous,
        latency,
        np.maximum(excess, 0),
        np.where(before, np.maximum(_beyond_median(between, edges), 0), 0),
        _beyond_median(latency, way),
        way,
        routes,
    )


def count_lost(hops: Sequence[Rows], ways: Ways) -> dict[tuple[int, int], int]:
    """Returns how many packets one recording transmitted to the next that the next did not receive, by recordings.

    Counted where more than half of what it transmitted went on to one other recording, in the time that both cover.
    Packets that may be there under the id of another one are not counted.
    """
    lost = {}
    joined = ways.joined
    _, after = joined.neighbours()
    before, _ = joined.neighbours()
    for number, rows in enumerate(hops):
        mine = after & (joined.recording == number)
        following = joined.recording[before][mine[after]]
        if not len(following):
            continue
        next_ = int(np.bincount(following).argmax())
        other = hops[next_]
        sent = rows["disposition"] == TRANSMITTED
        covered = (rows["done_ns"] > other["receive_ns"].min()) & (rows["done_ns"] < other["receive_ns"].max())
        gone_on = np.zeros(len(rows), bool)
        gone_on[joined.row[mine]] = True
        if 2 * int((following == next_).sum()) <= int((sent & covered).sum()):
            continue
        pairs = joined.pairs[min(number, next_), max(number, next_)]
        unclear = pairs.ambiguous[0 if number < next_ else 1] + pairs.impossible
        lost[number, next_] = max(int((sent & covered & ~gone_on).sum()) - unclear, 0)
    return lost


def _find_routes(joined: Joined, count: int) -> tuple[Times, list[tuple[int, ...]]]:
    """Returns for each packet the number of its route, and the routes, the most frequent first."""
    codes = np.zeros(joined.packets, np.int64)
    lengths = joined.lengths
    longest = int(lengths.max()) if len(lengths) else 0
    for place in range(longest):
        there = lengths > place
        numbers = joined.recording[joined.first[:-1][there] + place].astype(np.int64) + 1
        codes[there] = codes[there] * (count + 1) + numbers
    values, way, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    routes = []
    for code in values[order].tolist():
        route: list[int] = []
        while code:
            code, number = divmod(code, count + 1)
            route.insert(0, number - 1)
        routes.append(tuple(route))
    return rank[way.reshape(-1)], routes


def _beyond_median(values: Times, groups: Times) -> Times:
    beyond = np.zeros(len(values), np.int64)
    for group in distinct(groups).tolist():
        mine = groups == group
        beyond[mine] = values[mine] - int(np.median(values[mine]))
    return beyond
