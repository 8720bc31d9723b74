# SPDX-License-Identifier: Apache-2.0
"""Following a delay up the chain to the function, or the noise, that it comes from. Pure: ways and causes in.

A packet that is late in a network function B because more packets came at once than B usually works off (a *burst*, or
*batching*) waited behind packets that others had released. Which ones is known: those that B received from the begin
of the queuing period on. Following Microscope (SIGCOMM 2020), the time between the first and the last of them is
compared at each place that they passed. Where it shrank from D1 to D2, something held the first ones while the others
came after, and that place has D1 - D2 of the burst, up to what is left of it. What nothing held came so from the
source: it is a burst of the function that received the packets first. Beyond Microscope, of the place itself it
is known why it held them: the cause of the packet that was there longest, a function or what ran instead; or again a
burst, which is followed in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.chains.hops import HopFlag
from otel_nfprobe.chains.ways import SOURCE, Times, Ways

FOLLOWED = (CauseKind.BURST, CauseKind.BATCHING)
BEHIND_MAX = 65_536  # packets of a queuing period that are looked at
SHARE_MIN = 0.05  # of a burst: what shrank by less is not followed
BETWEEN = 100  # instead of a CauseKind: passed between two recordings


class Part(NamedTuple):
    """What delayed one hop, and by how much. function: an ID, or NONE; batch_id: where; 0: unknown."""

    kind: int
    function: int
    by: str
    excess_ns: float
    batch_id: int


class Culprit(NamedTuple):
    """Whose delay it was: a recording, a CauseKind or BETWEEN (then `previous` is the recording before), a function and
    what ran instead."""

    recording: int
    kind: int
    function: int = NONE
    by: str = ""
    previous: int = SOURCE


class Release(NamedTuple):
    """One place that released packets at once: `packets` of them; `row` was there longest, and `held_ns` long."""

    recording: int
    previous: int  # with a row of -1: between this recording and that one
    row: int
    packets: int
    shrunk_ns: int
    share: float  # of the packets in the burst


@dataclass
class Blame:
    """What one delay comes from.

    Attributes:
        ns: by culprit.
        held_ns: by culprit, how long the longest single delay was.
        released: by culprit, the release that it was followed to, and where the packets were late; absent if the delay
            was where the packet was.
    """

    ns: dict[Culprit, float] = field(default_factory=dict)
    held_ns: dict[Culprit, float] = field(default_factory=dict)
    released: dict[Culprit, tuple[Release, int]] = field(default_factory=dict)

    def add(self, culprit: Culprit, ns: float, held_ns: float, via: tuple[Release, int] | None = None) -> None:
        """Adds a part."""
        if ns <= 0:
            return
        if via is not None:
            self.released.setdefault(culprit, via)
        self.ns[culprit] = self.ns.get(culprit, 0.0) + ns
        self.held_ns[culprit] = max(self.held_ns.get(culprit, 0.0), held_ns)

    def merge(self, other: Blame, scale: float = 1.0, via: tuple[Release, int] | None = None) -> None:
        """Adds all of another one, scaled; `via`: the release by which it was reached."""
        for culprit, ns in other.ns.items():
            self.add(culprit, ns * scale, other.held_ns[culprit], via or other.released.get(culprit))

    def largest(self) -> Culprit | None:
        """Returns the culprit of most of it; None: there is none."""
        return max(self.ns, key=lambda culprit: self.ns[culprit], default=None)


class Follower:
    """Follows the delays of hops. Rows of each recording are in the order in which its threads worked on them.

    Args:
        hops: of each recording, ordered by `order_hops`.
        ways: of the joined packets.
        parts: of each recording, the parts of judged hops by row.

    Attributes:
        wanted: of each recording, rows whose parts are needed and not known yet.
    """

    def __init__(self, hops: Sequence[Rows], ways: Ways, parts: Sequence[Mapping[int, list[Part]]]) -> None:
        self._hops = hops
        self._parts = parts
        self.wanted: list[set[int]] = [set() for _ in hops]
        self._arrival: list[Times] = [rows["start_ns"].copy() for rows in hops]
        self._until: list[Times] = [rows["done_ns"].copy() for rows in hops]
        self._previous = [np.full(len(rows), SOURCE, np.int16) for rows in hops]
        self._previous_row: list[Times] = [np.full(len(rows), -1, np.int64) for rows in hops]
        self._excess: list[Times] = [np.zeros(len(rows), np.int64) for rows in hops]
        joined = ways.joined
        before, after = joined.neighbours()
        rows_before = np.full(len(joined.row), -1, np.int64)
        rows_before[before] = joined.row[after]
        for number in range(len(hops)):
            mine = joined.recording == number
            rows = joined.row[mine]
            self._arrival[number][rows], self._until[number][rows] = ways.arrival_ns[mine], ways.until_ns[mine]
            self._previous[number][rows] = ways.previous[mine]
            self._previous_row[number][rows] = rows_before[mine]
            self._excess[number][rows] = ways.excess_ns[mine]
        self._threads = [_thread_bounds(rows) for rows in hops]
        self._begun = [_last_emptied(rows) for rows in hops]
        self._releases: dict[tuple[int, int, int], list[Release]] = {}
        self._entries: dict[tuple[int, int, int], dict[int, float]] = {}

    def trace(self, recording: int, row: int, depth: int = 0) -> Blame:
        """Returns what the delay of a hop comes from, in ns; what is not explained is `unknown` there."""
        blame, excess = Blame(), float(self._excess[recording][row])
        parts = self._parts[recording].get(row)
        if parts is None:
            self.wanted[recording].add(row)
            parts = []
        left = excess
        for part in parts:
            ns = min(part.excess_ns, left)
            left -= ns
            if part.kind in FOLLOWED and depth < len(self._hops):
                ns -= self._follow(blame, recording, row, ns, depth)
            if part.kind == CauseKind.BURST:
                self._blame_sources(blame, recording, row, ns, part)
                continue
            blame.add(Culprit(recording, part.kind, part.function, part.by), ns, part.excess_ns)
        blame.add(Culprit(recording, CauseKind.UNKNOWN), left, left)
        return blame

    def behind(self, recording: int, row: int) -> int:
        """Returns how many packets the hop waited behind."""
        return row - self._period_begin(recording, row)

    def _follow(self, blame: Blame, recording: int, row: int, burst_ns: float, depth: int) -> float:
        """Adds what released the packets before a hop; returns how much of the burst that explains."""
        left: dict[float, float] = {}
        explained = 0.0
        for release in self._find_releases(recording, row):
            rest = left.setdefault(release.share, burst_ns * release.share)
            ns = min(float(release.shrunk_ns), rest)
            if ns < SHARE_MIN * burst_ns:
                continue
            left[release.share] -= ns
            explained += ns
            via = (release, recording)
            if release.row < 0:
                blame.add(Culprit(release.recording, BETWEEN, previous=release.previous), ns, ns, via)
                continue
            found = self.trace(release.recording, release.row, depth + 1)
            total = sum(found.ns.values())
            if total:
                blame.merge(found, ns / total, via)
            else:
                blame.add(Culprit(release.recording, CauseKind.UNKNOWN), ns, ns, via)
        return explained

    def _blame_sources(self, blame: Blame, recording: int, row: int, ns: float, part: Part) -> None:
        """Adds what nothing on the way held: it came so from the sources, to whoever received it first."""
        key, rows = self._find_period(recording, row)
        if key not in self._entries:
            self._entries[key] = self._find_entries(recording, rows, 1.0)
        for first, share in self._entries[key].items():
            blame.add(Culprit(first, part.kind, part.function, part.by), ns * share, part.excess_ns)

    def _find_entries(self, recording: int, rows: Times, share: float) -> dict[int, float]:
        """Returns in which recordings these packets were first, and the share of each."""
        entries: dict[int, float] = {}
        previous = self._previous[recording][rows]
        for number in distinct(previous).tolist():
            here = rows[previous == number]
            part = share * len(here) / len(rows)
            if number == SOURCE:
                entries[recording] = entries.get(recording, 0.0) + part
                continue
            for first, more in self._find_entries(number, self._previous_row[recording][here], part).items():
                entries[first] = entries.get(first, 0.0) + more
        return entries

    def _find_period(self, recording: int, row: int) -> tuple[tuple[int, int, int], Times]:
        """Returns the packets that a hop waited behind, and a key: those of one batch waited behind the same."""
        first = self._period_begin(recording, row)
        key = (recording, int(self._hops[recording]["batch_id"][row]), first)
        return key, np.arange(max(first, row - BEHIND_MAX), row + 1)

    def _find_releases(self, recording: int, row: int) -> list[Release]:
        key, rows = self._find_period(recording, row)
        if key not in self._releases:
            self._releases[key] = self._walk(recording, rows, 1.0, 0)
        return self._releases[key]

    def _walk(self, recording: int, rows: Times, share: float, debt: int) -> list[Release]:
        """Returns where the time between these packets shrank, from this recording upwards."""
        releases = []
        previous = self._previous[recording][rows]
        for number in distinct(previous[previous != SOURCE]).tolist():
            here = rows[previous == number]
            above = self._previous_row[recording][here]
            part = share * len(here) / len(rows)
            came, left = np.ptp(self._arrival[number][above]), np.ptp(self._until[number][above])
            steps = ((int(left - np.ptp(self._arrival[recording][here])), -1), (int(came - left), 0))
            for shrunk, kind in steps:
                shrunk -= debt
                debt = max(-shrunk, 0)  # where it grew, that much less came together before
                if shrunk <= 0:
                    continue
                stay = self._until[number][above] - self._arrival[number][above]
                row = -1 if kind < 0 else int(above[int(np.argmax(stay))])
                place, other = (recording, number) if kind < 0 else (number, SOURCE)
                releases.append(Release(place, other, row, len(here), shrunk, part))
            releases += self._walk(number, np.sort(above), part, debt)
        return releases

    def _period_begin(self, recording: int, row: int) -> int:
        """Returns the first hop of the queuing period of this one."""
        hop = self._hops[recording][row]
        begin, (first, _) = self._hops[recording]["begin_ns"], self._threads[recording][int(hop["thread"])]
        since = int(hop["emptied_ns"])
        if not since:
            at = first + int(np.searchsorted(begin[first : row + 1], self._arrival[recording][row], side="right")) - 1
            return int(self._begun[recording][max(at, first)])
        return min(first + int(np.searchsorted(begin[first : row + 1], since)), row)


def _thread_bounds(hops: Rows) -> dict[int, tuple[int, int]]:
    threads, first, counts = np.unique(hops["thread"], return_index=True, return_counts=True)
    return {int(thread): (int(at), int(at + count)) for thread, at, count in zip(threads, first, counts, strict=True)}


def _last_emptied(hops: Rows) -> Times:
    """Returns for each hop the first hop of the latest batch, up to its own, whose poll left the queue empty."""
    if not len(hops):
        return np.empty(0, np.int64)
    fresh = np.ones(len(hops), bool)
    fresh[1:] = hops["batch_id"][1:] != hops["batch_id"][:-1]
    new_thread = np.ones(len(hops), bool)
    new_thread[1:] = hops["thread"][1:] != hops["thread"][:-1]
    begins = fresh & (((hops["flags"] & HopFlag.FULL) == 0) | new_thread)
    found: Times = np.maximum.accumulate(np.where(begins, np.arange(len(hops)), 0))
    return found


Judge = Callable[[int, set[int]], Mapping[int, list[Part]]]
"""Returns the parts of these rows of a recording."""
