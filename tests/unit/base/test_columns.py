# SPDX-License-Identifier: Apache-2.0
"""Several takes become one; where a packet's life begins."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base import columns
from otel_nfprobe.base.columns import BATCH, CALL, NONE, PACKET, Columns, PacketFlag


def part(batch_id: int) -> Columns:
    calls, batches, packets = np.zeros(3, CALL), np.zeros(1, BATCH), np.zeros(2, PACKET)
    calls["parent"], calls["batch"] = [NONE, NONE, 1], [NONE, 0, 0]
    batches["id"], batches["first_call"], batches["calls"], batches["packets"] = batch_id, 1, 2, 2
    return Columns(calls, batches, packets)


def test_concatenate() -> None:
    whole = columns.concatenate([part(5), Columns(), part(6)])
    assert whole.calls["parent"].tolist() == [NONE, NONE, 1, NONE, NONE, 4]
    assert whole.calls["batch"].tolist() == [NONE, 0, 0, NONE, 1, 1]
    assert whole.batches["first_call"].tolist() == [1, 4]
    assert whole.batches["first_packet"].tolist() == [0, 2]
    assert whole.packets["batch"].tolist() == [0, 0, 1, 1]
    assert len(columns.concatenate([]).calls) == 0


def test_latency() -> None:
    batches, packets = np.zeros(1, BATCH), np.zeros(4, PACKET)
    batches["start_ticks"] = 1000
    packets["done_ticks"] = [1500, 1500, 1500, 0]
    packets["disposition"] = [1, 1, 2, 0]
    packets["arrival_ticks"] = [0, 700, 1200, 0]
    packets["flags"] = [0, 1, 1, 0]
    given = Columns(np.zeros(0, CALL), batches, packets)
    assert columns.life_start_ticks(given).tolist() == [1000, 700, 1000, 1000]
    assert columns.latency_ticks(given).tolist() == [500, 800, 500, 0]


def test_convert_arrivals() -> None:
    packets = np.zeros(3, PACKET)
    packets["arrival_ticks"] = [10, 20, 30]
    packets["flags"] = [PacketFlag.ARRIVAL_UNIX_NS, PacketFlag.ARRIVAL_KNOWN, 0]
    columns.convert_arrivals(packets, lambda ns: ns * np.uint64(3))
    assert packets["arrival_ticks"].tolist() == [30, 20, 30]
    assert packets["flags"].tolist() == [1, 1, 0]
