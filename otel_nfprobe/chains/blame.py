# SPDX-License-Identifier: Apache-2.0
"""Blame: of all late packets of a chain, what each comes from, beside the function where it was late. Pure.

Late packets are those beyond a quantile of all joined packets' latencies, or above a latency. Each has its delay added
up over its hops and the times between them; each hop's part is followed to where it comes from (follow.py). The
culprit is what has most of it. The baseline to compare with blames the hop with the largest part, and what is the cause
there: all that is known without the other recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.chains.follow import BETWEEN, Blame, Culprit, Follower, Judge, Part
from otel_nfprobe.chains.ways import Times, Ways

LATE_QUANTILE = 0.99
LATE_MAX = 10_000  # packets that are judged: of more, evenly spaced ones
HOP_SHARE = 0.05  # of a packet's delay: a hop with less is not judged


@dataclass
class LatePacket:
    """One late packet: its number, where it was late, and what that comes from.

    Attributes:
        packet: its number in the joined ones.
        where: the hop (a position in the ways) with the largest part of its delay; `is_between`: the time before it.
        local: the culprit there, as far as that recording alone tells.
        blame: over all hops.
    """

    packet: int
    where: int
    is_between: bool
    local: Culprit
    blame: Blame

    @property
    def culprit(self) -> Culprit:
        """The culprit of most of its delay."""
        return self.blame.largest() or self.local


@dataclass(frozen=True)
class LatePackets:
    """All judged late packets. threshold_ns: later ones are late; found: number of them, judged or not."""

    threshold_ns: int
    found: int
    packets: list[LatePacket]


@dataclass(frozen=True)
class BlameCount:
    """One culprit: number of packets, the sum of their delays that it has, and the largest."""

    culprit: Culprit
    packets: int
    total_ns: float
    most_ns: float


def find_late(ways: Ways, above_ns: int | None = None, quantile: float = LATE_QUANTILE) -> tuple[int, Times]:
    """Returns the latency threshold and the numbers of the packets that are late."""
    if not len(ways.latency_ns):
        return above_ns or 0, np.empty(0, np.int64)
    threshold = int(np.quantile(ways.latency_ns, quantile)) if above_ns is None else above_ns
    return threshold, np.flatnonzero((ways.latency_ns > threshold) & (ways.late_ns > 0)).astype(np.int64)


def judge_late(
    hops: Sequence[Rows], ways: Ways, judge: Judge, above_ns: int | None = None, extra: Sequence[int] = ()
) -> LatePackets:
    """Finds late packets and what each comes from.

    Args:
        hops: of each recording, ordered.
        judge: finds the causes of hops in their own recording; called for each recording at most once per hop of the
            longest way.
        extra: packets that are to be judged in any case.
    """
    threshold, late = find_late(ways, above_ns)
    found = len(late)
    if found > LATE_MAX:
        late = late[np.linspace(0, found - 1, LATE_MAX).astype(np.int64)]
    late = np.union1d(late, np.array(extra, np.int64)).astype(np.int64)
    parts: list[dict[int, list[Part]]] = [{} for _ in hops]
    follower = Follower(hops, ways, parts)
    for packet in late.tolist():
        for hop in _judged_hops(ways, packet):
            follower.wanted[int(ways.joined.recording[hop])].add(int(ways.joined.row[hop]))
    while True:
        for number, rows in enumerate(follower.wanted):
            if rows:
                known = judge(number, rows)
                parts[number].update({row: list(known.get(row, ())) for row in rows})
                rows.clear()
        packets = [_judge(follower, ways, parts, packet) for packet in late.tolist()]
        if not any(follower.wanted):
            break
    return LatePackets(threshold, found, packets)


def _judged_hops(ways: Ways, packet: int) -> list[int]:
    first, end = int(ways.joined.first[packet]), int(ways.joined.first[packet + 1])
    total = int((ways.excess_ns[first:end] + ways.between_excess_ns[first:end]).sum())
    return [hop for hop in range(first, end) if ways.excess_ns[hop] > HOP_SHARE * total]


def _judge(follower: Follower, ways: Ways, parts: Sequence[dict[int, list[Part]]], packet: int) -> LatePacket:
    first, end = int(ways.joined.first[packet]), int(ways.joined.first[packet + 1])
    blame = Blame()
    for hop in _judged_hops(ways, packet):
        blame.merge(follower.trace(int(ways.joined.recording[hop]), int(ways.joined.row[hop])))
    for hop in range(first, end):
        ns = float(ways.between_excess_ns[hop])
        place = int(ways.joined.recording[hop])
        blame.add(Culprit(place, BETWEEN, previous=int(ways.previous[hop])), ns, ns)
    inside, outside = ways.excess_ns[first:end], ways.between_excess_ns[first:end]
    is_between = int(outside.max()) > int(inside.max())
    where = first + int(np.argmax(outside if is_between else inside))
    recording = int(ways.joined.recording[where])
    if is_between:
        local = Culprit(recording, BETWEEN, previous=int(ways.previous[where]))
    else:
        known = parts[recording].get(int(ways.joined.row[where])) or [Part(CauseKind.UNKNOWN, 0xFFFFFFFF, "", 0.0, 0)]
        most = max(known, key=lambda part: part.excess_ns)
        local = Culprit(recording, most.kind, most.function, most.by)
    return LatePacket(packet, where, is_between, local, blame)


def count_blame(packets: Sequence[LatePacket], is_local: bool = False) -> list[BlameCount]:
    """Returns one entry per culprit, the most frequent first; what ran instead is not told apart.

    Args:
        is_local: by the baseline: what is known without the other recordings.
    """
    counts: dict[Culprit, tuple[int, float, float]] = {}
    for late in packets:
        culprit = (late.local if is_local else late.culprit)._replace(by="")
        ns = sum(late.blame.ns.values()) if is_local else late.blame.ns.get(late.culprit, 0.0)
        count, total, most = counts.get(culprit, (0, 0.0, 0.0))
        counts[culprit] = count + 1, total + ns, max(most, ns)
    found = [BlameCount(culprit, *values) for culprit, values in counts.items()]
    return sorted(found, key=lambda one: (-one.packets, one.culprit))
