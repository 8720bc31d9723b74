# SPDX-License-Identifier: Apache-2.0
"""Bursts: which flow contributed most of the packets that arrived together. Pure: columns in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.columns import NONE, Columns, life_start_ticks

FLOW_FIELDS = ["source", "destination", "source_port", "destination_port", "protocol", "ip_version"]
BATCHES_MAX = 4096


def find_flow(columns: Columns, batches: NDArray[np.intp], packet: int) -> tuple[int, float]:
    """Finds the flow with the most packets in these batches, among those that arrived no later than `packet`.

    Args:
        batches: indices of columns.batches.

    Returns:
        index of a packet of that flow, or NONE, and the flow's share of the packets.
    """
    rows = columns.batches[batches[-BATCHES_MAX:]]
    indices = [
        np.arange(first, first + count)
        for first, count in zip(rows["first_packet"].tolist(), rows["packets"].tolist(), strict=True)
    ]
    chosen = np.concatenate(indices) if indices else np.empty(0, np.int64)
    if not len(chosen):
        return NONE, 0.0
    part = Columns(columns.calls, columns.batches, columns.packets[chosen])
    arrived = life_start_ticks(part)
    mine = life_start_ticks(Columns(columns.calls, columns.batches, columns.packets[packet : packet + 1]))[0]
    chosen = chosen[arrived <= mine]
    if not len(chosen):
        return NONE, 0.0
    flows = np.ascontiguousarray(columns.packets[chosen][FLOW_FIELDS])
    packed = _pack(flows)
    keys = packed.view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    most = int(np.argmax(counts))
    return int(chosen[first[most]]), float(counts[most] / len(chosen))


def _pack(flows: NDArray[np.void]) -> NDArray[np.uint8]:
    """Returns each flow's bytes without padding: shape (n, bytes)."""
    columns = [np.ascontiguousarray(flows[name]).view(np.uint8).reshape(len(flows), -1) for name in FLOW_FIELDS]
    return np.ascontiguousarray(np.concatenate(columns, axis=1))
