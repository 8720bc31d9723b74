# SPDX-License-Identifier: Apache-2.0
"""The latency threshold from which a packet of a recording is late. Columns in, drain by drain."""

from __future__ import annotations

import math

import numpy as np

from otel_nfprobe.base.columns import UNKNOWN, BatchFlag, Columns, PacketFlag, counted_latency_ticks
from otel_nfprobe.causes.causes import JUDGED_MAX
from otel_nfprobe.pipeline.statistics import Distribution, Statistics

LATE_QUANTILE = 0.999  # of all latencies: packets above it are in the table of causes


class LatenessStatistics(Statistics):
    """Statistics that also keep the largest latencies of packets with a timestamp of their own that were identified as
    slow.

    Where not all packets are identified, the distribution holds for the others only the bound that polls give: it can
    exceed every latency that is known exactly, and then no packet would be late.
    """

    def __init__(self) -> None:
        super().__init__()
        self._largest = np.empty(0, np.uint64)

    def add(self, columns: Columns) -> None:
        """Adds the packets of these columns."""
        super().add(columns)
        packets = columns.packets
        rows = np.flatnonzero((packets["flags"] & PacketFlag.ARRIVAL_KNOWN) & (packets["disposition"] != UNKNOWN))
        rows = rows[packets["batch"][rows] < len(columns.batches)]
        of_batch = columns.batches["flags"][packets["batch"][rows]]
        rows = rows[(of_batch & (BatchFlag.CHOSEN | BatchFlag.DRAWN)) == BatchFlag.CHOSEN]
        if len(rows):
            latency = counted_latency_ticks(columns)[rows]
            self._largest = np.concatenate((self._largest, latency[latency > 0]))
            if len(self._largest) > JUDGED_MAX:
                self._largest = np.partition(self._largest, -JUDGED_MAX)[-JUDGED_MAX:]

    def find_late_ticks(self, quantile: float) -> int:
        """Returns the latency threshold in ticks that this share of all packets stays below."""
        late_ticks = self.quantile(Distribution.PACKET_TICKS, quantile)
        packets = sum(int(count) for _, count in self.histogram(Distribution.PACKET_TICKS))
        rank = min(math.ceil((1 - quantile) * packets), JUDGED_MAX)
        if not 0 < rank <= len(self._largest):
            return late_ticks
        return min(late_ticks, int(np.partition(self._largest, -rank)[-rank]))
