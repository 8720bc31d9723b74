# SPDX-License-Identifier: Apache-2.0
"""How fast a recording is written and read, and how large it is: records per second of one core, bytes per record.

The streams are those of bench_pipeline.py. Written is by `RecordingWriter` with its thread; times of one core are CPU
times of this process, so that a busy disk or machine does not count. The first run of each is not counted.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RECORDS, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from tests.benchmarks.bench_pipeline import RING_BYTES, RING_BYTES_SHORT, ROLES, STREAMS, stream
from tests.benchmarks.rounds import Spread, make_parser, spent_s, spread, write_figures

ROUND = 16384  # records of one drain
RUNS = 5


def varied_stream(work_calls: int, packets: bool, ring_bytes: int = RING_BYTES) -> Rows:
    """As they come out of the drain; time stamps vary as they do on a machine: by some ticks."""
    records = stream(work_calls, packets, ring_bytes)
    timed = (records["tag"] >> 24) <= 2
    records["value"][timed] += np.random.default_rng(1).integers(0, 9, timed.sum()).astype(np.uint64)
    return records


def rate(records: int, runs: int, do: Callable[[], object]) -> Spread:
    """Records per second of CPU time. The first run is not counted."""
    rates = []
    for _ in range(runs + 1):
        begin_s = spent_s()
        do()
        rates.append(records / (spent_s() - begin_s))
    return spread(rates[1:])


def write(path: Path, records: Rows) -> None:
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
    arguments = make_parser(__doc__).parse_args()
    ring_bytes, runs = (RING_BYTES_SHORT, 1) if arguments.short else (RING_BYTES, RUNS)
    print(f"recording, one core, CPU time, medians of {runs} runs with quartiles; in M records/s")
    print(f"{'':46s} bytes/record                 write                  read   read + pair + batch")
    figures = {}
    for name, (work_calls, packets) in STREAMS.items():
        records = varied_stream(work_calls, packets, ring_bytes)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "r.nfp")
            rates = {
                "write": rate(len(records), runs, lambda: write(path, records)),  # noqa: B023
                "read": rate(len(records), runs, lambda: read(path)),  # noqa: B023
                "replay": rate(len(records), runs, lambda: run(path)),  # noqa: B023
            }
            assert read(path) == len(records)
            size = os.path.getsize(path) / len(records)
        figures[name] = {"bytes_per_record": size, **rates}
        shown = (f"{r.median / 1e6:7.1f} ({r.low / 1e6:5.1f} .. {r.high / 1e6:5.1f})" for r in rates.values())
        print(f"{name:46s} {size:12.2f} {' '.join(shown)}", flush=True)
    write_figures(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
