# SPDX-License-Identifier: Apache-2.0
"""Joining: which hops of several recordings are one packet. Pure: hops in, pairs and ways out.

Two hops are one packet if they have the same id (or, where a network function rewrites addresses or ports, the same
content id), are no further apart than a window, and no third hop could be meant as well. What is ambiguous is counted
and not joined. Nothing is assumed of the order of the recordings: who received a packet first was first on its way.

All times are ns of one clock (clocks.py). Vectorised: some sorts and searches for each pair of recordings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import DROPPED, Rows

WINDOW_NS = 1_000_000_000
Indices = NDArray[np.int64]


@dataclass
class Pairs:
    """Hops of two recordings that are one packet: rows of the first and of the second.

    Attributes:
        by_content: number of them that only the content id joins.
        ambiguous: hops of the first, and of the second, for which more than one hop of the other could be meant.
        impossible: pairs that were not joined, as the packet was dropped, or not yet sent, when the other received it.
    """

    first: Indices
    second: Indices
    by_content: int = 0
    ambiguous: tuple[int, int] = (0, 0)
    impossible: int = 0


class _Found(NamedTuple):
    first: Indices
    second: Indices
    unclear_first: NDArray[np.bool_]
    unclear_second: NDArray[np.bool_]


def match_hops(first: Rows, second: Rows, window_ns: int = WINDOW_NS, error_ns: int = 0) -> Pairs:
    """Joins the hops of two recordings by id, and those that this leaves by content id.

    Args:
        window_ns: equal ids that were received further apart belong to different packets.
        error_ns: of the clock between the two.
    """
    times = first["receive_ns"], second["receive_ns"]
    found = _match(first["id"], second["id"], *times, window_ns)
    unclear = [found.unclear_first, found.unclear_second]
    pairs = [(found.first, found.second)]
    for names in (("done_content", "content"), ("content", "done_content")):
        free = [np.ones(len(hops), bool) for hops in (first, second)]
        for rows in pairs:
            free[0][rows[0]] = free[1][rows[1]] = False
        again = _match_left(first[names[0]], second[names[1]], free, times, window_ns)
        new = free[0][again.first] & free[1][again.second]
        new &= ~unclear[0][again.first] & ~unclear[1][again.second]
        pairs.append((again.first[new], again.second[new]))
        if not len(found.first):  # no id is the same in both: then the content alone tells packets apart
            unclear[0] |= again.unclear_first & free[0]
            unclear[1] |= again.unclear_second & free[1]
    rows_first, rows_second = (np.concatenate([rows[side] for rows in pairs]) for side in (0, 1))
    possible = _is_possible(first[rows_first], second[rows_second], error_ns)
    by_content = int(possible[len(pairs[0][0]) :].sum())
    ambiguous = int(unclear[0].sum()), int(unclear[1].sum())
    impossible = int((~possible).sum())
    return Pairs(rows_first[possible], rows_second[possible], by_content, ambiguous, impossible)


def match_unique(first: Rows, second: Rows) -> tuple[Indices, Indices]:
    """Joins hops whose id (or else content id) occurs exactly once in both recordings: no clock is needed."""
    rows: list[tuple[Indices, Indices]] = []
    for name in ("id", "content"):
        keys = [np.unique(hops[name], return_index=True, return_counts=True) for hops in (first, second)]
        alone = [(values[counts == 1], at[counts == 1]) for values, at, counts in keys]
        _, here, there = np.intersect1d(alone[0][0], alone[1][0], True, return_indices=True)
        rows.append((alone[0][1][here], alone[1][1][there]))
    best = max(rows, key=lambda pair: len(pair[0]))
    return best[0].astype(np.int64), best[1].astype(np.int64)


def _is_possible(first: Rows, second: Rows, error_ns: int) -> NDArray[np.bool_]:
    """Returns which pairs can be one packet: the earlier hop did not drop it, and had begun to send it."""
    is_forward = first["receive_ns"] <= second["receive_ns"]
    sent = np.where(is_forward, first["send_ns"], second["send_ns"])
    received = np.where(is_forward, second["receive_ns"], first["receive_ns"])
    dropped = np.where(is_forward, first["disposition"], second["disposition"]) == DROPPED
    possible: NDArray[np.bool_] = (received + error_ns >= sent) & ~dropped
    return possible


def _match_left(
    keys_first: NDArray[np.uint64],
    keys_second: NDArray[np.uint64],
    free: Sequence[NDArray[np.bool_]],
    times: tuple[Indices, Indices],
    window_ns: int,
) -> _Found:
    """Joins rows by keys that rows have which are still free in both; rows that are not free are candidates, too."""
    wanted = np.intersect1d(keys_first[free[0]], keys_second[free[1]])
    rows = [np.flatnonzero(np.isin(keys, wanted)) for keys in (keys_first, keys_second)]
    part = _match(keys_first[rows[0]], keys_second[rows[1]], times[0][rows[0]], times[1][rows[1]], window_ns)
    unclear = np.zeros(len(keys_first), bool), np.zeros(len(keys_second), bool)
    unclear[0][rows[0]], unclear[1][rows[1]] = part.unclear_first, part.unclear_second
    return _Found(rows[0][part.first], rows[1][part.second], *unclear)


def _match(
    keys_first: NDArray[np.uint64],
    keys_second: NDArray[np.uint64],
    times_first: NDArray[np.int64],
    times_second: NDArray[np.int64],
    window_ns: int,
) -> _Found:
    """Joins rows with equal keys that are each other's only candidates within the window."""
    counts = len(keys_first), len(keys_second)
    unclear = np.zeros(counts[0], bool), np.zeros(counts[1], bool)
    if not all(counts):
        return _Found(np.empty(0, np.int64), np.empty(0, np.int64), *unclear)
    # Keys and times in one word, so that one search finds a key's rows of some time. Times lose digits if need be.
    _, ranks = np.unique(np.concatenate((keys_first, keys_second)), return_inverse=True)
    ranks = ranks.reshape(-1).astype(np.int64)
    since = min(int(times_first.min()), int(times_second.min()))
    span = max(int(times_first.max()), int(times_second.max())) - since
    lost_bits = max(0, sum(counts).bit_length() + span.bit_length() + 1 - 63)
    step = (span >> lost_bits) + 1
    window = min((window_ns >> lost_bits) + bool(lost_bits), step)
    orders, words = [], []
    for rank, times in ((ranks[: counts[0]], times_first), (ranks[counts[0] :], times_second)):
        word = rank * step + ((times - since) >> lost_bits)
        orders.append(np.argsort(word, kind="stable"))
        words.append(word[orders[-1]])
    # Of each row, in order: the first candidate among the other's rows, and how many there are.
    (begins, numbers), (_, others) = _count(words[0], words[1], step, window), _count(words[1], words[0], step, window)
    sure = np.flatnonzero(numbers == 1)
    sure = sure[others[begins[sure]] == 1]
    unclear[0][orders[0][numbers > 0]] = unclear[1][orders[1][others > 0]] = True
    rows = orders[0][sure].astype(np.int64), orders[1][begins[sure]].astype(np.int64)
    unclear[0][rows[0]] = unclear[1][rows[1]] = False
    return _Found(*rows, *unclear)


def _count(words: Indices, others: Indices, step: int, window: int) -> tuple[Indices, Indices]:
    """Returns for each word the first of the others with its key within the window, and how many there are."""
    places = words % step
    begins = np.searchsorted(others, words - np.minimum(places, window), side="left")
    ends = np.searchsorted(others, words + np.minimum(step - 1 - places, window), side="right")
    return begins, ends - begins


# ---- ways -----------------------------------------------------------------------------------------------------------


@dataclass
class Joined:
    """The packets that were seen in more than one recording: their hops, by packet and time.

    Attributes:
        recording, row: of each hop.
        packet: the number of its packet, rising.
        first: for each packet the position of its first hop, and the number of hops at the end.
        inconsistent: packets left out, as their pairs contradict each other.
        pairs: of recordings, by their numbers.
    """

    recording: NDArray[np.int16]
    row: Indices
    packet: Indices
    first: Indices
    inconsistent: int = 0
    pairs: dict[tuple[int, int], Pairs] = field(default_factory=dict)

    @property
    def packets(self) -> int:
        """Number of packets."""
        return len(self.first) - 1

    @property
    def lengths(self) -> Indices:
        """Returns the number of hops of each packet."""
        return np.diff(self.first)

    def field(self, hops: Sequence[Rows], name: str) -> NDArray[np.int64]:
        """Returns a field of each hop."""
        values = np.zeros(len(self.row), np.int64)
        for number, rows in enumerate(hops):
            mine = self.recording == number
            values[mine] = rows[name][self.row[mine]].astype(np.int64)
        return values

    def neighbours(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Returns which hops have one before them, and which one after them."""
        before = np.ones(len(self.row), bool)
        before[self.first[:-1]] = False
        after = np.ones(len(self.row), bool)
        after[self.first[1:] - 1] = False
        return before, after


def join_hops(hops: Sequence[Rows], window_ns: int = WINDOW_NS, error_ns: Sequence[int] | None = None) -> Joined:
    """Joins the hops of any number of recordings.

    Args:
        error_ns: of each recording's clock; None: they have one clock.
    """
    errors = error_ns or [0] * len(hops)
    pairs = {
        (here, there): match_hops(hops[here], hops[there], window_ns, errors[here] + errors[there])
        for here in range(len(hops))
        for there in range(here + 1, len(hops))
    }
    base = np.concatenate(([0], np.cumsum([len(rows) for rows in hops]))).astype(np.int64)
    labels = _label([(base[here] + one.first, base[there] + one.second) for (here, there), one in pairs.items()], base)
    recording = np.repeat(np.arange(len(hops), dtype=np.int16), np.diff(base))
    times = np.concatenate([rows["receive_ns"] for rows in hops]) if len(hops) else np.empty(0, np.int64)
    shared = np.bincount(labels, minlength=len(labels))[labels] > 1
    order = np.flatnonzero(shared)
    # A packet is seen once by each: two hops in one recording mean that its pairs contradict each other.
    order = order[np.lexsort((recording[order], labels[order]))]
    twice = np.zeros(len(labels), bool)
    same = (labels[order][1:] == labels[order][:-1]) & (recording[order][1:] == recording[order][:-1])
    twice[labels[order][1:][same]] = True
    order = order[~twice[labels[order]]]
    order = order[np.lexsort((times[order], labels[order]))]
    fresh = np.ones(len(order), bool)
    fresh[1:] = labels[order][1:] != labels[order][:-1]
    first = np.append(np.flatnonzero(fresh), len(order)).astype(np.int64)
    numbers = np.cumsum(fresh) - 1
    return Joined(recording[order], order - base[recording[order]], numbers, first, int(twice.sum()), pairs)


def _label(pairs: Sequence[tuple[Indices, Indices]], base: Indices) -> Indices:
    """Returns for each hop the smallest number of a hop that it is joined with, over any number of pairs."""
    labels = np.arange(base[-1], dtype=np.int64)
    for _ in range(len(base)):  # no way is longer
        before = labels.copy()
        for first, second in pairs:
            least = np.minimum(labels[first], labels[second])
            labels[first], labels[second] = least, least
        if np.array_equal(before, labels):
            break
    return labels
