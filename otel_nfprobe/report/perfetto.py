# SPDX-License-Identifier: Apache-2.0
"""Recordings as a Perfetto trace: what ran when, on tracks to be scrolled and searched (https://ui.perfetto.dev).

A process for each recording and in it a track for each thread, with its calls, and below that batches, packets, what
the CPU did instead, and as counters the size of the batch and the packets that waited. A late packet has the attributes
of its span (docs/tail.md) and an arrow from its culprit's batch; of several recordings, an arrow leads from each packet
to the same packet in the next network function.

Three replays: for the threshold of late packets, for their causes, and to write. Perfetto sorts packets by time; those
of one track and the same time stay in the order of the file, so a call's end has to stand before the next one's begin.

Times are Unix ns, said to be those of both CLOCK_REALTIME and CLOCK_BOOTTIME: Perfetto counts in the latter.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    BUILTIN_CLOCK_BOOTTIME,
    BUILTIN_CLOCK_REALTIME,
    DebugAnnotation,
    Trace,
    TracePacket,
    TrackEvent,
)

from otel_nfprobe.base.columns import (
    NONE,
    UNKNOWN,
    CallFlag,
    Columns,
    CountersFlag,
    PacketFlag,
    Rows,
    arrival_known,
    life_start_ticks,
)
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.printable import printable
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.causes import LateCauses
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.causes.lateness import LATE_QUANTILE, LatenessStatistics
from otel_nfprobe.pipeline.absences import AbsenceKind, name_absence, place_steal_time
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, replay
from otel_nfprobe.report.report import SlowestPackets
from otel_nfprobe.report.trace_packets import NS_BYTES, Integers, Marks, PacketKind, Packets, arrange, pack, serialize

WINDOW_NS = 1_000_000  # before a packet came and after it was done
SEQUENCE = 1  # of packets that share interned names
TRACK_BYTES, NAME_BYTES, SIZE_BYTES = 4, 3, 5  # of varints
ID_DIGITS = 16
NOTHING = np.empty(0, np.intp)
# Rows of a thread, by what the CPU did instead.
AWAY_TRACKS = {
    AbsenceKind.SWITCH: "off the CPU",
    AbsenceKind.CALL: "system calls that slept",
    AbsenceKind.WAIT: "waits for other threads",
    AbsenceKind.FAULT: "page faults",
    AbsenceKind.VECTOR: "interrupts",
    AbsenceKind.IRQ: "interrupts",
    AbsenceKind.SOFTIRQ: "interrupts",
    AbsenceKind.NMI: "interrupts",
    AbsenceKind.STEAL: "steal time",
    AbsenceKind.FIRMWARE: "firmware",
}
BATCHES, PACKETS = "batches", "packets"
BATCH_SIZE, WAITING = "batch size", "packets waiting"

Write = Callable[[bytes], object]
Ticks = NDArray[np.uint64]


@dataclass(frozen=True)
class TraceRequest:
    """What to write of recordings.

    Attributes:
        slowest: only what ran around so many of the slowest packets of each; None: everything.
        around: likewise around all packets with this ID or content ID.
        window_ns: for so long before such a packet came, and after it was done.
    """

    slowest: int | None = None
    around: int | None = None
    window_ns: int = WINDOW_NS

    @property
    def is_part(self) -> bool:
        """Whether not everything is written."""
        return self.slowest is not None or self.around is not None


@dataclass
class TraceCounts:
    """What was written, of all recordings."""

    batches: int = 0
    calls: int = 0
    packets: int = 0
    late: int = 0
    absences: int = 0


def write_trace(
    recordings: list[tuple[RecordingReader, RecordingFacts]], request: TraceRequest, write: Write
) -> TraceCounts:
    """Writes recordings as one trace.

    Args:
        write: takes the bytes of the file, in order.

    Raises:
        UsageError: a clock is damaged.
        OSError: from `write`.
    """
    counts, shared = TraceCounts(), _Shared(write, is_chain=len(recordings) > 1)
    shared.begin(min(facts.header.start_unix_ns for _, facts in recordings))
    for reader, facts in recordings:
        trace = _RecordingTrace(reader, facts, request, shared)
        trace.write()
        for part in fields(counts):
            setattr(counts, part.name, getattr(counts, part.name) + getattr(trace.counts, part.name))
    return counts


# ---- kinds of packets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Event:
    # What packets of one kind have: fields and annotations that differ, with the sizes of their values in bytes.
    type: TrackEvent.Type
    name: str = ""
    fields: tuple[tuple[str, int], ...] = ()
    numbers: tuple[tuple[str, int], ...] = ()
    texts: tuple[str, ...] = ()
    flows: tuple[str, ...] = ()

    def make_kind(self, name: Callable[[str], int], annotation: Callable[[str], int]) -> PacketKind:
        """Returns the kind; the arguments number names of slices and of annotations."""
        marks = Marks()
        event = TrackEvent(type=self.type, track_uuid=marks.number("track", TRACK_BYTES))
        if self.name:
            event.name_iid = name(self.name)
        for key, size in self.fields:
            setattr(event, key, marks.number(key, size))
        for key, size in self.numbers:
            event.debug_annotations.add(name_iid=annotation(key), uint_value=marks.number(key, size))
        for key in self.texts:
            event.debug_annotations.add(name_iid=annotation(key), string_value=marks.text(key, ID_DIGITS))
        event.flow_ids.extend(marks.fixed(key) for key in self.flows)
        packet = TracePacket(
            timestamp=marks.number("ns", NS_BYTES),
            trusted_packet_sequence_id=SEQUENCE,
            sequence_flags=TracePacket.SEQ_NEEDS_INCREMENTAL_STATE,
            track_event=event,
        )
        return PacketKind(packet, marks)


def _annotate(name: str, value: int | str) -> DebugAnnotation:
    if isinstance(value, str):
        return DebugAnnotation(name=name, string_value=printable(value))
    return DebugAnnotation(name=name, uint_value=value)


NAMED = (("name_iid", NAME_BYTES),)
CALL = _Event(TrackEvent.TYPE_SLICE_BEGIN, fields=NAMED)
STOLEN = _Event(TrackEvent.TYPE_SLICE_BEGIN, fields=NAMED, numbers=(("steal_ns", NS_BYTES),))
MARK = _Event(TrackEvent.TYPE_INSTANT, fields=NAMED)
END = _Event(TrackEvent.TYPE_SLICE_END)
COUNTER = _Event(TrackEvent.TYPE_COUNTER, fields=(("counter_value", SIZE_BYTES),))
BATCH = _Event(TrackEvent.TYPE_SLICE_BEGIN, "batch", numbers=(("nf.batch.id", NS_BYTES), ("nf.batch.size", SIZE_BYTES)))
PACKET = _Event(
    TrackEvent.TYPE_SLICE_BEGIN,
    "packet",
    numbers=(("nf.packet.length", NAME_BYTES), ("nf.packet.latency_ns", NS_BYTES)),
    texts=("nf.packet.id", "nf.packet.content_id"),
)
LINKED, CHANGED = replace(PACKET, flows=("came",)), replace(PACKET, flows=("came", "went"))


class _Shared:
    # What the recordings of a trace share: kinds of packets, numbers that are given once, and the file.
    def __init__(self, write: Write, is_chain: bool) -> None:
        self.write, self.is_chain = write, is_chain
        self.arrows = 0
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._annotations: dict[str, int] = {}
        self._kinds: dict[_Event, PacketKind] = {}

    def kind(self, event: _Event) -> PacketKind:
        """Returns the kind of such packets."""
        if event not in self._kinds:
            self._kinds[event] = event.make_kind(self._number_name, self._number_annotation)
        return self._kinds[event]

    def new_track(self) -> TracePacket:
        """Returns the description of one more track."""
        self._tracks += 1
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE)
        packet.track_descriptor.uuid = self._tracks
        return packet

    def begin(self, unix_ns: int) -> None:
        """Writes what a trace begins with."""
        packet = TracePacket(trusted_packet_sequence_id=SEQUENCE, first_packet_on_sequence=True)
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        for clock in (BUILTIN_CLOCK_BOOTTIME, BUILTIN_CLOCK_REALTIME):
            packet.clock_snapshot.clocks.add(clock_id=clock, timestamp=unix_ns)
        self.write(serialize(packet))

    def number_names(self, names: Iterable[str]) -> NDArray[np.uint32]:
        """Returns the number of each name, and writes those of new ones."""
        packet, numbers = _describe_names(), []
        for name in names:
            if name not in self._names:
                self._names[name] = len(self._names) + 1
                packet.interned_data.event_names.add(iid=self._names[name], name=printable(name))
            numbers.append(self._names[name])
        if packet.HasField("interned_data"):
            self.write(serialize(packet))
        return np.array(numbers, np.uint32)

    def _number_name(self, name: str) -> int:
        return int(self.number_names([name])[0])

    def _number_annotation(self, name: str) -> int:
        if name not in self._annotations:
            self._annotations[name] = len(self._annotations) + 1
            packet = _describe_names()
            packet.interned_data.debug_annotation_names.add(iid=self._annotations[name], name=name)
            self.write(serialize(packet))
        return self._annotations[name]


def _describe_names() -> TracePacket:
    flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
    return TracePacket(trusted_packet_sequence_id=SEQUENCE, sequence_flags=flags)


class _Slices:
    # Slices to be written: added by kind, then in order.
    def __init__(self, shared: _Shared, tracks: Integers, starts: Ticks, ends: Ticks) -> None:
        self._shared, self._tracks, self._starts, self._ends = shared, tracks, starts, ends
        self._parts: list[Packets] = []
        self._rows: list[NDArray[np.intp]] = []

    def add(self, event: _Event, rows: NDArray[np.intp], **columns: Integers | Rows) -> None:
        """Adds some of the slices.

        Args:
            columns: of all slices.
        """
        some = {name: values[rows] for name, values in columns.items()}
        encoded = self._shared.kind(event).encode(len(rows), track=self._tracks[rows], ns=self._starts[rows], **some)
        self._parts.append(encoded)
        self._rows.append(rows)

    def amend(self, annotations: Iterable[tuple[DebugAnnotation, ...]], arrows: Iterable[list[int]]) -> None:
        """Says more of the slices that were added last: one entry for each."""
        part, packets = self._parts[-1], []
        ends = np.cumsum(part.sizes).tolist()
        for end, size, more, ids in zip(ends, part.sizes.tolist(), annotations, arrows, strict=True):
            trace = Trace.FromString(part.data[end - size : end].tobytes())
            trace.packet[0].track_event.debug_annotations.extend(more)
            trace.packet[0].track_event.flow_ids.extend(ids)
            packets.append(trace.SerializeToString())
        self._parts[-1] = pack(packets)

    def write(self, marks: NDArray[np.intp] = NOTHING) -> None:
        """Writes all, in the order of time; where that is the same, those around others begin first and end last.

        Args:
            marks: slices that have no end.
        """
        rows = np.concatenate(self._rows)
        closed = rows[~np.isin(rows, marks)]
        ended = self._shared.kind(END).encode(len(closed), track=self._tracks[closed], ns=self._ends[closed])
        times = np.concatenate((self._starts[rows], self._ends[closed]))
        is_begin = np.arange(len(times)) < len(rows)
        inner = np.concatenate((~self._ends[rows], ~self._starts[closed]))
        self._shared.write(arrange([*self._parts, ended], np.lexsort((inner, is_begin, times))))


# ---- tracks ---------------------------------------------------------------------------------------------------------


class _Tracks:
    # The tracks of one recording, described when they are first used.
    def __init__(self, facts: RecordingFacts, shared: _Shared) -> None:
        self._facts, self._shared = facts, shared
        self._known: dict[tuple[int, str, int], int] = {}
        self._lanes: dict[tuple[int, str], list[tuple[int, int]]] = {}
        packet = shared.new_track()
        packet.track_descriptor.process.pid = facts.header.pid
        service = facts.header.resource.get("service.name", "")
        packet.track_descriptor.process.process_name = printable(service or Path(facts.header.executable).name)
        self._process = packet.track_descriptor.uuid
        shared.write(serialize(packet))

    def of_thread(self, thread: int) -> int:
        """Returns the track of a thread's calls."""
        if (key := (thread, "", 0)) not in self._known:
            packet, info = self._shared.new_track(), self._facts.threads.get(thread)
            packet.track_descriptor.parent_uuid = self._process
            packet.track_descriptor.thread.pid = self._facts.header.pid
            packet.track_descriptor.thread.tid = info.tid if info else 0
            packet.track_descriptor.thread.thread_name = printable(info.name) if info else f"thread {thread}"
            self._add(key, packet)
        return self._known[key]

    def of(self, thread: int, name: str, lane: int = 0, is_counter: bool = False) -> int:
        """Returns a track below that of a thread; those of one name are shown as one."""
        if (key := (thread, name, lane)) not in self._known:
            above, packet = self.of_thread(thread), self._shared.new_track()
            packet.track_descriptor.parent_uuid = above
            packet.track_descriptor.name = name
            if is_counter:
                packet.track_descriptor.counter.SetInParent()
            self._add(key, packet)
        return self._known[key]

    def _add(self, key: tuple[int, str, int], packet: TracePacket) -> None:
        self._known[key] = packet.track_descriptor.uuid
        self._shared.write(serialize(packet))

    def spread(self, thread: int, name: str, starts: Ticks, ends: Ticks) -> NDArray[np.uint32]:
        """Returns a track for each of some intervals, in order of their starts, so that those of one do not overlap."""
        free = self._lanes.setdefault((thread, name), [])  # by when: a heap of the end of its last one, and lane
        tracks = np.empty(len(starts), np.uint32)
        for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
            lane = heapq.heappop(free)[1] if free and free[0][0] <= start else len(free)
            heapq.heappush(free, (max(end, start + 1), lane))
            tracks[row] = self.of(thread, name, lane)
        return tracks


# ---- late packets, and what is near to them -------------------------------------------------------------------------


class _Windows:
    # Times, in ticks, of which everything is written.
    def __init__(self, spans: list[tuple[int, int]]) -> None:
        ordered = np.array(sorted(spans), np.uint64).reshape(-1, 2)
        self._starts, self._ends = ordered[:, 0], np.maximum.accumulate(ordered[:, 1])

    def touch(self, starts: Ticks, ends: Ticks) -> NDArray[np.bool_]:
        """Returns which intervals are at least in part in one of them."""
        if not len(self._starts):
            return np.zeros(len(starts), bool)
        at = np.searchsorted(self._starts, ends, side="right") - 1
        touched: NDArray[np.bool_] = (at >= 0) & (self._ends[np.maximum(at, 0)] >= starts)
        return touched


@dataclass(frozen=True)
class _Late:
    # What is said of a late packet; `arrow`: the number of the one from its culprit's batch, or 0.
    annotations: tuple[DebugAnnotation, ...]
    arrow: int


def _describe_cause(cause: np.void, names: list[str], ns_per_tick: float) -> Iterator[DebugAnnotation]:
    """Yields what its span says, by the same names."""
    yield _annotate("nf.tail.cause", CauseKind(int(cause["kind"])).name.lower())
    function = int(cause["function"])
    if function != NONE:
        yield _annotate("nf.tail.function", _name_function(names, function))
    if by := cause["by"].decode("utf-8", "replace"):
        yield _annotate("nf.tail.by", by)
    yield _annotate("nf.tail.excess_ns", round(int(cause["excess_ticks"]) * ns_per_tick))
    if cause["batch_id"]:
        yield _annotate("nf.tail.batch", int(cause["batch_id"]))


def _name_function(names: list[str], function: int) -> str:
    return (names[function] if function < len(names) else "") or f"function {function}"


# ---- one recording --------------------------------------------------------------------------------------------------


class _RecordingTrace:
    # Writes one recording.
    def __init__(self, reader: RecordingReader, facts: RecordingFacts, request: TraceRequest, shared: _Shared) -> None:
        self._reader, self._facts, self._request, self._shared = reader, facts, request, shared
        self._clock = facts.make_clock()
        self._ns_per_tick = 1e9 / self._clock.ticks_per_second
        self._tracks = _Tracks(facts, shared)
        self._names = facts.function_names
        self._late: dict[tuple[int, int], _Late] = {}  # by batch ID and position in its burst
        self._arrows: dict[int, list[int]] = {}  # numbers of those that begin there, by batch ID
        self._windows: _Windows | None = None
        self._waits: dict[int, list[Ticks]] = {}  # by thread: when packets came, and when their batches began
        self._counted = {
            counted.number: tuple(f"nf.counter.{name}" for name, _ in counted.counters)
            for counted in facts.counter_sets
            if counted.counters
        }
        self.counts = TraceCounts()

    def write(self) -> None:
        self._find_late()
        for columns in self._replay():
            self._write_calls(columns)
            self._write_batches(columns)
            self._write_packets(columns)
        self._write_waiting()
        self._write_absences()

    def _replay(self) -> Iterator[Columns]:
        with Pipeline(self._facts.roles) as pipeline:
            pipeline.set_costs(self._facts.costs)
            pipeline.set_counter_costs(self._facts.counter_costs)
            yield from replay(self._reader, self._facts, pipeline)

    def _find_late(self) -> None:
        statistics, sample, kept = LatenessStatistics(), BatchSample(), SlowestPackets(self._request.slowest or 0)
        spans: list[tuple[int, int]] = []
        for columns in self._replay():
            for part in (statistics, sample, kept):
                part.add(columns)
            if self._request.around is not None:
                ids = columns.packets["id"], columns.packets["digest"]
                found = (ids[0] == self._request.around) | (ids[1] == self._request.around)
                done = columns.packets["done_ticks"][found].tolist()
                spans += zip(life_start_ticks(columns)[found].tolist(), done, strict=True)
        spans += [(slow.start_ticks, slow.done_ticks) for slow in kept.slowest()]
        late = LateCauses(statistics.find_late_ticks(LATE_QUANTILE), sample.baseline(), self._facts.absences)
        for columns in self._replay():
            self._add_late(*late.find(columns))
        if self._request.is_part:
            window = round(self._request.window_ns / self._ns_per_tick)
            self._windows = _Windows([(max(start - window, 0), max(end, start) + window) for start, end in spans])

    def _add_late(self, columns: Columns, packets: NDArray[np.intp], causes: Rows) -> None:
        for packet, cause in zip(columns.packets[packets], causes, strict=True):
            arrow, culprit = 0, int(cause["batch_id"])
            if culprit:
                arrow = self._shared.arrows = self._shared.arrows + 1
                self._arrows.setdefault(culprit, []).append(arrow)
            key = int(columns.batches["id"][packet["batch"]]), int(packet["index"])
            described = _describe_cause(cause, self._names, self._ns_per_tick)
            flow = _annotate("nf.flow", describe_flow(packet, columns.topic(int(packet["digest"]))))
            self._late[key] = _Late((*described, flow), arrow)

    def _keep(self, starts: Ticks, ends: Ticks) -> NDArray[np.intp]:
        """Returns which intervals are to be written, in order of their starts."""
        kept = np.arange(len(starts)) if self._windows is None else np.flatnonzero(self._windows.touch(starts, ends))
        return kept[np.argsort(starts[kept], kind="stable")]

    def _write_calls(self, columns: Columns) -> None:
        kept = self._keep(columns.calls["start_ticks"], columns.calls["end_ticks"])
        if not len(kept):
            return
        calls = columns.calls[kept]
        starts, ends = self._clock.convert(calls["start_ticks"]), self._clock.convert(calls["end_ticks"])
        names = _map_distinct(calls["function"], self._number_functions)
        slices = _Slices(self._shared, _map_distinct(calls["thread"], self._find_threads), starts, ends)
        is_mark = (starts >= ends) | ((calls["flags"] & CallFlag.MARK) != 0)
        counted = np.where(is_mark, -1, self._find_counted(columns)[kept])
        slices.add(MARK, np.flatnonzero(is_mark), name_iid=names)
        slices.add(CALL, np.flatnonzero(~is_mark & (counted < 0)), name_iid=names)
        for number, counters in self._counted.items():
            rows = np.flatnonzero((counted >= 0) & (columns.counters["set"][counted] == number))
            values = columns.counters["inclusive"][counted].astype(np.int64).clip(0)
            event = replace(CALL, numbers=tuple((name, NS_BYTES) for name in counters))
            slices.add(event, rows, name_iid=names, **{name: values[:, at] for at, name in enumerate(counters)})
        slices.write(np.flatnonzero(is_mark))
        self.counts.calls += len(calls)

    def _number_functions(self, functions: list[int]) -> NDArray[np.uint32]:
        return self._shared.number_names(_name_function(self._names, function) for function in functions)

    def _find_threads(self, threads: list[int]) -> NDArray[np.uint32]:
        return np.array([self._tracks.of_thread(thread) for thread in threads], np.uint32)

    def _find_counted(self, columns: Columns) -> NDArray[np.int64]:
        """Returns for each call its row of counters; -1: it has none that can be told."""
        found, counters = np.full(len(columns.calls), -1), columns.counters
        is_valid = (counters["flags"] & CountersFlag.VALID) != 0
        told = np.flatnonzero(is_valid & np.isin(counters["set"], [*self._counted]))
        found[counters["call"][told]] = told
        return found

    def _write_batches(self, columns: Columns) -> None:
        batches = columns.batches[self._keep(columns.batches["start_ticks"], columns.batches["end_ticks"])]
        for thread in distinct(batches["thread"]).tolist():
            self._write_batches_of(thread, batches[batches["thread"] == thread])
        self.counts.batches += len(batches)

    def _write_batches_of(self, thread: int, batches: Rows) -> None:
        starts, ends = self._clock.convert(batches["start_ticks"]), self._clock.convert(batches["end_ticks"])
        slices = _Slices(self._shared, self._tracks.spread(thread, BATCHES, starts, ends), starts, ends)
        numbers = {"nf.batch.id": batches["id"], "nf.batch.size": batches["size"]}
        arrows = [self._arrows.get(id, []) for id in batches["id"].tolist()]
        has_arrows = np.array([bool(some) for some in arrows], bool)
        slices.add(BATCH, np.flatnonzero(~has_arrows), **numbers)
        slices.add(BATCH, np.flatnonzero(has_arrows), **numbers)
        slices.amend([()] * int(has_arrows.sum()), [some for some in arrows if some])
        slices.write()
        sizes = batches["size"].astype(np.uint64)
        self._write_counter(
            thread, BATCH_SIZE, np.concatenate((starts, ends)), np.concatenate((sizes, np.zeros_like(sizes)))
        )

    def _write_counter(self, thread: int, name: str, times_ns: Ticks, values: Ticks) -> None:
        order = np.lexsort((values, times_ns))
        tracks = np.full(len(order), self._tracks.of(thread, name, is_counter=True), np.uint32)
        encoded = self._shared.kind(COUNTER).encode(
            len(order), track=tracks, ns=times_ns[order], counter_value=values[order]
        )
        self._shared.write(encoded.data.tobytes())

    def _write_packets(self, columns: Columns) -> None:
        packets, begins = columns.packets, life_start_ticks(columns)
        kept = self._keep(begins, packets["done_ticks"])
        is_done = (packets["disposition"] != UNKNOWN) & (packets["batch"] < len(columns.batches))
        kept = kept[(is_done & (packets["done_ticks"] >= begins))[kept]]
        threads = columns.batches["thread"][packets["batch"][kept]]
        for thread in distinct(threads).tolist():
            rows = kept[threads == thread]
            self._write_packets_of(columns, thread, rows, begins[rows])
        self.counts.packets += len(kept)

    def _write_packets_of(self, columns: Columns, thread: int, rows: NDArray[np.intp], begins: Ticks) -> None:
        packets = columns.packets[rows]
        batches = columns.batches[packets["batch"]]
        starts, ends = self._clock.convert(begins), self._clock.convert(packets["done_ticks"])
        slices = _Slices(self._shared, self._tracks.spread(thread, PACKETS, starts, ends), starts, ends)
        values: dict[str, Integers | Rows] = {
            "nf.packet.id": _format_ids(packets["id"]),
            "nf.packet.content_id": _format_ids(packets["digest"]),
            "nf.packet.length": packets["length"],
            "nf.packet.latency_ns": ends - starts,
        }
        keys = zip(batches["id"].tolist(), packets["index"].tolist(), strict=True)
        late = [self._late.get(key) for key in keys]
        is_late = np.array([one is not None for one in late], bool)
        found = [one for one in late if one is not None]
        for event, is_one, more in self._choose_kinds(packets):
            slices.add(event, np.flatnonzero(is_one & ~is_late), **values, **more)
            slices.add(event, np.flatnonzero(is_one & is_late), **values, **more)
            some = [one for one, of_kind in zip(found, is_one[is_late].tolist(), strict=True) if of_kind]
            slices.amend([one.annotations for one in some], [[one.arrow] if one.arrow else [] for one in some])
        slices.write()
        self.counts.late += len(found)
        is_known = arrival_known(packets, batches["start_ticks"])
        for times in (begins[is_known], batches["start_ticks"][is_known]):
            self._waits.setdefault(thread, []).append(times)

    def _choose_kinds(self, packets: Rows) -> list[tuple[_Event, NDArray[np.bool_], dict[str, Rows]]]:
        """Returns which packets are of which kind, and the fields that only these have."""
        came, went = packets["digest"], packets["done_digest"]
        is_linked = (came != 0) & ((packets["flags"] & PacketFlag.REPEATED) == 0) & self._shared.is_chain
        is_changed = is_linked & (went != came) & (went != 0)
        return [
            (PACKET, ~is_linked, {}),
            (LINKED, is_linked & ~is_changed, {"came": came}),
            (CHANGED, is_changed, {"came": came, "went": went}),
        ]

    def _write_waiting(self) -> None:
        """Writes how many packets had come whose batch had not begun, of those whose arrival is known."""
        for thread, parts in self._waits.items():
            came, begun = np.concatenate(parts[::2]), np.concatenate(parts[1::2])
            times = np.concatenate((came, begun))
            order = np.argsort(times, kind="stable")
            depths = np.cumsum(np.where(order < len(came), 1, -1))
            times = times[order]
            last = np.flatnonzero(np.append(times[1:] != times[:-1], True)) if len(times) else order
            if self._windows is not None:
                last = last[self._windows.touch(times[last], times[last])]
            if len(last):
                values = depths[last].astype(np.uint64)
                self._write_counter(thread, WAITING, self._clock.convert(times[last]), values)

    def _write_absences(self) -> None:
        absences = place_steal_time(self._facts.absences)
        absences = absences[self._keep(absences["out_ticks"], absences["in_ticks"])]
        for name in dict.fromkeys(AWAY_TRACKS.values()):
            kinds = [kind for kind, track in AWAY_TRACKS.items() if track == name]
            some = absences[np.isin(absences["kind"], kinds)]
            for thread in distinct(some["thread"]).tolist():
                self._write_absences_of(thread, name, some[some["thread"] == thread])

    def _write_absences_of(self, thread: int, name: str, absences: Rows) -> None:
        starts, ends = self._clock.convert(absences["out_ticks"]), self._clock.convert(absences["in_ticks"])
        slices = _Slices(self._shared, self._tracks.spread(thread, name, starts, ends), starts, ends)
        names = self._shared.number_names(name_absence(row) or name for row in absences)
        is_steal = absences["kind"] == AbsenceKind.STEAL
        is_mark = ~is_steal & (starts >= ends)
        stolen_ns = np.round(absences["part_ticks"] * self._ns_per_tick).astype(np.uint64)
        slices.add(MARK, np.flatnonzero(is_mark), name_iid=names)
        slices.add(CALL, np.flatnonzero(~is_steal & ~is_mark), name_iid=names)
        slices.add(STOLEN, np.flatnonzero(is_steal), name_iid=names, steal_ns=stolen_ns)
        slices.write(np.flatnonzero(is_mark))
        self.counts.absences += len(absences)


def _map_distinct(values: Rows, find: Callable[[list[int]], NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Returns what `find` returns of the distinct values, for each value."""
    found, where = np.unique(values, return_inverse=True)
    return find(found.tolist())[where]


def _format_ids(ids: Rows) -> Rows:
    return np.array([f"{id:016x}" for id in ids.tolist()], f"S{ID_DIGITS}")
