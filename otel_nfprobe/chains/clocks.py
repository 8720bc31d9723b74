# SPDX-License-Identifier: Apache-2.0
"""Clocks: how far the clocks of two hosts are apart, from the packets that both saw. Pure: hops in, bounds out.

A packet cannot be received before it was sent. So each packet that goes from the first host to the second bounds the
difference of their clocks on one side, and each that comes back on the other. What is between the bounds is the error.
If packets go only one way there is one bound, and how long they were on the way cannot be told: then the fastest packet
counts as having taken no time.

Which way a packet went is not known before the clocks are. But a difference of the clocks that is possible for all
packets leaves each on one side, and all packets of a flow on the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.chains.join import match_unique

PAIRS_NEEDED = 32  # on each side
SEARCHED = (8192, 1024, 128)  # packets among which the sides are looked for; fewer where the clocks' rates matter
SLICES = 8  # of the time of these; on each side there are packets in half of them
SAME_SIDE_SHARE = 0.99  # of the packets
RATE_MAX = 1e-3  # difference of two clocks' rates: more is not a clock
RATE_STEPS = 60


@dataclass(frozen=True)
class ClockLink:
    """How to convert times of one clock to another: `time + offset_ns + rate * (time - since_ns)`.

    Attributes:
        error_ns: half of the distance between the bounds; None: packets went only one way.
        pairs: packets by which it is bounded, from the other clock to this one and back.
        is_order_known: whether it is known who received packets first; otherwise it is as the clocks themselves say.
    """

    offset_ns: int
    rate: float
    since_ns: int
    error_ns: int | None
    pairs: tuple[int, int]
    is_order_known: bool = True

    def convert(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns times of the other clock."""
        moved = np.rint(self.rate * (times - self.since_ns)).astype(np.int64) if self.rate else 0
        return times + self.offset_ns + moved

    def convert_back(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns times of this clock."""
        shifted = times - self.offset_ns
        if not self.rate:
            return shifted
        return np.rint((shifted - self.since_ns) / (1 + self.rate)).astype(np.int64) + self.since_ns


@dataclass(frozen=True)
class _Bounds:
    # Of each packet, when it was there: with `high` the largest difference at which it came back, with `low` the
    # smallest at which it went; what is between is impossible.
    time: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    flow: NDArray[np.uint64]


def link_clocks(first: Rows, second: Rows) -> ClockLink | None:
    """Finds how to convert the second recording's times to the first's clock. None: too few packets are in both."""
    rows, others = match_unique(first, second)
    if len(rows) < PAIRS_NEEDED:
        return None
    here, there = first[rows], second[others]
    order = np.argsort(there["receive_ns"], kind="stable")
    here, there = here[order], there[order]
    bounds = _Bounds(
        there["receive_ns"],
        here["send_ns"] - there["receive_ns"],
        here["receive_ns"] - there["send_ns"],
        here["flow"],
    )
    went = next((found for count in SEARCHED if (found := _find_sides(bounds, count)) is not None), None)
    if went is None:
        return _link_one_way(here, there, bounds)
    forward, back = went
    since = int(bounds.time[0])
    low, high = int(bounds.low[forward].max()), int(bounds.high[back].min())
    if low <= high:
        return ClockLink((low + high) // 2, 0.0, since, (high - low + 1) // 2, (len(forward), len(back)))
    return _fit_rate(bounds, forward, back, since)


def _find_sides(bounds: _Bounds, searched: int) -> tuple[NDArray[np.intp], NDArray[np.intp]] | None:
    """Returns the packets that went from the first to the second, and those that came back. None: all went one way."""
    part = slice(0, searched)
    low, high, flow, time = bounds.low[part], bounds.high[part], bounds.flow[part], bounds.time[part]
    order = np.argsort(high, kind="stable")
    reach = np.maximum.accumulate(low[order])
    gaps = np.flatnonzero(reach[:-1] < high[order][1:]) + 1
    gaps = gaps[(gaps >= PAIRS_NEEDED) & (gaps <= len(order) - PAIRS_NEEDED)]
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    _, flows = np.unique(flow, return_inverse=True)
    flows = flows.reshape(-1)
    slices = (time - time[0]) * SLICES // max(int(time[-1] - time[0]) + 1, 1)
    best: tuple[int, NDArray[np.bool_]] | None = None
    for gap in gaps.tolist():
        is_forward = position < gap  # possible only at smaller differences: what is beyond them went forward
        if not _is_consistent(is_forward, flows, slices):
            continue
        smaller = int(min(is_forward.sum(), (~is_forward).sum()))
        if best is None or smaller > best[0]:
            best = smaller, is_forward
    if best is None:
        return None
    sides = np.bincount(flows, np.where(best[1], 1.0, -1.0))
    names = distinct(flow)
    at = np.minimum(np.searchsorted(names, bounds.flow), len(names) - 1)
    known = names[at] == bounds.flow
    side = np.where(known, sides[at], 0.0)
    return np.flatnonzero(side > 0), np.flatnonzero(side < 0)


def _is_consistent(is_forward: NDArray[np.bool_], flows: NDArray[np.intp], slices: NDArray[np.int64]) -> bool:
    """Returns whether all packets of a flow went the same way, at all times."""
    forward = np.bincount(flows, is_forward)
    total = np.bincount(flows)
    if float(np.maximum(forward, total - forward).sum()) < SAME_SIDE_SHARE * len(flows):
        return False
    many = total > 1
    both = forward[many & (2 * forward > total)].sum(), (total - forward)[many & (2 * forward < total)].sum()
    if min(both) < PAIRS_NEEDED:
        return False
    there = len(distinct(slices))
    return all(2 * len(distinct(slices[side])) >= there for side in (is_forward, ~is_forward))


def _link_one_way(here: Rows, there: Rows, bounds: _Bounds) -> ClockLink:
    # A function that changes what the content id covers shows on which side of it a recording is.
    went = int((here["done_content"] == there["content"]).sum()), int((there["done_content"] == here["content"]).sum())
    is_known = went[0] != went[1]
    seen_first = int((here["receive_ns"] <= there["receive_ns"]).sum())
    is_first = went[0] > went[1] if is_known else 2 * seen_first >= len(here)
    since, count = int(bounds.time[0]), len(here)
    offset = int(bounds.low.max()) if is_first else int(bounds.high.min())
    return ClockLink(offset, 0.0, since, None, (count, 0) if is_first else (0, count), is_known)


def _fit_rate(bounds: _Bounds, forward: NDArray[np.intp], back: NDArray[np.intp], since: int) -> ClockLink:
    """Returns the line that keeps the largest distance from all bounds: the clocks' rates differ."""

    def find(rate: float) -> tuple[float, float]:
        low = (bounds.low[forward] - rate * (bounds.time[forward] - since)).max()
        high = (bounds.high[back] - rate * (bounds.time[back] - since)).min()
        return float(low), float(high)

    left, right = -RATE_MAX, RATE_MAX
    for _ in range(RATE_STEPS):  # the distance is a concave function of the rate
        third = (right - left) / 3
        one, two = find(left + third), find(right - third)
        if one[1] - one[0] < two[1] - two[0]:
            left += third
        else:
            right -= third
    rate = (left + right) / 2
    low, high = find(rate)
    error = round(abs(high - low) / 2)  # where even a line contradicts them, by how much
    return ClockLink(round((low + high) / 2), rate, since, error, (len(forward), len(back)))
