# SPDX-License-Identifier: Apache-2.0
"""Arrival: how it is known when a packet came, and what ran while it waited. Pure: columns in, arrays out.

Where a packet's life begins is `columns.life_start_ticks`; native/core/arrival.h has the same rule, and
native/core/otlp_arrival.c writes the same words. Used by span.py, report.py and views.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.columns import BatchFlag, Columns, PacketFlag, life_start_ticks

STAMP, CAPTURE, POLL, SATURATED = "mbuf stamp", "capture", "poll", "saturated"
"""Values of nf.arrival.source; docs/arrival.md says what each means."""
FROM_CAPTURE = PacketFlag.ARRIVAL_KNOWN | PacketFlag.ARRIVAL_UNIX_NS
WAITED_MAX = 16  # batches that the span of a packet's wait links to, the last ones


def find_source(packet: np.void, batch: np.void) -> str | None:
    """How the arrival of one packet, row of PACKET, is known; `batch` is its row of BATCH. None: nothing is known."""
    if packet["flags"] & PacketFlag.ARRIVAL_KNOWN and 0 < packet["arrival_ticks"] <= batch["start_ticks"]:
        return CAPTURE if packet["flags"] & FROM_CAPTURE == FROM_CAPTURE else STAMP
    if not batch["earliest_ticks"]:
        return None
    return SATURATED if batch["flags"] & BatchFlag.SATURATED else POLL


def find_waited(columns: Columns, selected: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Which batches ran while each of the selected packets waited, of those that have a selected packet themselves.

    Returns:
        indices of packets, one for each such batch, by thread and time; and for each selected packet the position
        of the first one there and their number, shape (n, 2).
    """
    waits = np.zeros((len(selected), 2), np.uint32)
    batches, usable = columns.batches, selected[selected < len(columns.packets)]
    usable = usable[columns.packets["batch"][usable] < len(batches)]
    spoken, first = np.unique(columns.packets["batch"][usable], return_index=True)
    order = np.lexsort((batches["start_ticks"][spoken], batches["thread"][spoken]))
    spoken, speakers = spoken[order], usable[first[order]].astype(np.uint32)
    chosen = np.flatnonzero(np.isin(selected, usable))
    packets = columns.packets[selected[chosen]]
    arrived = life_start_ticks(Columns(columns.calls, batches, packets))
    own = batches[packets["batch"]]
    for thread in np.unique(own["thread"]):
        mine = own["thread"] == thread
        base, end = np.searchsorted(batches["thread"][spoken], [thread, int(thread) + 1])
        there = batches[spoken[base:end]]
        low = np.searchsorted(there["end_ticks"], arrived[mine], side="right")
        high = np.searchsorted(there["start_ticks"], own["start_ticks"][mine], side="left")
        low = np.maximum(low, high - WAITED_MAX)
        waits[chosen[mine], 0] = base + low
        waits[chosen[mine], 1] = np.maximum(high - low, 0)
    return speakers, waits
