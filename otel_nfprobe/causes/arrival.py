# SPDX-License-Identifier: Apache-2.0
"""Arrival: how a packet's arrival time is known, and which batches ran while it waited. Pure: columns in, arrays out.

The start of a packet's life is defined by `columns.life_start_ticks`; native/core/arrival.h implements the same rule,
and native/core/otlp_packet.c writes the same strings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, BatchFlag, Columns, PacketFlag, arrival_known

STAMP, CAPTURE, POLL, SATURATED = "mbuf stamp", "capture", "poll", "saturated"
"""Values of nf.arrival.source; docs/arrival.md explains each."""
SOURCES = (STAMP, CAPTURE, POLL, SATURATED)
FROM_CAPTURE = PacketFlag.ARRIVAL_KNOWN | PacketFlag.ARRIVAL_UNIX_NS
WAITED_MAX = 16  # most recent batches that the span of a packet's wait links to


def find_source(packet: np.void, batch: np.void) -> str | None:
    """Returns how the arrival of a packet (a row of PACKET) is known; `batch` is its row of BATCH. None: unknown."""
    if packet["flags"] & PacketFlag.ARRIVAL_KNOWN and 0 < packet["arrival_ticks"] <= batch["start_ticks"]:
        return CAPTURE if packet["flags"] & FROM_CAPTURE == FROM_CAPTURE else STAMP
    if not batch["earliest_ticks"]:
        return None
    return SATURATED if batch["flags"] & BatchFlag.SATURATED else POLL


def find_sources(columns: Columns) -> NDArray[np.int8]:
    """Returns for each packet the index in SOURCES of its find_source; -1: unknown."""
    packets, batches = columns.packets, columns.batches
    found = np.full(len(packets), -1, np.int8)
    placed = np.flatnonzero(packets["batch"] < len(batches))
    of_batch = batches[packets["batch"][placed]]
    bounded = of_batch["earliest_ticks"] != 0
    saturated = (of_batch["flags"] & BatchFlag.SATURATED) != 0
    found[placed[bounded]] = SOURCES.index(POLL)
    found[placed[bounded & saturated]] = SOURCES.index(SATURATED)
    known = placed[arrival_known(packets[placed], of_batch["start_ticks"])]
    captured = (packets["flags"][known] & FROM_CAPTURE) == FROM_CAPTURE
    found[known] = np.where(captured, SOURCES.index(CAPTURE), SOURCES.index(STAMP))
    return found


def find_waited(columns: Columns, selected: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Finds the batches that ran while each selected packet waited, among those that contain a selected packet.

    Returns:
        packet indices, one for each such batch, by thread and time; and for each selected packet the position of its
        first batch in them and the number of its batches, shape (n, 2).
    """
    waits = np.zeros((len(selected), 2), np.uint32)
    chosen, own = _find_batches(columns, selected)
    first = np.full(len(columns.batches), NONE, np.uint32)  # a selected packet of each batch
    first[own[::-1]] = selected[chosen][::-1]
    spoken = np.flatnonzero(first != NONE)
    spoken = spoken[np.lexsort((columns.batches["start_ticks"][spoken], columns.batches["thread"][spoken]))]
    ran = columns.batches[spoken]
    start, end, earliest = (np.ascontiguousarray(ran[f"{name}_ticks"]) for name in ("start", "end", "earliest"))
    life, place = np.where(earliest != 0, earliest, start), np.zeros(len(columns.batches), np.int64)
    place[spoken] = np.arange(len(spoken))
    rows = place[own]
    stamped = _find_stamped(columns, selected[chosen], start[rows])
    stamps, stamped_rows = columns.packets["arrival_ticks"][selected[chosen][stamped]], rows[stamped]
    high, low_of_batch, low_of_stamped = (np.zeros(len(x), np.int64) for x in (ran, ran, stamped))
    edges = np.flatnonzero(np.diff(ran["thread"])) + 1
    for base, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(ran)], strict=True):
        high[base:stop] = base + np.searchsorted(start[base:stop], start[base:stop], side="left")
        low_of_batch[base:stop] = base + np.searchsorted(end[base:stop], life[base:stop], side="right")
        mine = (stamped_rows >= base) & (stamped_rows < stop)
        low_of_stamped[mine] = base + np.searchsorted(end[base:stop], stamps[mine], side="right")
    low = low_of_batch[rows]
    low[stamped] = low_of_stamped
    low = np.maximum(low, high[rows] - WAITED_MAX)
    waits[chosen, 0], waits[chosen, 1] = low, np.maximum(high[rows] - low, 0)
    return first[spoken], waits


def _find_batches(columns: Columns, selected: NDArray[np.uint32]) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
    """Returns which of the selected packets have a batch in the columns, and its index."""
    batch = np.full(len(selected), NONE, np.uint32)
    there = np.flatnonzero(selected < len(columns.packets))
    batch[there] = columns.packets["batch"][selected[there]]
    chosen = np.flatnonzero(batch < len(columns.batches))
    return chosen, batch[chosen]


def _find_stamped(
    columns: Columns, packets: NDArray[np.uint32], batch_start_ticks: NDArray[np.uint64]
) -> NDArray[np.intp]:
    """Returns which of these packets have an arrival of their own; all others use that of their batch."""
    marked = np.flatnonzero(columns.packets["flags"][packets] & PacketFlag.ARRIVAL_KNOWN)
    return marked[arrival_known(columns.packets[packets[marked]], batch_start_ticks[marked])]
