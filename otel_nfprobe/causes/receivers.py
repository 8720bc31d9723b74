# SPDX-License-Identifier: Apache-2.0
"""Receivers: whether who reads a queue took less than usual while transmit calls left packets that it had no room for.

    packets left = (offered - what is usually taken in that time) + (what is usually taken - taken)

The first part is the sender's: it sent more at once than usual. The second one is the receiver's, another program or
the kernel, of which nothing else is known here. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from otel_nfprobe.base.columns import Columns
from otel_nfprobe.pipeline.short_sends import count_taken, select_sends

SENDS_MIN = 32  # calls before: of fewer it is not known what is usual


class Receiver(NamedTuple):
    """What the receiver is responsible for.

    Attributes:
        packets: left because it took less than usual.
        taken: packets that it took meanwhile.
        call: the first transmit call of that time, its row.
    """

    packets: float
    taken: int
    call: int


def find_receiver(columns: Columns, thread: int, function: int, since: int, until: int) -> Receiver | None:
    """Compares what was taken of a thread's transmit calls between two times with what was taken before.

    Returns:
        None if too little is known.
    """
    calls = columns.calls
    rows = select_sends(calls, np.array([function], np.uint32))
    rows = rows[calls["thread"][rows] == thread]
    starts = calls["start_ticks"][rows].astype(np.int64)
    first, end = np.searchsorted(starts, [since, until]).tolist()
    if first < SENDS_MIN or first == end or starts[0] >= since:
        return None
    taken = count_taken(calls[rows])
    usual = float(taken[:first].sum()) / (since - int(starts[0]))
    meanwhile = int(taken[first:end].sum())
    return Receiver(max(usual * (until - since) - meanwhile, 0.0), meanwhile, int(rows[first]))
