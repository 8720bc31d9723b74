# SPDX-License-Identifier: Apache-2.0
"""Replay: passes a recording through the pipeline, as in the session.

Replays of a recording always give the same columns in the same order, so it can be replayed twice: to find the relevant
parts, and to examine them. Drained in the session's steps, the columns are exactly those of the session. Memory is
bounded by ROUND_RECORDS, not by the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import ANCHOR, Clock
from otel_nfprobe.base.columns import COST, COUNTER_COST, RECORD, Columns, Rows, convert_arrivals, counter_cost_rows
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.causes.arrivals import Matches
from otel_nfprobe.counters.namelist import read_names
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.pipeline.absences import ABSENCE, ABSENCES_MAX, keep_longest, no_absences
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.queue_drops import QUEUE_DROP, QUEUE_DROPS_MAX, no_queue_drops
from otel_nfprobe.pipeline.repeats import Repeats
from otel_nfprobe.profiling.samples import SAMPLE, SAMPLES_MAX, AddressRange, CountColumns, Words, no_samples
from otel_nfprobe.recording import recording
from otel_nfprobe.recording.recording import Block, RecordingHeader, RecordingReader
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo, ThreadTotals
from otel_nfprobe.shm.session import PROBE_COUNT

ROUND_RECORDS = 1 << 16  # their columns fit in the cache
COST_ROWS_MAX = 1 << 20


@dataclass
class RecordingFacts:
    """Everything in a recording except its records.

    `functions` and `threads` are by ID and index, `counters` the latest of each thread, `countings` the counter sets
    used after the first one; `sample_counts` the increase before each of `samples`, by counter; `summary` is empty and
    `complete` false if the recording is truncated; `damage` is a sentence, or empty. `arrivals`: those known from a
    capture file; `names`: of numbers in records.
    """

    header: RecordingHeader
    functions: dict[int, FunctionInfo] = field(default_factory=dict)
    threads: dict[int, ThreadInfo] = field(default_factory=dict)
    counters: dict[int, ThreadTotals] = field(default_factory=dict)
    anchors: Rows = field(default_factory=lambda: np.empty(0, ANCHOR))
    absences: Rows = field(default_factory=no_absences)
    queue_drops: Rows = field(default_factory=no_queue_drops)
    samples: Rows = field(default_factory=no_samples)
    sample_counts: dict[str, Words] = field(default_factory=dict)
    places: list[AddressRange] = field(default_factory=list)
    countings: dict[int, CounterSet] = field(default_factory=dict)
    summary: dict[str, object] = field(default_factory=dict)
    complete: bool = False
    damage: str = ""
    arrivals: Matches | None = None
    names: NumberNames = field(default_factory=NumberNames)

    @property
    def function_names(self) -> list[str]:
        """Returns names by function ID; empty if missing in the recording."""
        count = max(self.functions, default=-1) + 1
        return [self.functions[id].name if id in self.functions else "" for id in range(count)]

    @property
    def roles(self) -> NDArray[np.uint8]:
        """Returns the role (enum nfp_role) by function ID."""
        roles = np.zeros(max(self.functions, default=-1) + 1, np.uint8)
        for id, function in self.functions.items():
            roles[id] = function.role
        return roles

    @property
    def costs(self) -> Rows:
        """Returns the overhead of a probed call of each function (dtype COST), by function ID."""
        rows = np.zeros(max(self.functions, default=-1) + 1, COST)
        for id, function in self.functions.items():
            ticks = np.nan_to_num([function.probe_inside_ticks, function.probe_whole_ticks])
            rows[id] = tuple(np.clip(np.round(ticks), 0, 0xFFFF))
        return rows

    @property
    def counter_costs(self) -> Rows:
        """Returns what the probes of a call add to counters (dtype COUNTER_COST), by function ID."""
        items = self.functions.values()
        return counter_cost_rows({item.id: (item.probe_inside_counts, item.probe_whole_counts) for item in items})

    @property
    def counter_sets(self) -> list[CounterSet]:
        """Returns all counter sets of the session, the first one first."""
        names = read_names(self.header.settings.get("counter_choice", ""))
        return [CounterSet(0, tuple(names), self.counter_costs), *self.countings.values()]

    def learn_counting(self, counted: CounterSet) -> None:
        """Adds a counter set; the overhead of its probes is ignored if the recording has too much of it."""
        known = sum(len(item.costs) for item in self.countings.values())
        fits = known + len(counted.costs) <= COST_ROWS_MAX
        self.countings[counted.number] = counted if fits else counted._replace(costs=np.zeros(0, COUNTER_COST))

    @property
    def ticks_per_second(self) -> float:
        """Returns the rate known at the start of the session."""
        rate = self.header.ticks_per_second
        return rate if 1e6 < rate < 1e11 else 1e9

    def make_clock(self) -> Clock:
        """Returns the recording's clock; if it was truncated before the first anchor, at the header's nominal rate.

        Raises:
            UsageError: the anchors are damaged.
        """
        anchors = self.anchors
        if not len(anchors):
            anchors = np.array([(0, 0, round(1e9 / self.ticks_per_second * 2**32))], ANCHOR)
        return Clock.from_anchors(anchors, 0)


def read_facts(reader: RecordingReader) -> RecordingFacts:
    """Reads the recording once, without its records."""
    facts = RecordingFacts(reader.header)
    anchors: list[Rows] = []
    absences: list[Rows] = []
    drops: list[Rows] = []
    samples: list[Rows] = []
    counts = CountColumns()
    for block in reader.blocks(leave_out=(recording.RECORDS, recording.TAKE, recording.PART, recording.SUBMIT)):
        if block.type == recording.FUNCTIONS:
            facts.functions.update({item.id: item for item in block.payload if item.id < PROBE_COUNT})
        elif block.type == recording.THREADS:
            facts.threads.update({item.index: item for item in block.payload if item.tid})
        elif block.type == recording.COUNTERS:
            facts.counters.update({item.index: item for item in block.payload})
        elif block.type == recording.CLOCK:
            anchors.append(block.array(ANCHOR))
        elif block.type == recording.ABSENCES:
            absences.append(block.array(ABSENCE))
            if sum(map(len, absences)) > 2 * ABSENCES_MAX:  # an hour of interrupts, or a file that is hostile
                absences = [keep_longest(np.concatenate(absences), ABSENCES_MAX)]
        elif block.type == recording.QUEUE_DROPS and sum(map(len, drops)) < QUEUE_DROPS_MAX:
            drops.append(block.array(QUEUE_DROP))
        elif block.type == recording.SAMPLES:
            samples.append(block.array(SAMPLE))
            counts.add_samples(len(samples[-1]))
        elif block.type == recording.SAMPLE_COUNTS:
            counts.add(block.payload)
        elif block.type == recording.COUNTING:
            facts.learn_counting(block.payload)
        elif block.type == recording.PLACES:
            facts.places += block.payload
        elif block.type == recording.NAMES:
            facts.names.learn([block.payload])
    if samples:
        facts.samples, facts.sample_counts = np.concatenate(samples)[:SAMPLES_MAX], counts.finish()
    if anchors:
        facts.anchors = np.concatenate(anchors)
    if absences:
        facts.absences = keep_longest(np.concatenate(absences), ABSENCES_MAX)
    if drops:
        facts.queue_drops = np.concatenate(drops)[:QUEUE_DROPS_MAX]
    facts.summary, facts.complete, facts.damage = reader.summary, reader.complete, reader.damage
    return facts


def replay(
    reader: RecordingReader, facts: RecordingFacts, pipeline: Pipeline, repeats: Repeats | None = None
) -> Iterator[Columns]:
    """Feeds all records to a new pipeline (made with facts.roles) and yields its columns, drain by drain.

    Arrival times are in ticks; repeated packets are marked, by `repeats` if given, otherwise per second. Damage ends
    the replay early; `facts.damage` describes it.
    """
    for step in replay_steps(reader, facts, pipeline, repeats, ROUND_RECORDS):
        if isinstance(step, Columns):
            yield step


def replay_steps(
    reader: RecordingReader,
    facts: RecordingFacts,
    pipeline: Pipeline,
    repeats: Repeats | None = None,
    round_records: int = 0,
) -> Iterator[Columns | Block]:
    """As replay, with THREADS, ABSENCES, QUEUE_DROPS and SUBMIT blocks between the columns, as the session wrote them.

    Args:
        round_records: drain after this many records; 0: where the session did.
    """
    rounds = _Rounds(pipeline, facts, repeats or Repeats(), round_records)
    for block in reader.blocks():
        if block.type == recording.RECORDS:
            yield from rounds.feed(block)
        elif block.type == recording.TAKE:
            yield from rounds.take_noted(bool(block.thread))
        elif block.type == recording.PART:
            yield from rounds.take_noted(is_part=True)
        elif block.type == recording.COUNTING:
            pipeline.set_counter_set(block.payload.number, block.payload.costs)
        elif block.type in (recording.THREADS, recording.ABSENCES, recording.QUEUE_DROPS, recording.SUBMIT):
            if block.type == recording.THREADS:
                rounds.end_threads(block.payload)
            yield block
    facts.complete, facts.damage = reader.complete, reader.damage
    yield from rounds.finish()


class _Rounds:
    # Drains where the session did or, if the recording does not say, at the end of a drain round.
    def __init__(self, pipeline: Pipeline, facts: RecordingFacts, repeats: Repeats, round_records: int) -> None:
        self._pipeline = pipeline
        self._clock = facts.make_clock()
        self._arrivals = facts.arrivals
        self._repeats = repeats
        self._round_records = round_records
        self._noted = False  # whether the recording says where columns were drained
        self._fed = self._last_count = 0
        self._last_thread = -1

    def feed(self, block: Block) -> Iterator[Columns | Block]:
        count = len(block.payload) // RECORD.itemsize
        if not self._noted:
            # A drain round visits the threads in order; a long drain of a thread is written as several blocks.
            again = block.thread == self._last_thread and self._last_count < recording.RECORDS_PER_BLOCK
            if (block.thread < self._last_thread or again) and self._fed >= ROUND_RECORDS:
                yield self._take()
                yield Block(recording.SUBMIT, 0, b"")
            self._last_thread, self._last_count = block.thread, count
        self._pipeline.feed(block.thread, block.array(RECORD))
        self._fed += count

    def take_noted(self, is_over: bool = False, is_part: bool = False) -> Iterator[Columns]:
        self._noted = True
        if is_over:
            self._pipeline.finish()
        if is_over or self._fed >= self._round_records:
            yield self._take(is_part)

    def end_threads(self, threads: list[ThreadInfo]) -> None:
        self._pipeline.end_threads([item.index for item in threads if not item.tid])  # their rings are reused

    def finish(self) -> Iterator[Columns | Block]:
        self._pipeline.finish()
        yield self._take()
        yield Block(recording.SUBMIT, 0, b"")

    def _take(self, is_part: bool = False) -> Columns:
        self._fed = 0
        columns = self._pipeline.take(is_part)
        convert_arrivals(columns.packets, self._clock.convert_back)
        if self._arrivals is not None:
            self._arrivals.apply(columns, self._clock)
        self._repeats.mark(columns.packets, self._clock)
        return columns
