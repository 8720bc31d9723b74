# SPDX-License-Identifier: Apache-2.0
"""The report of a recording, as the JSON object of `nfprobe report` and as timelines for the page.

Two replays: one for statistics and the slowest packets, one for their surroundings. The views format it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import (
    ABSORBED,
    BATCH,
    DROPPED,
    NONE,
    PUNTED,
    TRANSMITTED,
    UNKNOWN,
    BatchFlag,
    Columns,
    HandoverFlag,
    Rows,
    concatenate,
    counted_latency_ticks,
    life_start_ticks,
)
from otel_nfprobe.base.distinct import is_among
from otel_nfprobe.base.holdrows import join_holds
from otel_nfprobe.base.strategies import ENTRY_ONLY
from otel_nfprobe.causes.arrival import CAPTURE, SATURATED, STAMP, find_source
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.causes import CauseTally, LateCauses
from otel_nfprobe.causes.drop_tally import DropTally, describe_drops
from otel_nfprobe.causes.holds import describe_hold
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.causes.lateness import LATE_QUANTILE, LatenessStatistics
from otel_nfprobe.counters.sets import SessionSums
from otel_nfprobe.pipeline.dropreasons import DropReasons
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.flowfilter import FlowFilter
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.pipeline.queue_drops import QueueDropCounts
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from otel_nfprobe.pipeline.values import CapturedValues
from otel_nfprobe.profiling.samples import (
    AddressNames,
    Words,
    addresses_of,
    describe_counts,
    describe_samples,
    is_known,
)
from otel_nfprobe.recording.nodes import NodeCounts
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.shm.session import LOST_CLASSES

# ---- slow packets ---------------------------------------------------------------------------------------------------
# The slowest packets of a recording: found in one replay, their surroundings collected in the next.
#
# Packets of one batch have the same causes, so at most one per batch is kept: the slowest. Its surroundings are all
# batches of its thread, and of those it was handed over to, from its arrival until its end, and for the same time
# before: there latency_causes.py finds the culprit, and a timeline shows them. Arrays in, arrays out.


DRAWN_MAX = 100  # packets with the same ID
HOLDS_MAX = 10_000  # around all of the slowest packets
NOT_AWAY = (CauseKind.OWN, CauseKind.QUEUE, CauseKind.BATCHING, CauseKind.BURST, CauseKind.BARRIER)
BATCHES_MAX = 20_000  # of all surroundings together; further ones are ignored


@dataclass(frozen=True)
class SlowPacket:
    """One slow packet, by batch ID and position in its burst; times in ticks."""

    latency_ticks: int
    batch_id: int
    index: int
    thread: int
    start_ticks: int
    batch_start_ticks: int
    done_ticks: int
    handed_to: tuple[tuple[int, int], ...] = ()  # batch ID and thread of each of its handovers

    @property
    def threads(self) -> list[int]:
        """Returns the threads whose batches it was in."""
        return [self.thread, *(thread for _, thread in self.handed_to)]

    @property
    def batch_ids(self) -> list[int]:
        """Returns the batches that it was in."""
        return [self.batch_id, *(batch_id for batch_id, _ in self.handed_to)]


class SlowestPackets:
    """Keeps the `count` slowest packets of all added columns, of the flows of `flow` if it is given."""

    def __init__(self, count: int, flow: FlowFilter | None = None) -> None:
        self._count = count
        self._flow = flow
        self._heap: list[tuple[int, int, SlowPacket]] = []

    def add(self, columns: Columns) -> None:
        """Adds drained columns."""
        packets = columns.packets
        if not len(packets) or not self._count:
            return
        latency = np.where(packets["disposition"] == UNKNOWN, 0, counted_latency_ticks(columns))
        best = self._heap[0][0] if len(self._heap) == self._count else 0
        order = np.flatnonzero(latency > best)
        if self._flow is not None:
            order = order[self._flow.match(packets[order])]
        # The slowest first, then the earliest; the first of each batch is kept.
        order = order[np.lexsort((order, -latency[order].astype(np.int64)))]
        _, first = np.unique(packets["batch"][order], return_index=True)
        for slow in _describe_packets(columns, order[np.sort(first)][: self._count]):
            self._push(slow)

    def slowest(self) -> list[SlowPacket]:
        """Returns the packets kept, the slowest first."""
        return [slow for _, _, slow in sorted(self._heap, reverse=True)]

    def _push(self, slow: SlowPacket) -> None:
        entry = (slow.latency_ticks, -slow.batch_id, slow)
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)


def _describe_packets(columns: Columns, rows: NDArray[np.intp]) -> Iterator[SlowPacket]:
    starts, latency = life_start_ticks(columns), counted_latency_ticks(columns)
    for row in rows.tolist():
        packet = columns.packets[row]
        batch = columns.batches[packet["batch"]]
        yield SlowPacket(
            int(latency[row]),
            int(batch["id"]),
            int(packet["index"]),
            int(batch["thread"]),
            int(starts[row]),
            int(batch["start_ticks"]),
            int(packet["done_ticks"]),
            _find_handed_to(columns, row),
        )


class Surroundings:
    """Collects, from a second replay, the batches that ran during the lives of slow packets."""

    def __init__(self, slowest: list[SlowPacket]) -> None:
        self._slowest = slowest
        self._parts: list[Columns] = []
        self._holds = join_holds([])

    def add(self, columns: Columns) -> None:
        """Adds drained columns."""
        batches = columns.batches
        self._add_holds(columns.holds)
        wanted = np.zeros(len(batches), bool)
        for slow in self._slowest:
            # Extended backwards by its latency: its queue may already have been longer than usual at its arrival.
            since = max(2 * slow.start_ticks - slow.done_ticks, 0)
            wanted |= (
                np.isin(batches["thread"], slow.threads)
                & (batches["end_ticks"] > since)
                & (batches["start_ticks"] <= slow.done_ticks)
            ) | np.isin(batches["id"], slow.batch_ids)
        for batch in np.flatnonzero(wanted)[: BATCHES_MAX - len(self._parts)]:
            self._parts.append(_cut_batch(columns, int(batch)))

    def columns(self) -> Columns:
        """Returns all of them, with the packets of these batches."""
        return replace(concatenate(self._parts), holds=self._holds)

    def _add_holds(self, holds: Rows) -> None:
        near = np.zeros(len(holds), bool)
        for slow in self._slowest if len(holds) else ():
            near |= (holds["end_ticks"] > slow.start_ticks) & (holds["start_ticks"] <= slow.done_ticks)
        if near.any():
            self._holds = join_holds([self._holds, holds[near]])[-HOLDS_MAX:]


def find_packet(columns: Columns, slow: SlowPacket) -> int:
    """Returns the index of a slow packet in the collected columns, or -1."""
    if not len(columns.packets):
        return -1
    ids = columns.batches["id"][columns.packets["batch"]]
    rows = np.flatnonzero((ids == slow.batch_id) & (columns.packets["index"] == slow.index))
    return int(rows[0]) if len(rows) else -1


def _cut_batch(columns: Columns, batch: int) -> Columns:
    row = columns.batches[batch : batch + 1].copy()
    calls = columns.calls[_span(row, "first_call", "calls")].copy()
    packets = columns.packets[_span(row, "first_packet", "packets")].copy()
    inside = (calls["parent"] >= row["first_call"]) & (calls["parent"] < row["first_call"] + row["calls"])
    calls["parent"] = np.where(inside, calls["parent"] - row["first_call"], NONE)
    calls["batch"] = packets["batch"] = 0
    row["first_call"] = row["first_packet"] = 0
    topics = columns.topics[is_among(columns.topics["digest"], np.sort(packets["digest"]))]
    handovers, handed_to = _cut_handovers(columns, _span(columns.batches[batch : batch + 1], "first_packet", "packets"))
    return Columns(calls, row, packets, topics, handovers=handovers, reemitted_batches=handed_to)


def _cut_handovers(columns: Columns, packets: slice) -> tuple[Rows, Rows]:
    """Returns the handovers of some packets and their batches, without calls: those are parts of their own."""
    low, high = np.searchsorted(columns.handovers["packet"], [packets.start, packets.stop])
    handovers = columns.handovers[low:high].copy()
    batches = np.zeros(len(handovers), BATCH)
    for at, handover in enumerate(handovers):
        batches[at] = _find_batch(columns, handover)
    batches["calls"] = batches["packets"] = 0
    handovers["packet"] -= np.uint32(packets.start)
    handovers["batch"], handovers["flags"] = np.arange(len(handovers)), HandoverFlag.AGAIN
    return handovers, batches


def _find_handed_to(columns: Columns, packet: int) -> tuple[tuple[int, int], ...]:
    low, high = np.searchsorted(columns.handovers["packet"], [packet, packet + 1])
    batches = [_find_batch(columns, handover) for handover in columns.handovers[low:high]]
    return tuple((int(batch["id"]), int(batch["thread"])) for batch in batches)


def _find_batch(columns: Columns, handover: np.void) -> np.void:
    batches = columns.reemitted_batches if handover["flags"] & HandoverFlag.AGAIN else columns.batches
    found: np.void = batches[handover["batch"]]
    return found


def _span(row: Rows, first: str, count: str) -> slice:
    return slice(int(row[first][0]), int(row[first][0]) + int(row[count][0]))


# ---- as JSON --------------------------------------------------------------------------------------------------------
# The parts of a report that are totals of the whole recording, as plain data.


RESOLUTION_COSTS = 3  # a mean below this multiple of the probe's own cost is marked
_UNKNOWN_FUNCTION = FunctionInfo(NONE, 0, "", 0, 0, "unknown function", "", "")


def make_document(
    facts: RecordingFacts,
    statistics: Statistics,
    counts: PipelineCounts,
    captured: CapturedValues,
    ns_per_tick: float,
) -> dict[str, Any]:
    sizes = statistics.histogram(Distribution.BATCH_SIZE)
    return {
        "functions": _list_functions(facts, statistics.functions(), captured, ns_per_tick),
        "batches": {
            "count": counts.batches,
            "size_histogram": [[int(size), int(count)] for size, count in sizes],
            "latency_ns": _quantiles(statistics, Distribution.BATCH_TICKS, ns_per_tick),
        },
        "packets": {
            "received": counts.received,
            "transmitted": counts.transmitted,
            "dropped": counts.dropped,
            **{name: count for name in ("punted", "absorbed") if (count := getattr(counts, name))},
            "unknown": counts.unknown + counts.pending,
            "latency_ns": _quantiles(statistics, Distribution.PACKET_TICKS, ns_per_tick),
            "latency_from": statistics.origins(),
            "prior": statistics.describe_prior(ns_per_tick),
            "slowest": [],
        },
        "lost": _count_lost(facts, counts),
        "calls": counts.calls,
        "records": counts.records,
        "unpaired": {"entries": counts.unpaired_entries, "exits": counts.unpaired_exits},
        "threads": _list_threads(facts),
        "recording": {
            "pid": facts.header.pid,
            "executable": facts.header.executable,
            "version": facts.header.resource.get("service.version"),
            "start_unix_ns": facts.header.start_unix_ns,
            "complete": facts.complete,
            "damage": facts.damage,
            "stolen": facts.summary.get("stolen"),
        },
    }


def _list_functions(
    facts: RecordingFacts, rows: Rows, captured: CapturedValues, ns_per_tick: float
) -> list[dict[str, Any]]:
    called = {int(row["function"]): row for row in rows}
    functions = []
    for id in sorted(facts.functions.keys() | called.keys()):
        function = facts.functions.get(id, _UNKNOWN_FUNCTION)
        row = called.get(id)
        entry = {
            "module": function.module,
            "offset": function.offset,
            "name": function.name or f"function {id}",
            "calls": int(row["count"]) if row is not None else 0,
        }
        for name in ("total", "self", "min", "p50", "p90", "p99", "max"):
            entry[f"{name}_ns"] = round(int(row[f"{name}_ticks"]) * ns_per_tick) if row is not None else 0
        entry |= _describe_cost(function, row, ns_per_tick) | {"counters": {}}
        functions.append(entry | captured.describe(id))
    return functions


def add_counters(document: dict[str, Any], facts: RecordingFacts, statistics: Statistics, sums: SessionSums) -> None:
    called = {int(row["function"]) for row in statistics.functions()}
    for id, entry in zip(sorted(facts.functions.keys() | called), document["functions"], strict=True):
        entry["counters"] = sums.of_function(id)
    document["batches"]["counters"] = sums.of_batches()


def _describe_cost(function: FunctionInfo, row: np.void | None, ns_per_tick: float) -> dict[str, Any]:
    """Returns the raw measurement including the probes' own cost, and whether it consists mostly of that cost."""
    names = ("total", "self", "min", "max")
    raw = {f"{name}_ns": round(int(row[f"raw_{name}_ticks"]) * ns_per_tick) if row is not None else 0 for name in names}
    calls = int(row["count"]) if row is not None else 0
    mean_ticks = int(row["total_ticks"]) / calls if row is not None and calls else 0.0
    is_mark = function.strategy == ENTRY_ONLY
    return {
        "raw": raw,
        "probe_ns": {
            "inside": round(function.probe_inside_ticks * ns_per_tick, 1),
            "whole": round(function.probe_whole_ticks * ns_per_tick, 1),
        },
        "strategy": function.strategy,
        "below_resolution": bool(calls and not is_mark and mean_ticks < RESOLUTION_COSTS * function.probe_whole_ticks),
    }


def _quantiles(statistics: Statistics, distribution: Distribution, ns_per_tick: float) -> dict[str, int | None]:
    summary = statistics.summary(distribution)
    if not summary["count"]:
        return {"p50": None, "p99": None, "p999": None, "max": None}
    found = {
        name: round(statistics.quantile(distribution, quantile) * ns_per_tick)
        for name, quantile in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
    }
    return {**found, "max": round(summary["max"] * ns_per_tick)}


def _count_lost(facts: RecordingFacts, counts: PipelineCounts) -> dict[str, int]:
    # The thread table is exact but may be missing in a truncated recording; LOST records are where the loss occurred.
    lost = {}
    for index, name in enumerate(LOST_CLASSES):
        said = sum(thread.lost[index] for thread in facts.counters.values() if index < len(thread.lost))
        lost[name] = max(said, counts.lost[index])
    return lost | ({"mistimed": counts.mistimed} if counts.mistimed else {})


def _list_threads(facts: RecordingFacts) -> list[dict[str, Any]]:
    threads = []
    for index, thread in sorted(facts.threads.items()):
        counters = facts.counters.get(index)
        entry: dict[str, Any] = {"tid": thread.tid, "name": thread.name}
        number = facts.names.thread_number(thread.tid)
        entry |= {} if number is None else {"number": number}
        if counters is not None:
            entry |= {
                "polls": counters.batches + counters.empty_polls,
                "empty_polls": counters.empty_polls,
                "batches": counters.batches,
                "packets": counters.received_packets,
                "handed_over": counters.handed_over_packets,
                "taken_over": counters.taken_over_packets,
            }
        threads.append(entry)
    return threads


# ---- the report -----------------------------------------------------------------------------------------------------


SLOWEST = 5
EVENTS_MAX = 1000  # of drops, described one by one
DISPOSITIONS = {TRANSMITTED: "transmitted", DROPPED: "dropped", PUNTED: "punted", ABSORBED: "absorbed"}


@dataclass(frozen=True)
class TimelineCall:
    """One call near a slow packet; times are ns after the packet's arrival."""

    name: str
    start_ns: float
    end_ns: float
    self_ns: float
    depth: int
    batch_id: int
    is_cause: bool


@dataclass(frozen=True)
class TimelineBatch:
    """One batch near a slow packet; times are ns after the packet's arrival."""

    id: int
    size: int
    start_ns: float
    end_ns: float
    is_own: bool


@dataclass(frozen=True)
class Timeline:
    """What the thread of one slow packet did until the packet's end: from its arrival, or from the start of the batch
    that made it late if that is earlier.

    `number` is the packet's position in `packets.slowest`; times are ns after its arrival, or after the start
    of its batch when the arrival is not known.
    """

    number: int
    own_batch_id: int
    arrival_known: bool
    batch_start_ns: float
    done_ns: float
    batches: list[TimelineBatch]
    calls: list[TimelineCall]


@dataclass(frozen=True)
class Report:
    """A report. `document` is the object of `nfprobe report --format json`."""

    header: RecordingHeader
    document: dict[str, Any]
    timelines: list[Timeline] = field(default_factory=list)
    duration_ns: int = 0
    damage: str = ""


def build_report(
    reader: RecordingReader,
    slowest: int = SLOWEST,
    facts: RecordingFacts | None = None,
    flow: FlowFilter | None = None,
) -> Report:
    """Reads the whole recording; `facts` are those of `reader`, if already read.

    With `flow` the slowest packets, and the late ones whose causes are counted, are of these flows.

    Raises:
        UsageError: its clock is damaged.
    """
    facts = facts or read_facts(reader)
    clock = facts.make_clock()
    ns_per_tick = 1e9 / clock.ticks_per_second
    totals = _Totals(facts, SlowestPackets(slowest, flow))
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        pipeline.set_counter_costs(facts.counter_costs)
        for columns in replay(reader, facts, pipeline):
            totals.add(columns)
        counts = pipeline.counts()
    statistics, kept = totals.statistics, totals.kept
    baseline = totals.sample.baseline()
    late_ticks = statistics.find_late_ticks(LATE_QUANTILE)
    tally = CauseTally(LateCauses(late_ticks, baseline, facts.absences, flow))
    dropped = DropTally(lambda: baseline, facts.queue_drops, facts.absences, round(clock.ticks_per_second))
    near = _gather(reader, facts, kept.slowest(), tally, dropped)
    packets = [(slow, find_packet(near, slow)) for slow in kept.slowest()]
    packets = [(slow, row) for slow, row in packets if row >= 0]
    causes = find_causes(near, np.array([row for _, row in packets], np.intp), baseline, facts.absences)
    scene = _Scene(facts, near, ns_per_tick, totals.extent.first_ticks)
    described = [scene.describe(slow, row, cause) for (slow, row), cause in zip(packets, causes, strict=True)]
    timelines = [
        scene.draw(number, slow, row, cause)
        for number, ((slow, row), cause) in enumerate(zip(packets, causes, strict=True))
    ]
    document = make_document(facts, statistics, counts, totals.captured, ns_per_tick)
    add_counters(document, facts, statistics, totals.sums)
    document["nodes"] = totals.nodes.describe(facts.names, ns_per_tick)
    document["packets"]["drop_reasons"] = totals.drops.describe(facts.names.reasons)
    document["packets"]["slowest"] = described
    document["packets"]["flow"] = flow.expression if flow else None
    document["batches"]["undetailed"] = totals.undetailed
    document["packets"]["arrivals"] = facts.arrivals.describe() if facts.arrivals else None
    document["packets"]["late"] = {"over_ns": round(late_ticks * ns_per_tick), "packets": tally.judged}
    document["profile"] = _describe_profile(facts)
    document["queue_drops"] = _describe_queue_drops(facts, dropped, scene, clock)
    document["packets"]["causes"] = tally.describe(scene.name, ns_per_tick)
    return Report(reader.header, document, timelines, round(totals.extent.ticks * ns_per_tick), facts.damage)


def draw_packet(reader: RecordingReader, id: int, facts: RecordingFacts) -> list[Timeline]:
    """Returns the timelines of the packets with this ID or content ID whose disposition is known: of the first ones,
    at most DRAWN_MAX.

    Raises:
        UsageError: the recording's clock is damaged.
    """
    totals, drawn = _Totals(facts, SlowestPackets(0)), list[SlowPacket]()
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            totals.add(columns)
            packets = columns.packets
            is_it = ((packets["id"] == id) | (packets["digest"] == id)) & (packets["disposition"] != UNKNOWN)
            is_it &= packets["batch"] < len(columns.batches)
            drawn += _describe_packets(columns, np.flatnonzero(is_it)[: DRAWN_MAX - len(drawn)])
    surroundings = Surroundings(drawn)
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline) if drawn else ():
            surroundings.add(columns)
    near = surroundings.columns()
    found = [(one, row) for one in drawn if (row := find_packet(near, one)) >= 0]
    rows = np.array([row for _, row in found], np.intp)
    causes = find_causes(near, rows, totals.sample.baseline(), facts.absences) if found else ()
    scene = _Scene(facts, near, 1e9 / facts.make_clock().ticks_per_second, totals.extent.first_ticks)
    return [scene.draw(number, *one, cause) for number, (one, cause) in enumerate(zip(found, causes, strict=True))]


def _describe_profile(facts: RecordingFacts) -> dict[str, Any] | None:
    found = describe_samples(facts.samples)
    return found and found | {"counters": describe_counts(facts.sample_counts)}


def _gather(
    reader: RecordingReader, facts: RecordingFacts, slowest: list[SlowPacket], tally: CauseTally, dropped: DropTally
) -> Columns:
    surroundings = Surroundings(slowest)
    if slowest or len(facts.queue_drops):
        with Pipeline(facts.roles) as pipeline:
            for columns in replay(reader, facts, pipeline):
                surroundings.add(columns)
                tally.add(columns)
                dropped.add(columns)
    return surroundings.columns()


def _describe_queue_drops(
    facts: RecordingFacts, dropped: DropTally, scene: _Scene, clock: Clock
) -> dict[str, Any] | None:
    """Returns what queues dropped and what had filled them: the events that cost most, in the order of time."""
    if not len(facts.queue_drops):
        return None
    events = dropped.finish()
    counts = QueueDropCounts()
    counts.add(dropped.drops)
    kept = sorted(sorted(events, key=lambda event: -event.packets)[:EVENTS_MAX], key=lambda event: event.since_ticks)

    def name_thread(index: int) -> dict[str, Any] | None:
        thread = facts.threads.get(index)
        return {"tid": thread.tid, "name": thread.name} if thread else None

    def to_unix_ns(ticks: int) -> int:
        return int(clock.convert(np.array([ticks], np.uint64))[0])

    ns_per_tick = 1e9 / clock.ticks_per_second
    return {
        "queues": counts.describe(),
        "events": describe_drops(dropped, kept, scene.name, name_thread, to_unix_ns, ns_per_tick),
        "more_events": len(events) - len(kept),
    }


class _Extent:
    # From the first to the last tick of any call or batch.
    def __init__(self) -> None:
        self._first: int | None = None
        self._last = 0

    def add(self, columns: Columns) -> None:
        for rows in (columns.calls, columns.batches):
            if len(rows):
                first = int(rows["start_ticks"].min())
                self._first = first if self._first is None else min(self._first, first)
                self._last = max(self._last, int(rows["end_ticks"].max()))

    @property
    def first_ticks(self) -> int:
        return self._first or 0

    @property
    def ticks(self) -> int:
        return 0 if self._first is None else max(0, self._last - self._first)


class _Totals:
    # Totals over all drained columns.
    def __init__(self, facts: RecordingFacts, kept: SlowestPackets) -> None:
        self.statistics, self.kept, self.extent = LatenessStatistics(), kept, _Extent()
        self.captured, self.sample, self.undetailed = CapturedValues(), BatchSample(), 0
        self.sums = SessionSums(facts.counter_sets)
        self.statistics.set_costs(facts.costs)
        self.nodes, self.drops = NodeCounts(), DropReasons()
        self.nodes.learn(facts.functions.values())

    def add(self, columns: Columns) -> None:
        parts = (self.statistics, self.nodes, self.drops, self.captured, self.sums, self.sample, self.kept, self.extent)
        for part in parts:
            part.add(columns)
        self.undetailed += int(np.count_nonzero(columns.batches["flags"] & BatchFlag.UNDETAILED))


def _sum_up(names: list[str], counts: Words) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for name, count, known in zip(names, counts.tolist(), is_known(counts).tolist(), strict=True):
        sums[name] += count if known else 0
    return dict(sums.most_common())


class _Scene:
    # Slow packets among the batches around them.
    def __init__(self, facts: RecordingFacts, near: Columns, ns_per_tick: float, begin_ticks: int) -> None:
        self._facts = facts
        self._begin_ticks = begin_ticks
        self._near = near
        self._ns_per_tick = ns_per_tick
        self._places = AddressNames(facts.places)

    def describe(self, slow: SlowPacket, row: int, cause: np.void) -> dict[str, Any]:
        packet = self._near.packets[row]
        batch = self._near.batches[packet["batch"]]
        source = find_source(packet, batch)
        kind = CauseKind(int(cause["kind"]))
        thread = self._facts.threads.get(slow.thread)
        return {
            "id": f"{int(packet['id']):016x}",
            "content_id": f"{int(packet['digest']):016x}",
            "flow": describe_flow(packet, self._near.topic(int(packet["digest"]))),
            "latency_ns": self._ns(slow.latency_ticks),
            "cause": {
                "kind": kind.name.lower(),
                "function": self.name(int(cause["function"])) if cause["function"] != NONE else None,
                "excess_ns": self._ns(int(cause["excess_ticks"])),
                "late_ns": self._ns(int(cause["late_ticks"])),
                "parts": [self._part(part) for part in cause["parts"] if part["kind"]],
                "unexplained_ns": self._ns(int(cause["rest_ticks"])),
                "batch": int(cause["batch_id"]) if cause["batch"] != NONE else None,
                "share": round(float(cause["share"]), 4),
                "saturated": bool(cause["saturated"]),
                "flow": self._burst_flow(cause),
                "by": cause["by"].decode("utf-8", "replace") or None,
                "command": describe_hold(self._near.holds[cause["hold"]]) or None if cause["hold"] != NONE else None,
            },
            "queue_wait_ns": None
            if source in (None, SATURATED)
            else self._ns(slow.batch_start_ticks - slow.start_ticks),
            "arrival_source": source,
            "disposition": DISPOSITIONS.get(int(packet["disposition"]), "unknown"),
            "length": int(packet["length"]),
            "batch": slow.batch_id,
            "batch_size": int(batch["size"]),
            "tid": thread.tid if thread else None,
            **({"precedes_recording": True} if slow.start_ticks < self._begin_ticks else {}),
            **self._samples_of(slow),
        }

    def _part(self, part: np.void) -> dict[str, Any]:
        return {
            "kind": CauseKind(int(part["kind"])).name.lower(),
            "function": self.name(int(part["function"])) if part["function"] != NONE else None,
            "by": part["by"].decode("utf-8", "replace") or None,
            "batch": int(part["batch_id"]),
            "batch_ns": self._ns(int(part["batch_ticks"])),
            "during": self._find_during(part),
            "ns": self._ns(int(part["ticks"])),
        }

    def _find_during(self, part: np.void) -> str | None:
        """Returns which function stood still: in that batch the call with most time of its own, if that is so long."""
        if part["kind"] in NOT_AWAY:
            return None
        batch = self._near.batches[part["batch"]]
        calls = self._near.calls[int(batch["first_call"]) : int(batch["first_call"]) + int(batch["calls"])]
        if not len(calls) or calls["self_ticks"].max() < part["ticks"] // 2:
            return None
        return self.name(int(calls["function"][calls["self_ticks"].argmax()]))

    def _samples_of(self, slow: SlowPacket) -> dict[str, Any]:
        """Returns the samples of its thread during its life, and their counter increases; nothing without a profile."""
        samples = self._facts.samples
        if not len(samples):
            return {}
        seen = np.flatnonzero(
            (samples["thread"] == slow.thread)
            & (samples["ticks"] >= slow.start_ticks)
            & (samples["ticks"] < slow.done_ticks)
        )
        names = [self._places.name(*key) for key in addresses_of(samples[seen])]
        found: dict[str, Any] = {"samples": dict(Counter(names).most_common())}
        if self._facts.sample_counts:
            found["sample_counts"] = {
                counter: _sum_up(names, column[seen]) for counter, column in self._facts.sample_counts.items()
            }
        return found

    def _burst_flow(self, cause: np.void) -> dict[str, Any] | None:
        """Returns the flow with the largest share of a burst."""
        if cause["flow_packet"] == NONE:
            return None
        packet = self._near.packets[cause["flow_packet"]]
        flow = describe_flow(packet, self._near.topic(int(packet["digest"])))
        return {"flow": flow, "share": round(float(cause["flow_share"]), 4)}

    def draw(self, number: int, slow: SlowPacket, row: int, cause: np.void) -> Timeline:
        batches, packet = self._near.batches, self._near.packets[row]
        since, shown = slow.start_ticks, np.isin(batches["id"], slow.batch_ids)
        if cause["batch"] != NONE:  # it may have ended before the packet arrived, with others queued since
            shown[cause["batch"]] = True
            since = min(since, int(batches["start_ticks"][cause["batch"]]))
        shown |= (
            (batches["thread"] == slow.thread)
            & (batches["end_ticks"] > since)
            & (batches["start_ticks"] <= slow.done_ticks)
        )
        rows = np.flatnonzero(shown)
        rows = rows[np.argsort(batches["start_ticks"][rows], kind="stable")]
        return Timeline(
            number,
            slow.batch_id,
            find_source(packet, batches[packet["batch"]]) in (STAMP, CAPTURE),
            self._after(slow, slow.batch_start_ticks),
            self._after(slow, slow.done_ticks),
            [self._batch(slow, batches[index]) for index in rows],
            [call for index in rows for call in self._calls(slow, batches[index], int(cause["call"]))],
        )

    def _batch(self, slow: SlowPacket, batch: np.void) -> TimelineBatch:
        start, end = self._after(slow, int(batch["start_ticks"])), self._after(slow, int(batch["end_ticks"]))
        return TimelineBatch(int(batch["id"]), int(batch["size"]), start, end, int(batch["id"]) in slow.batch_ids)

    def _calls(self, slow: SlowPacket, batch: np.void, culprit: int) -> list[TimelineCall]:
        first, count = int(batch["first_call"]), int(batch["calls"])
        return [
            TimelineCall(
                self.name(int(call["function"])),
                self._after(slow, int(call["start_ticks"])),
                self._after(slow, int(call["end_ticks"])),
                self._ns(int(call["self_ticks"])),
                int(call["depth"]),
                int(batch["id"]),
                index == culprit,
            )
            for index, call in enumerate(self._near.calls[first : first + count], first)
        ]

    def name(self, function: int) -> str:
        """Returns a function's name by its ID."""
        return self._facts.functions.get(function, _UNKNOWN_FUNCTION).name or f"function {function}"

    def _after(self, slow: SlowPacket, ticks: int) -> float:
        return (ticks - slow.start_ticks) * self._ns_per_tick

    def _ns(self, ticks: int) -> int:
        return round(ticks * self._ns_per_tick)
