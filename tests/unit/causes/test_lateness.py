# SPDX-License-Identifier: Apache-2.0
"""From which latency on a packet of a recording is late, where only some packets' stamps were read."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.columns import BATCH, CALL, PACKET, BatchFlag, Columns, PacketFlag
from otel_nfprobe.causes.lateness import LatenessStatistics
from otel_nfprobe.pipeline.statistics import Distribution

QUANTILE = 0.9
BOUND_TICKS = 1_000_000  # what polls say of packets without stamps; each has waited for 100 to 199 ticks in truth


def make_columns(flags: int, stamped: bool = True) -> Columns:
    """100 identified packets in ten batches, latest ones last."""
    batches, packets = np.zeros(10, BATCH), np.zeros(100, PACKET)
    batches["id"], batches["flags"] = np.arange(10), flags
    batches["start_ticks"] = 10 * BOUND_TICKS + np.arange(10)
    batches["earliest_ticks"] = batches["start_ticks"] - BOUND_TICKS
    batches["end_ticks"] = batches["start_ticks"] + 1
    batches["size"] = batches["packets"] = 10
    batches["first_packet"] = np.arange(10) * 10
    packets["batch"], packets["index"] = np.arange(100) // 10, np.arange(100) % 10
    packets["disposition"] = 1
    packets["done_ticks"] = batches["start_ticks"][packets["batch"]] + 50
    packets["arrival_ticks"] = packets["done_ticks"] - 100 - np.arange(100, dtype=np.uint64)
    packets["flags"] = PacketFlag.ARRIVAL_KNOWN if stamped else 0
    return Columns(np.zeros(0, CALL), batches, packets)


@pytest.fixture
def statistics() -> LatenessStatistics:
    """Of 500 packets by their bound."""
    known = LatenessStatistics()
    for _ in range(5):
        known.add(make_columns(0, stamped=False))
    assert known.quantile(Distribution.PACKET_TICKS, QUANTILE) >= BOUND_TICKS
    return known


def test_the_latest_of_those_that_are_known(statistics: LatenessStatistics) -> None:
    statistics.add(make_columns(BatchFlag.CHOSEN))  # whose calls, not these packets, say how many there were
    assert statistics.find_late_ticks(QUANTILE) == 150  # 50 of 500 packets are later than that, or as late


@pytest.mark.parametrize(
    ("flags", "stamped"),
    [(0, True), (BatchFlag.CHOSEN | BatchFlag.DRAWN, True), (BatchFlag.CHOSEN, False)],
    ids=["all are identified", "a sample", "no stamps"],
)
def test_the_quantile_of_all_else(statistics: LatenessStatistics, flags: int, stamped: bool) -> None:
    statistics.add(make_columns(flags, stamped))
    assert statistics.find_late_ticks(QUANTILE) == statistics.quantile(Distribution.PACKET_TICKS, QUANTILE)


def test_too_few_are_known(statistics: LatenessStatistics) -> None:
    assert statistics.find_late_ticks(QUANTILE) >= BOUND_TICKS
