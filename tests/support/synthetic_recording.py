# SPDX-License-Identifier: Apache-2.0
"""A recording made up: 40 batches of 8 packets, received, worked on and transmitted; one batch is slow."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.profiling.samples import CountedSamples
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from tests.support.synthetic_records import RECEIVE, TRANSMIT, Row, burst, entry, hand_on, leave, poll, records

BATCHES, BATCH_SIZE, TICKS_PER_NS = 40, 8, 2
PACKETS = BATCHES * BATCH_SIZE
SLOW_BATCH = 25
START_NS = 1_700_000_000 * 10**9
RX, WORK, TX = 0, 1, 2


def write_recording(
    path: Path,
    finish: bool = True,
    start_ns: int = START_NS,
    session: str = "00000000000000aa",
    samples: CountedSamples | None = None,
) -> Path:
    """Writes it; without `finish` it looks as if its monitor was killed. Another session has other trace ids."""
    resource = {"service.name": "recorded-nf", "host.name": "far-away", "process.pid": "42"}
    header = RecordingHeader("0.1.0", session, 42, "/bin/nf", "far-away", start_ns, 2e9, resource, {})
    writer = RecordingWriter(path, header)
    roles = ((RX, RECEIVE, "nf_rx"), (WORK, 0, "nf_work"), (TX, TRANSMIT, "nf_tx"))
    writer.functions(
        [FunctionInfo(i, role, "/bin/nf", 64 * i, 64, name, "symbol", "in-stack") for i, role, name in roles]
    )
    writer.threads([ThreadInfo(0, 4711, "worker")])
    writer.clock(np.array([(0, start_ns, (1 << 32) // TICKS_PER_NS)], dtype=ANCHOR))
    writer.records(0, records([row for number in range(BATCHES) for row in make_batch(number)]))
    if samples is not None:
        writer.samples(*samples)
    writer.finish({}) if finish else writer.close()
    return path


def make_batch(number: int) -> list[Row]:
    at = 1_000_000 + number * 100_000
    work = 60_000 if number == SLOW_BATCH else 2_000
    buffers = [0x1000 + 64 * (number * BATCH_SIZE + i) for i in range(BATCH_SIZE)]
    rows = [*poll(RX, at, at + 400, 0x900, BATCH_SIZE), *burst(RX, buffers)]
    rows += [entry(WORK, at + 500, 0x800), leave(WORK, at + 500 + work, 0x800)]
    return rows + hand_on(TX, at + 600 + work, at + 900 + work, 0x700, buffers)
