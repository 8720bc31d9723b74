# SPDX-License-Identifier: Apache-2.0
"""How fast a recording is written and read, and how large it is: records per second of one core, bytes per record.

The streams are those of bench_pipeline.py. Written is by `RecordingWriter` with its thread; times of one core are CPU
times of this process, so that a busy disk or machine does not count. Run it by hand or by `make bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_pipeline import full_ring

from otel_nfprobe.clock import ANCHOR
from otel_nfprobe.columns import RECORD
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import RECORDS, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.replay import read_facts, replay
from otel_nfprobe.sessionfacts import FunctionInfo

ROLES = (0, 1, 2, 0)
ROUND = 16384  # records of one drain
RUNS = 5


def stream(work_calls: int, packets: bool) -> np.ndarray:
    """Records as they come out of the drain; time stamps vary as they do on a machine, by some dozens of ticks."""
    records = full_ring(work_calls, packets).view(RECORD)
    records = records[records["tag"] != 0]
    records["tag"] &= 0x7FFFFFFF
    timed = (records["tag"] >> 24) <= 3
    timed &= (records["tag"] >> 24) != 3
    records["word"][timed] += np.random.default_rng(1).integers(0, 9, timed.sum()).astype(np.uint64)
    return records


def cpu_seconds(do: Callable[[], object]) -> float:
    begin = time.process_time()
    do()
    return time.process_time() - begin


def write(path: Path, records: np.ndarray) -> None:
    writer = RecordingWriter(path, RecordingHeader(ticks_per_second=2.6e9))
    writer.functions([FunctionInfo(id, role, "", id, 0, "", "", "") for id, role in enumerate(ROLES)])
    writer.clock(np.array([(0, 0, 1 << 31)], ANCHOR))
    for first in range(0, len(records), ROUND):
        writer.records(0, records[first : first + ROUND])
    writer.finish({})
    assert not writer.left_out


def read(path: Path) -> int:
    return sum(len(block.payload) for block in RecordingReader(path).blocks() if block.type == RECORDS) // 16


def run(path: Path) -> None:
    reader = RecordingReader(path)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        for _ in replay(reader, facts, pipeline):
            pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures of the second stream there")
    arguments = parser.parse_args()
    print("recording, one core, CPU time, medians; in M records/s")
    print(f"{'':46s} bytes/record   write    read    read + pair + batch")
    figures = []
    for name, work_calls, packets in (
        ("calls: engine, receive, transmit, 32 inner", 32, False),
        ("calls: engine, receive, transmit", 0, False),
        ("packets: the same, 32 x 3 records twice", 0, True),
    ):
        records = stream(work_calls, packets)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "r.nfp")
            writes = [cpu_seconds(lambda: write(path, records)) for _ in range(RUNS)]  # noqa: B023
            reads = [cpu_seconds(lambda: read(path)) for _ in range(RUNS)]  # noqa: B023
            runs = [cpu_seconds(lambda: run(path)) for _ in range(RUNS)]  # noqa: B023
            assert read(path) == len(records)
            size = os.path.getsize(path) / len(records)
        rates = [len(records) / statistics.median(seconds) / 1e6 for seconds in (writes, reads, runs)]
        figures.append(
            {"bytes_per_record": round(size, 2)} | dict(zip(("write", "read", "replay"), rates, strict=True))
        )
        print(f"{name:46s} {size:12.2f} {rates[0]:7.1f} {rates[1]:7.1f} {rates[2]:22.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures[1]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
