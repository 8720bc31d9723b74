# SPDX-License-Identifier: Apache-2.0
"""Replay: a recording through the pipeline, as if the session ran again. Used by report.py and cli/export.py.

A replay of one recording always gives the same columns in the same order, so that it can be run twice: once
to find what matters and once to look at it. Memory is bounded by ROUND_RECORDS, not by the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe import recording
from otel_nfprobe.clock import ANCHOR, Clock
from otel_nfprobe.columns import COST, RECORD, Columns, Rows, convert_arrivals
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import FunctionInfo, RecordingHeader, RecordingReader, ThreadCounters, ThreadInfo
from otel_nfprobe.repeats import Repeats
from otel_nfprobe.switches import SWITCH, SWITCHES_MAX, no_switches

ROUND_RECORDS = 1 << 18
FUNCTIONS_MAX = 1 << 16  # function ids are indices of the session's probe table


@dataclass
class RecordingFacts:
    """Everything in a recording but its records.

    `functions` and `threads` are by id and index, `counters` the newest of each thread; `summary` is empty
    and `complete` false when the recording was cut; `damage` is a sentence, or empty.
    """

    header: RecordingHeader
    functions: dict[int, FunctionInfo] = field(default_factory=dict)
    threads: dict[int, ThreadInfo] = field(default_factory=dict)
    counters: dict[int, ThreadCounters] = field(default_factory=dict)
    anchors: Rows = field(default_factory=lambda: np.empty(0, ANCHOR))
    switches: Rows = field(default_factory=no_switches)
    summary: dict[str, object] = field(default_factory=dict)
    complete: bool = False
    damage: str = ""

    @property
    def function_names(self) -> list[str]:
        """Names by function id; empty where a recording leaves one out."""
        count = max(self.functions, default=-1) + 1
        return [self.functions[id].name if id in self.functions else "" for id in range(count)]

    @property
    def roles(self) -> NDArray[np.uint8]:
        """Role (enum nfp_role) by function id."""
        roles = np.zeros(max(self.functions, default=-1) + 1, np.uint8)
        for id, function in self.functions.items():
            roles[id] = function.role
        return roles

    @property
    def costs(self) -> Rows:
        """What a probed call of each function costs by itself (dtype COST), by function id."""
        rows = np.zeros(max(self.functions, default=-1) + 1, COST)
        for id, function in self.functions.items():
            ticks = np.nan_to_num([function.probe_inside_ticks, function.probe_whole_ticks])
            rows[id] = tuple(np.clip(np.round(ticks), 0, 0xFFFF))
        return rows

    def make_clock(self) -> Clock:
        """The recording's clock; when it was cut before the first anchor, the header's nominal rate.

        Raises:
            UsageError: the anchors are damaged.
        """
        anchors = self.anchors
        if not len(anchors):
            rate = self.header.ticks_per_second if 1e6 < self.header.ticks_per_second < 1e11 else 1e9
            anchors = np.array([(0, 0, round(1e9 / rate * 2**32))], ANCHOR)
        return Clock.from_anchors(anchors, 0)


def read_facts(reader: RecordingReader) -> RecordingFacts:
    """Reads the recording once, its records not looked at."""
    facts = RecordingFacts(reader.header)
    anchors: list[Rows] = []
    switches: list[Rows] = []
    for block in reader.blocks():
        if block.type == recording.FUNCTIONS:
            facts.functions.update({item.id: item for item in block.payload if item.id < FUNCTIONS_MAX})
        elif block.type == recording.THREADS:
            facts.threads.update({item.index: item for item in block.payload if item.tid})
        elif block.type == recording.COUNTERS:
            facts.counters.update({item.index: item for item in block.payload})
        elif block.type == recording.CLOCK:
            anchors.append(block.array(ANCHOR))
        elif block.type == recording.SWITCHES:
            switches.append(block.array(SWITCH))
    if anchors:
        facts.anchors = np.concatenate(anchors)
    if switches:
        facts.switches = np.concatenate(switches)[:SWITCHES_MAX]
    facts.summary, facts.complete, facts.damage = reader.summary, reader.complete, reader.damage
    return facts


def replay(
    reader: RecordingReader, facts: RecordingFacts, pipeline: Pipeline, repeats: Repeats | None = None
) -> Iterator[Columns]:
    """Feeds all records to a fresh pipeline (made with facts.roles) and yields what it gives, take by take.

    Arrival times are in ticks; repeated packets are marked, by `repeats` where other windows than a second's
    are wanted. Damage ends it early; `facts.damage` says so.
    """
    clock = facts.make_clock()
    repeats = repeats or Repeats()
    fed = last_count = 0
    last_thread = -1
    for block in reader.blocks():
        if block.type == recording.THREADS:
            for item in block.payload:
                if not item.tid:  # ended: its ring goes to another thread
                    pipeline.end_thread(item.index)
        if block.type != recording.RECORDS:
            continue
        count = len(block.payload) // RECORD.itemsize
        # A drain round goes over the threads in order; a thread's long drain is written as several blocks.
        again = block.thread == last_thread and last_count < recording.RECORDS_PER_BLOCK
        if (block.thread < last_thread or again) and fed >= ROUND_RECORDS:
            yield _take(pipeline, clock, repeats)
            fed = 0
        pipeline.feed(block.thread, block.array(RECORD))
        fed += count
        last_thread, last_count = block.thread, count
    pipeline.finish()
    yield _take(pipeline, clock, repeats)


def _take(pipeline: Pipeline, clock: Clock, repeats: Repeats) -> Columns:
    columns = pipeline.take()
    convert_arrivals(columns.packets, clock.convert_back)
    repeats.mark(columns.packets, clock)
    return columns
