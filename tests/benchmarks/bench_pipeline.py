# SPDX-License-Identifier: Apache-2.0
"""How fast one core drains, pairs and batches: records per second of CPU time, medians.

The streams are those of a forwarder: an engine call around receive, work and transmit, with or without packets, in a
ring that is written as the tests write theirs. The first run of each stream is not counted.
"""

from __future__ import annotations

import sys

import numpy as np

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import RECORD, Rows
from otel_nfprobe.pipeline.pipeline import Pipeline
from tests.benchmarks.rounds import make_parser, spent_s, spread, write_figures
from tests.support.synthetic_records import Row, entry, leave, poll, record, value
from tests.support.written_ring import WrittenRing

PACKET, PACKET_ID, PACKET_V4, TIMED_LAST = 8, 9, 10, 3
ENGINE, RECEIVE, TRANSMIT, WORK = 0, 1, 2, 3
ROLES = (0, 1, 2, 0)
RING_BYTES, RING_BYTES_SHORT = 16 << 20, 1 << 20
CHUNK = 16384
BURST = 32
TICKS_APART, TURN_TICKS = 10, 5000
RUNS = 7
STREAMS = {  # calls of the work function in a turn, and whether packets are described
    "calls: engine, receive, transmit, 32 inner": (32, False),
    "calls: engine, receive, transmit": (0, False),
    "packets: the same, 32 x 3 records twice": (0, True),
}


def turn_records(work_calls: int, packets: bool) -> list[Row]:
    """One turn of the engine; times are offsets from its start."""
    tick = iter(range(0, 1 << 20, TICKS_APART))
    rows = [entry(ENGINE, next(tick), 9000), *poll(RECEIVE, next(tick), next(tick), 8000, BURST, BURST)]
    if packets:
        rows += packet_records(RECEIVE)
    for _ in range(work_calls):
        rows += [entry(WORK, next(tick), 8000), leave(WORK, next(tick), 8000)]
    rows.append(entry(TRANSMIT, next(tick), 8000))
    if packets:
        rows += packet_records(TRANSMIT)
    rows.append(value(TRANSMIT, BURST | BURST << 32, 8000))
    return [*rows, leave(TRANSMIT, next(tick), 8000), leave(ENGINE, next(tick), 9000)]


def packet_records(function: int) -> list[Row]:
    rows = []
    for i in range(BURST):
        rows.append(record(PACKET, function, 0x10000 + i * 2304, 64 | i << 16))
        rows.append(record(PACKET_ID, function, 0x1234567 * (i + 1), i | 17 << 16 | 4 << 24))
        rows.append(record(PACKET_V4, function, 0x0A000001 | 0x0A000002 << 32, 1000 | 2000 << 16))
    return rows


def stream(work_calls: int, packets: bool, ring_bytes: int = RING_BYTES) -> Rows:
    """Whole turns, as many as a ring holds."""
    one = np.array(turn_records(work_calls, packets), RECORD)
    count = ring_bytes // RECORD.itemsize // len(one)
    records = np.tile(one, count)
    turn = np.repeat(np.arange(count, dtype=np.uint64), len(one))
    kind = records["tag"] >> 24
    timed, buffers = kind <= TIMED_LAST, kind == PACKET
    records["value"][timed] += turn[timed] * np.uint64(TURN_TICKS) + np.uint64(1000)
    records["value"][buffers] += (turn[buffers] % np.uint64(512)) * np.uint64(BURST * 2304)
    return records


def run_once(records: Rows, ring_bytes: int) -> tuple[float, int]:
    """Writes a ring and takes all that is in it. Returns CPU seconds of the latter, and batches."""
    ring = WrittenRing(ring_bytes)
    ring.write(records)
    staging, columns = ffi.new("struct nfp_record[]", CHUNK), ffi.new("struct nfp_columns *")
    taken = batches = 0
    with Pipeline(np.array(ROLES, np.uint8)) as pipeline:
        begin_s = spent_s()
        while count := ring.drain(staging)[0]:
            pipeline.feed_raw(0, staging, count)
            lib.nfp_pipeline_take(pipeline._pipeline, columns)
            taken, batches = taken + count, batches + columns.batch_count
        seconds = spent_s() - begin_s
        counts = pipeline.counts()
    assert taken == len(records), f"{taken} of {len(records)} records were taken"
    assert batches in (counts.batches - 1, counts.batches), (batches, counts)
    wrong = [counts.unpaired_entries, counts.unpaired_exits, counts.invalid, counts.generated]
    assert not any([*wrong, counts.discarded, counts.unknown]), counts
    return seconds, batches


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    ring_bytes, runs = (RING_BYTES_SHORT, 1) if arguments.short else (RING_BYTES, RUNS)
    figures = {}
    print(f"drain + pair + batch, one core, {ring_bytes >> 20} MiB ring, taken every {CHUNK:,} records; CPU time")
    for name, (work_calls, packets) in STREAMS.items():
        records = stream(work_calls, packets, ring_bytes)
        run_once(records, ring_bytes)
        found = [run_once(records, ring_bytes) for _ in range(runs)]
        rate = figures[name] = spread(len(records) / seconds for seconds, _ in found)
        print(
            f"{name:46s} {rate.median / 1e6:7.1f} M records/s (quartiles of {runs} runs: {rate.low / 1e6:.1f} .. "
            f"{rate.high / 1e6:.1f}; {len(records):,} records, {found[0][1]:,} batches)"
        )
    write_figures(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
