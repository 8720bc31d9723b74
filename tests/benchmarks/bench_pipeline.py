# SPDX-License-Identifier: Apache-2.0
"""How fast one core drains, pairs and batches: records per second, median of several runs.

The stream is that of a forwarder: an engine call around receive, work and transmit, with or without packets.
Run it by hand or by `make bench`; no test depends on what it prints.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from otel_nfprobe._core import ffi, lib

from otel_nfprobe.columns import RECORD
from otel_nfprobe.pipeline import Pipeline

ENTRY, EXIT, POLL_ENTRY, POLL_EXIT, VALUE, PACKET, PACKET_ID, PACKET_V4 = 0, 1, 2, 3, 4, 8, 9, 10
ENGINE, RECEIVE, TRANSMIT, WORK = 0, 1, 2, 3
RING_BYTES = 16 << 20
CHUNK = 16384
BURST = 32
RUNS = 7


def batch_records(work_calls: int, packets: bool) -> list[tuple[int, int, int]]:
    """One iteration of the engine: (word, tag, rsp); words of time are offsets from its start."""
    tick = iter(range(0, 1 << 20, 10))
    rows = [(next(tick), ENTRY << 24 | ENGINE, 9000), (next(tick), POLL_ENTRY << 24 | RECEIVE, 8000)]
    rows.append((next(tick), POLL_EXIT << 24 | RECEIVE, BURST | BURST << 16))
    if packets:
        rows += packet_records(RECEIVE)
    for _ in range(work_calls):
        rows += [(next(tick), ENTRY << 24 | WORK, 8000), (next(tick), EXIT << 24 | WORK, 8000)]
    rows.append((next(tick), ENTRY << 24 | TRANSMIT, 8000))
    if packets:
        rows += packet_records(TRANSMIT)
    rows.append((BURST | BURST << 32, VALUE << 24 | TRANSMIT, 8000))
    rows += [(next(tick), EXIT << 24 | TRANSMIT, 8000), (next(tick), EXIT << 24 | ENGINE, 9000)]
    return rows


def packet_records(function: int) -> list[tuple[int, int, int]]:
    rows = []
    for i in range(BURST):
        rows.append((0x10000 + i * 2304, PACKET << 24 | function, 64 | i << 16))
        rows.append((0x1234567 * (i + 1), PACKET_ID << 24 | function, i | 17 << 16 | 4 << 24))
        rows.append((0x0A000001 | 0x0A000002 << 32, PACKET_V4 << 24 | function, 1000 | 2000 << 16))
    return rows


def full_ring(work_calls: int, packets: bool) -> np.ndarray:
    """A ring of lap 0, filled with whole batches and then zeros."""
    one = np.array(batch_records(work_calls, packets), RECORD)
    count = RING_BYTES // 16 // len(one)
    ring = np.zeros(RING_BYTES // 16, RECORD)
    body = np.tile(one, count)
    batch = np.repeat(np.arange(count, dtype=np.uint64), len(one))
    kind = body["tag"] >> 24
    timed = kind <= POLL_EXIT
    body["word"][timed] += batch[timed] * np.uint64(5000) + np.uint64(1000)
    buffers = kind == PACKET
    body["word"][buffers] += (batch[buffers] % np.uint64(512)) * np.uint64(BURST * 2304)
    body["tag"] |= np.uint32(0x80000000)
    ring[: len(body)] = body
    return ring


def run_once(ring: np.ndarray) -> tuple[float, int, int]:
    roles = np.array([0, 1, 2, 0], np.uint8)
    staging = ffi.new("struct nfp_record[]", CHUNK)
    columns = ffi.new("struct nfp_columns *")
    hole = ffi.new("struct nfp_drain_hole *")
    position = ffi.new("uint64_t *")
    base = ffi.from_buffer("uint8_t[]", ring)
    records = batches = 0
    with Pipeline(roles) as pipeline:
        begin = time.perf_counter()
        while True:
            count = lib.nfp_drain(base, RING_BYTES, position, 0, staging, CHUNK, hole)
            if not count:
                break
            pipeline.feed_raw(0, staging, count)
            lib.nfp_pipeline_take(pipeline._pipeline, columns)
            records, batches = records + count, batches + columns.batch_count
        seconds = time.perf_counter() - begin
        counts = pipeline.counts()
    assert batches == counts.batches - 1 or batches == counts.batches
    assert counts.unpaired_entries == counts.unpaired_exits == counts.invalid == counts.generated == 0
    assert counts.discarded == counts.unknown == 0
    return seconds, records, batches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figure of the second stream there")
    arguments = parser.parse_args()
    medians = []
    print("drain + pair + batch, one core, 16 MiB ring, taken every 16,384 records")
    for name, work_calls, packets in (
        ("calls: engine, receive, transmit, 32 inner", 32, False),
        ("calls: engine, receive, transmit", 0, False),
        ("packets: the same, 32 x 3 records twice", 0, True),
    ):
        ring = full_ring(work_calls, packets)
        rates = []
        for _ in range(RUNS):
            seconds, records, batches = run_once(ring)
            rates.append(records / seconds / 1e6)
        low, high = min(rates), max(rates)
        medians.append(statistics.median(rates))
        print(
            f"{name:46s} {statistics.median(rates):7.1f} M records/s"
            f"  (of {RUNS} runs: {low:.1f} to {high:.1f}; {records:,} records, {batches:,} batches)"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"records_per_second": medians[1] * 1e6}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
