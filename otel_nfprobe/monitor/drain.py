# SPDX-License-Identifier: Apache-2.0
"""Drain: from the rings of a session to the recording, the pipeline, the statistics and the exporter.

The monitor's only loop while the target is measured. It never blocks on the disk or the Collector: a failed recording
and a full exporter are counted, and draining continues.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.base import TRANSMIT, VECTORS
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import RECORD, Columns, Rows, convert_arrivals
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.numbernames import NumberNames
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.counters.sets import CounterSet, SessionSums
from otel_nfprobe.export.limiter import Limiter
from otel_nfprobe.monitor.detail import SlowBatches
from otel_nfprobe.monitor.latecapture import LateCapture
from otel_nfprobe.monitor.queue_watch import QueueWatch
from otel_nfprobe.pipeline.dropreasons import DropReasons
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.queue_drops import QueueDropCounts
from otel_nfprobe.pipeline.repeats import Repeats
from otel_nfprobe.pipeline.sampling import Sampler
from otel_nfprobe.pipeline.short_sends import ShortSends
from otel_nfprobe.pipeline.statistics import Statistics
from otel_nfprobe.recording.nodes import NodeCounts
from otel_nfprobe.recording.recording import RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo, ThreadTotals
from otel_nfprobe.shm.rings import Swept
from otel_nfprobe.shm.session import THREAD_COUNT, Session
from otel_nfprobe.shm.thread_reaper import EndedThreads
from otel_nfprobe.shm.threadcounts import ThreadCounts

if TYPE_CHECKING:  # slow to load, and a session without an endpoint has none
    from otel_nfprobe.export.otlp import Exporter
    from otel_nfprobe.export.span import SpanEncoder
    from otel_nfprobe.profiling.profiler import Profiler

HOUSEKEEPING_S = 1.0
SAMPLES_S = 0.05  # interval of draining the profiler's buffers
DELIVERIES = 2  # pipeline drains after the last records: the two ends of a packet may come from two rings in two rounds
ABSENCES_S = 0.05  # interval of draining the context-switch buffers
EXPLAIN_S = 0.1  # interval of analyzing packets together for the causes of late ones
SHORTEST_PAUSE_S = 0.002  # between rounds
LONGEST_PAUSE_S = 0.01
PAUSE_SHARE = 16  # a pause lets the fastest ring fill by this fraction
BURST_RECORDS_PER_S = 4e6  # of a previously idle thread: a pause is never long enough for these to fill its ring
BEHIND_ROUNDS = 3  # consecutive rounds that drained more than half of a ring: the drain is behind
ROOM_SHARE = 0.9  # of the exporter's free space is used: the size of a trace is an estimate
TRACE_BYTES = 2000.0  # of one packet's trace, until one has been encoded
PART_RECORDS = (
    1 << 17
)  # after so many records the pipeline is drained within a round: bounds the memory for a full ring
PLENTY_SHARE = 8  # a round that drained more than this fraction of a ring is followed immediately by the next


@dataclass
class SpanPath:
    """The path of selected packets: selection, encoding and the exporter."""

    sampler: Sampler
    encoder: SpanEncoder
    exporter: Exporter
    limiter: Limiter | None = None
    prepare: Callable[[], None] = lambda: None  # passes on threads and their context switches
    note_submit: Callable[[], None] = lambda: None  # records when packets are submitted
    _due_at: float = 0.0
    _trace_bytes: float = TRACE_BYTES

    def __post_init__(self) -> None:
        rate = self.encoder.ticks_per_second
        self.limits = self.limiter or Limiter(None, rate)
        from otel_nfprobe.export.trace_builder import Explainer

        self.explainer = Explainer(self.sampler, self.encoder, rate, limiter=self.limits)

    def take(self, columns: Columns) -> None:
        """Selects packets from these columns; submits the selected ones when due."""
        self.explainer.add(columns)
        if self.explainer.is_full or time.monotonic() >= self._due_at:
            self.submit()

    def submit(self) -> None:
        """Encodes and submits all selected packets."""
        self._due_at = time.monotonic() + EXPLAIN_S
        self.prepare()
        # When the exporter has little free space, encode fewer packets rather than have requests dropped as they come.
        room = int(ROOM_SHARE * self.exporter.read_room_bytes() / self._trace_bytes)
        self.limits.room = room if room < self.explainer.waiting_traces else None
        encoded_bytes = traces = 0
        for request in self.explainer.requests():
            self.exporter.submit(request)
            encoded_bytes += len(request.data)
            traces += request.packets
        if traces:
            self._trace_bytes += 0.5 * (encoded_bytes / traces - self._trace_bytes)
        self.limits.is_behind = False
        self.note_submit()

    def submit_if_due(self) -> None:
        """Submits if due, even when no columns came for some time."""
        if self.explainer.is_waiting and time.monotonic() >= self._due_at:
            self.submit()


class Observer(Protocol):
    """Somebody who looks on while a session runs."""

    def add(self, columns: Columns) -> None:
        """Gets all calls, batches and packets, as they are drained."""

    def add_absences(self, rows: Rows) -> None:
        """Gets the absences that ended before what is drained next."""


@dataclass
class NewFunctions:
    """Functions that get probes while the target is measured.

    Attributes:
        added: the new ones.
        roles: of all function IDs.
        names: of all function IDs.
        costs: of a probed call of each function ID (dtype COST).
        find_counter_costs: what its probes add to the counters read at that moment (dtype COUNTER_COST).
        known: set once their records can be processed.
    """

    added: Sequence[FunctionInfo]
    roles: NDArray[np.uint8]
    names: Sequence[str]
    costs: Rows
    find_counter_costs: Callable[[], Rows]
    known: threading.Event = field(default_factory=threading.Event)


@dataclass
class Drain:
    """Drains everything that the target writes until it is stopped.

    Attributes:
        thread_names: comm of each thread of the target by thread ID.
        recording_error: what stopped the recording; the session continues without it.
        records: number of records drained.
        longest_pause_s: between rounds, while no ring fills quickly.
        note_samples: receives the profiler's samples.
        observer: somebody who looks on, or None.
    """

    session: Session
    clock: Clock
    pipeline: Pipeline
    statistics: Statistics
    recording: RecordingWriter | None = None
    spans: SpanPath | None = None
    thread_names: dict[int, str] = field(default_factory=dict)
    repeats: Repeats = field(default_factory=Repeats)
    absences: AbsenceWatch | None = None
    queues: QueueWatch | None = None
    short_sends: ShortSends | None = None
    queue_drops: QueueDropCounts = field(default_factory=QueueDropCounts)
    profiler: Profiler | None = None
    note_samples: Callable[[Rows], None] = lambda samples: None
    observer: Observer | None = None
    late: LateCapture | None = None
    slow_batches: SlowBatches | None = None
    counter_sums: SessionSums | None = None
    counted: CounterSet | None = None  # counters read at present; None: none so far
    nodes: NodeCounts = field(default_factory=NodeCounts)
    drops: DropReasons = field(default_factory=DropReasons)
    names: NumberNames = field(default_factory=NumberNames)
    recording_error: NfprobeError | None = None
    records: int = 0
    longest_pause_s: float = LONGEST_PAUSE_S
    _pause_s: float = SHORTEST_PAUSE_S
    _began_at: float = 0.0  # start of the last round
    _anchors_written: int = 0
    _threads_written: dict[int, int] = field(default_factory=dict)
    _housekeeping_at: float = 0.0
    _undelivered: int = 0
    _full_rounds: int = 0
    _undrained: int = 0  # records fed since the pipeline was last drained

    def __post_init__(self) -> None:
        self._ended = EndedThreads(self.session)
        self._new: SimpleQueue[NewFunctions] = SimpleQueue()
        self._submit_at = self._sample_at = self._absences_at = 0.0
        if self.spans is not None:
            self.spans.prepare = self._prepare_spans
            self.spans.note_submit = self._note_submit

    def introduce(self, functions: NewFunctions) -> None:
        """Queues functions for the next round, from any thread; sets `known` when they are registered."""
        self._new.put(functions)

    def round(self) -> int:
        """Drains every ring once. Returns the number of records drained."""
        began_at, self._began_at = self._began_at, time.monotonic()
        while not self._new.empty():
            self._learn(self._new.get())
        by_thread = np.zeros(THREAD_COUNT, np.uint64)
        for swept in self.session.drain():
            by_thread[swept.parts["thread"]] += swept.parts["count"]
            self._feed(swept)
            if self._undrained >= PART_RECORDS:
                self._deliver(is_part=True)
        self._note_fill(int(by_thread.max()), self._began_at - began_at)
        taken = int(by_thread.sum()) + self._free_ended()
        self.records += taken
        self._undelivered = DELIVERIES if taken else self._undelivered - 1
        if self._undelivered >= 0:
            self._deliver()
        elif self.spans is not None:
            self.spans.submit_if_due()
        if self.profiler is not None and time.monotonic() >= self._sample_at:
            self._take_samples()
        if self.queues is not None:
            self._note_queue_drops(self.queues.read_if_due(self.session.threads.by_tid))
        if time.monotonic() >= self._housekeeping_at:
            self._do_housekeeping()
        return taken

    def _note_fill(self, records: int, elapsed_s: float) -> None:
        room = self.session.ring_bytes // RECORD.itemsize
        self._pause_s = find_pause_s(records, elapsed_s, room, self.longest_pause_s)
        # One such round proves nothing: after a pause of the monitor itself, one round drains much.
        is_full = 2 * records > room
        self._full_rounds = self._full_rounds + 1 if is_full else 0
        if self.spans is not None and self._full_rounds >= BEHIND_ROUNDS:
            self.spans.limits.is_behind = True

    def run_until(self, deadline: float) -> None:
        """Drains until the monotonic time `deadline`.

        Sleeps between rounds unless a ring fills quickly, longer the slower it fills: a round has a fixed cost for the
        monitor, and a drain that follows its producer closely reads the very cache line that the producer writes next,
        which costs the target hundreds of ns per record.
        """
        while (now := time.monotonic()) < deadline:
            self.round()
            if self._pause_s:
                time.sleep(min(self._pause_s, max(0.0, deadline - now)))

    def run_dry(self, patience_s: float = 2.0) -> None:
        """Drains until two rounds in a row find nothing."""
        deadline = time.monotonic() + patience_s
        empty = 0
        while empty < 2 and time.monotonic() < deadline:
            empty = 0 if self.round() else empty + 1

    def finish(self) -> None:
        """Ends the session: completes what is open in the pipeline and writes the final counts."""
        self.pipeline.finish()
        self._deliver(is_over=True)
        if self.short_sends is not None:
            self._note_queue_drops(self.short_sends.finish())
        if self.spans is not None:
            self.spans.submit()
        self._do_housekeeping()
        if self.absences is not None:
            self.absences.close()
        if self.queues is not None:
            self._note_queue_drops(self.queues.read(self.session.threads.by_tid))
            self.queues.close()
        if self.profiler is not None:
            self._take_samples()
            self.profiler.close()

    def close_watches(self) -> None:
        """Closes what watches the target's threads, of a session that did not begin."""
        for watch in (self.absences, self.queues, self.profiler):
            if watch is not None:
                watch.close()

    def _learn(self, functions: NewFunctions) -> None:
        self.pipeline.set_roles(functions.roles)
        self.pipeline.set_costs(functions.costs)
        if self.counted is not None:
            self.set_counter_set(self.counted._replace(costs=functions.find_counter_costs()))
        self.statistics.set_costs(functions.costs)
        self.learn_functions(functions.added)
        if self.spans is not None:
            self.spans.encoder.set_functions(functions.names)
        functions.known.set()

    def learn_functions(self, functions: Sequence[FunctionInfo]) -> None:
        """Registers functions that have or get a probe."""
        self.write(lambda recording: recording.functions(functions))
        self.nodes.learn(functions)
        if self.short_sends is not None:
            # The value of a call that counts vectors has its node in the place of what it was handed.
            sends = [item for item in functions if item.role == TRANSMIT and item.unit != VECTORS]
            self.short_sends.learn({item.id: item.name for item in sends})

    def name_numbers(self, names: NumberNames) -> None:
        """Sets the target's names for numbers in records; the same object again means no change."""
        if names is not self.names and names:
            self.names = names
            if self.spans is not None:
                self.spans.encoder.set_numbers(names)
            self.write(lambda recording: recording.names(names))

    def set_counter_set(self, counted: CounterSet) -> None:
        """Treats counter readings from here on as readings of these counters; the same set again means that its costs
        changed.
        """
        self.counted = counted
        self.pipeline.set_counter_set(counted.number, counted.costs)
        if self.counter_sums is None:
            self.counter_sums = SessionSums()
        self.counter_sums.begin(counted)
        if self.spans is not None:
            self.spans.encoder.set_counters(counted.counters, counted.number)
        if counted.number:
            self.write(lambda recording: recording.counting(counted))

    def _feed(self, swept: Swept) -> int:
        if self.recording is not None:
            for thread, records in swept.by_thread():
                self._record(thread, records)
        self.pipeline.feed_parts(swept.parts, swept.records)
        self._undrained += len(swept.records)
        return len(swept.records)

    def _free_ended(self) -> int:
        """Reassigns the rings of ended threads to new ones, after draining what they left behind."""
        found = self._ended.find()
        if not found:
            return 0
        taken = sum(self._feed(swept) for swept in self.session.take_last(found))
        if ended := self._ended.confirm(found):
            self.pipeline.end_threads(ended)
            self._write_ended(ended)
            self.session.free_threads(ended)
        return taken

    def _write_ended(self, threads: Sequence[int]) -> None:
        self.write(lambda recording: recording.threads([ThreadInfo(thread, 0, "") for thread in threads]))
        for thread in threads:
            self._threads_written.pop(thread, None)

    def _record(self, thread: int, records: NDArray[np.void]) -> None:
        self.write(lambda recording: recording.records(thread, records))

    def write(self, write: Callable[[RecordingWriter], None]) -> None:
        """Writes to the recording, if there is one; an error is kept in `recording_error`."""
        if self.recording is None or self.recording_error is not None:
            return
        try:
            write(self.recording)
        except NfprobeError as error:
            self.recording_error = error

    def _deliver(self, is_over: bool = False, is_part: bool = False) -> None:
        self._undrained = 0
        columns = self.pipeline.take(is_part)
        convert_arrivals(columns.packets, self.clock.convert_back)
        self.repeats.mark(columns.packets, self.clock)
        self.write(lambda recording: recording.take(columns, is_over, is_part))
        self.statistics.add(columns)
        self.nodes.add(columns)
        self.drops.add(columns)
        if self.short_sends is not None:
            self._note_queue_drops(self.short_sends.add(columns))
        if self.late is not None:
            self.late.add(columns)
        if self.slow_batches is not None:
            self.slow_batches.add(columns)
        if self.counter_sums is not None:
            self.counter_sums.add(columns)
        if time.monotonic() >= self._absences_at:
            self._take_absences()
        if self.spans is not None:
            self.spans.take(columns)
        elif time.monotonic() >= self._submit_at:
            self._submit_at = time.monotonic() + EXPLAIN_S
            self._take_absences()
            self._note_submit()
        if self.observer is not None:
            self.observer.add(columns)

    def _prepare_spans(self) -> None:
        self._take_absences()
        self._name_threads()

    def _note_submit(self) -> None:
        # So that an export of the recording analyzes the same packets together and yields the same spans.
        self.write(lambda recording: recording.submit())

    def _take_absences(self) -> None:
        # After the rings: whatever kept a thread from running before it wrote the drained records is known by now.
        self._absences_at = time.monotonic() + ABSENCES_S
        if self.absences is None:
            return
        rows = self.absences.read(self.session.threads.by_tid)
        if not len(rows):
            return
        self.write(lambda recording: recording.absences(rows))
        if self.observer is not None:
            self.observer.add_absences(rows)
        if self.spans is not None:
            self.spans.explainer.add_absences(rows)

    def _note_queue_drops(self, rows: Rows) -> None:
        if len(rows):
            self.queue_drops.add(rows)
            self.write(lambda recording: recording.queue_drops(rows))
            if self.spans is not None:
                self.spans.explainer.add_queue_drops(rows)

    def _take_samples(self) -> None:
        assert self.profiler is not None
        self._sample_at = time.monotonic() + SAMPLES_S
        for samples in self.profiler.read(self.session.threads.by_tid()):
            self.write(partial(RecordingWriter.samples, samples=samples.rows, counted=samples.counted))
            self.note_samples(samples.rows)
        with suppress(NfprobeError, OSError):  # reported when the session started, or the target has ended
            self.profiler.end_gone()
            self.profiler.watch(claim.tid for claim in self.session.threads.living())

    def _watch_threads(self, counts: Sequence[ThreadCounts]) -> None:
        if self.absences is None:
            return
        self._take_absences()  # their buffers are small, and they may not have been drained for long
        try:
            self.absences.end_gone()
            for claim in self.session.threads.living():
                self.absences.watch(claim.tid)
            self.absences.follow_work([count.tid for count in counts if count.batches])
        except (NfprobeError, OSError):
            return  # reported when the session started, or the target has ended

    def _do_housekeeping(self) -> None:
        self._housekeeping_at = time.monotonic() + HOUSEKEEPING_S
        self.clock.advance()
        counts = self.session.threads.counts()
        fresh = self.clock.anchors[self._anchors_written :]
        self.write(lambda recording: recording.clock(fresh))
        self._anchors_written = len(self.clock.anchors)
        self._write_threads(counts)
        self._watch_threads(counts)
        self.write(lambda recording: recording.counters(_counters(counts)))

    def _write_threads(self, counts: Sequence[ThreadCounts]) -> None:
        fresh = [count for count in counts if count.tid and self._threads_written.get(count.index) != count.tid]
        if fresh:
            infos = [ThreadInfo(c.index, c.tid, self.thread_names.get(c.tid, "")) for c in fresh]
            self.write(lambda recording: recording.threads(infos))
            self._threads_written.update({count.index: count.tid for count in fresh})

    def _name_threads(self) -> None:
        assert self.spans is not None
        known: list[tuple[int, str]] = []
        counts = self.session.threads.counts()
        self._write_threads(counts)
        for count in counts:
            known += [(0, "")] * (count.index + 1 - len(known))
            known[count.index] = (count.tid, self.thread_names.get(count.tid, ""))
        self.spans.encoder.set_threads(known)


def find_pause_s(records: int, elapsed_s: float, room: int, longest_s: float = LONGEST_PAUSE_S) -> float:
    """Returns how long to wait after a round.

    Args:
        records: from the ring that held most.
        elapsed_s: since the previous round began.
        room: capacity of a ring in records.
        longest_s: upper bound.
    """
    if records * PLENTY_SHARE >= room:
        return 0.0
    bound_s = min(longest_s, room / BURST_RECORDS_PER_S)
    return max(SHORTEST_PAUSE_S, min(bound_s, elapsed_s * room / PAUSE_SHARE / max(records, 1)))


def _counters(counts: Sequence[ThreadCounts]) -> list[ThreadTotals]:
    return [
        ThreadTotals(
            *(c.index, c.empty_polls, c.empty_ticks, c.batches, c.received),
            *(c.transmit_calls, c.transmitted, c.refused, c.dropped, c.lost),
            *(c.punted, c.handed_over, c.taken_over),
        )
        for c in counts
    ]
