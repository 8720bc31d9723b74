# SPDX-License-Identifier: Apache-2.0
"""From which latency on a packet of a recording is late. Columns in, take by take; read by report, tables and flame."""

from __future__ import annotations

import math

import numpy as np

from otel_nfprobe.base.columns import UNKNOWN, BatchFlag, Columns, PacketFlag, latency_ticks
from otel_nfprobe.causes.causes import JUDGED_MAX
from otel_nfprobe.pipeline.statistics import Distribution, Statistics

LATE_QUANTILE = 0.999  # of all latencies: later packets are in the table of causes


class LatenessStatistics(Statistics):
    """Statistics that know the largest latencies of packets with a stamp of their own, identified as they are slow.

    Where not all packets are identified, the distribution of all of them has the others with the bound that polls give:
    it can lie above every latency that is known better, and then no packet would be late.
    """

    def __init__(self) -> None:
        super().__init__()
        self._largest = np.empty(0, np.uint64)

    def add(self, columns: Columns) -> None:
        """Looks at one take."""
        super().add(columns)
        packets = columns.packets
        rows = np.flatnonzero((packets["flags"] & PacketFlag.ARRIVAL_KNOWN) & (packets["disposition"] != UNKNOWN))
        rows = rows[packets["batch"][rows] < len(columns.batches)]
        of_batch = columns.batches["flags"][packets["batch"][rows]]
        rows = rows[(of_batch & (BatchFlag.CHOSEN | BatchFlag.DRAWN)) == BatchFlag.CHOSEN]
        if len(rows):
            latency = latency_ticks(columns)[rows]
            self._largest = np.concatenate((self._largest, latency[latency > 0]))
            if len(self._largest) > JUDGED_MAX:
                self._largest = np.partition(self._largest, -JUDGED_MAX)[-JUDGED_MAX:]

    def find_late_ticks(self, quantile: float) -> int:
        """From which latency on a packet is late: later than this share of all packets."""
        late_ticks = self.quantile(Distribution.PACKET_TICKS, quantile)
        packets = sum(int(count) for _, count in self.histogram(Distribution.PACKET_TICKS))
        rank = min(math.ceil((1 - quantile) * packets), JUDGED_MAX)
        if not 0 < rank <= len(self._largest):
            return late_ticks
        return min(late_ticks, int(np.partition(self._largest, -rank)[-rank]))
