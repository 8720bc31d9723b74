# SPDX-License-Identifier: Apache-2.0
"""Columns made up from a seed, for tests of everything behind the pipeline."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base.columns import BATCH, CALL, NONE, PACKET, Columns

SECOND_TICKS = 2_500_000_000
START_TICKS = 10**15
START_NS = 1_700_000_000 * 10**9


def make_columns(packet_count: int, seed: int = 1, batch_size: int = 32, calls_per_batch: int = 5) -> Columns:
    """Batches of up to batch_size packets on two threads: dropped, unknown, with arrival times."""
    random = np.random.default_rng(seed)
    batch_count = -(-packet_count // batch_size)
    batches = np.zeros(batch_count, dtype=BATCH)
    calls = np.zeros(batch_count * calls_per_batch, dtype=CALL)
    packets = np.zeros(packet_count, dtype=PACKET)
    _fill_batches(batches, packet_count, batch_size, calls_per_batch, random)
    _fill_calls(calls, batches, calls_per_batch, random)
    _fill_packets(packets, batches, batch_size, random)
    return Columns(calls, batches, packets)


def move_columns(columns: Columns, start_ticks: int) -> None:
    """Moves all moments, so that the first batch starts at start_ticks."""
    # Modulo 2**64, because the way may lead backwards.
    distance = np.uint64((start_ticks - int(columns.batches["start_ticks"][0])) % 2**64)
    for array in (columns.calls, columns.batches, columns.packets):
        for name in array.dtype.names or ():
            if name.endswith("_ticks") and name != "self_ticks":
                array[name][array[name] > 0] += distance


def _fill_batches(
    batches: np.ndarray, packet_count: int, batch_size: int, calls_per_batch: int, random: np.random.Generator
) -> None:
    index = np.arange(len(batches))
    batches["id"] = index + 1000
    batches["start_ticks"] = START_TICKS + index * 50_000 + random.integers(0, 5000, len(batches))
    batches["end_ticks"] = batches["start_ticks"] + random.integers(10_000, 40_000, len(batches))
    batches["thread"] = index % 2
    batches["size"] = np.minimum(batch_size, packet_count - index * batch_size)
    batches["requested"] = batch_size
    batches["packets"] = batches["size"]
    batches["first_packet"] = index * batch_size
    batches["first_call"] = index * calls_per_batch
    batches["calls"] = calls_per_batch
    batches["flags"] = index % 32 % 27
    batches["earliest_ticks"] = np.where(index % 5, batches["start_ticks"] - index % 5 * 20_000, 0)


def _fill_calls(calls: np.ndarray, batches: np.ndarray, calls_per_batch: int, random: np.random.Generator) -> None:
    batch = np.arange(len(calls)) // calls_per_batch
    position = np.arange(len(calls)) % calls_per_batch
    length = (batches["end_ticks"] - batches["start_ticks"])[batch]
    calls["batch"] = batch
    calls["thread"] = batches["thread"][batch]
    calls["function"] = position % 4
    # Nested two by two: an even call encloses the odd one behind it.
    odd = position % 2 == 1
    slot = length // (calls_per_batch + 1)
    calls["start_ticks"] = batches["start_ticks"][batch] + slot * (position - odd) + 10 * odd
    calls["end_ticks"] = calls["start_ticks"] + np.where(odd, slot // 2, slot)
    calls["self_ticks"] = random.integers(1, 1000, len(calls))
    calls["depth"] = odd
    calls["parent"] = np.where(odd, np.arange(len(calls)) - 1, NONE)
    calls["flags"] = random.integers(0, 8, len(calls))
    calls["value"] = random.integers(0, 2**63, len(calls), dtype=np.uint64)


def _fill_packets(packets: np.ndarray, batches: np.ndarray, batch_size: int, random: np.random.Generator) -> None:
    count = len(packets)
    batch = np.arange(count) // batch_size
    packets["id"] = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    packets["digest"] = random.integers(1, 2**64, count, dtype=np.uint64)
    packets["done_digest"] = np.where(random.random(count) < 0.9, packets["digest"], packets["digest"] ^ np.uint64(5))
    packets["batch"] = batch
    packets["index"] = np.arange(count) % batch_size
    packets["receive_ticks"] = batches["start_ticks"][batch] + 300
    packets["done_ticks"] = batches["start_ticks"][batch] + random.integers(2_000, 10_000, count)
    packets["disposition"] = random.choice([0, 1, 1, 1, 1, 1, 1, 2], count)
    packets["done_ticks"][packets["disposition"] == 0] = 0
    packets["source"] = random.integers(0, 256, (count, 16))
    packets["destination"] = random.integers(0, 256, (count, 16))
    packets["destination"][:, 2:9] = 0
    packets["source_port"] = random.integers(0, 65536, count)
    packets["destination_port"] = random.integers(0, 65536, count)
    packets["length"] = random.integers(60, 1515, count)
    packets["protocol"] = random.choice([6, 17, 1, 58, 132, 47], count)
    packets["ip_version"] = random.choice([4, 4, 6, 0], count)
    packets["flags"] = random.integers(0, 4, count)
    arrived = (packets["flags"] & 1) > 0
    arrival = packets["receive_ticks"] - random.integers(0, 20_000, count).astype(np.uint64)
    packets["arrival_ticks"] = np.where(arrived, arrival, 0)
