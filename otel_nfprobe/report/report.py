# SPDX-License-Identifier: Apache-2.0
"""The report: what a recording holds, as the JSON object of `nfprobe report` and as timelines for the page.

Two replays: one for statistics and for which packets were slowest, one for what happened around those. Called
by cli/report.py; the views print it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import ABSORBED, DROPPED, NONE, PUNTED, TRANSMITTED, BatchFlag, Columns
from otel_nfprobe.causes.arrival import CAPTURE, SATURATED, STAMP, find_source
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.causes import CauseTally
from otel_nfprobe.causes.holds import describe_hold
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.causes.lateness import LATE_QUANTILE, LatenessStatistics
from otel_nfprobe.counters.sets import SessionSums
from otel_nfprobe.pipeline.dropreasons import DropReasons
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.flowfilter import FlowFilter
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.values import CapturedValues
from otel_nfprobe.profiling.samplecounts import Words, describe_counts, is_known
from otel_nfprobe.profiling.samples import AddressNames, addresses_of, describe_samples
from otel_nfprobe.recording.nodes import NodeCounts
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.report.reportdocument import add_counters, make_document
from otel_nfprobe.report.slowest import SlowestPackets, SlowPacket, Surroundings, find_packet

SLOWEST = 5
DISPOSITIONS = {TRANSMITTED: "transmitted", DROPPED: "dropped", PUNTED: "punted", ABSORBED: "absorbed"}
_UNKNOWN_FUNCTION = FunctionInfo(NONE, 0, "", 0, 0, "unknown function", "", "")


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
    """What the thread of one slow packet did until the packet was done: from its arrival, or from the begin of the
    batch that made it late when that is earlier.

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
    """What a recording holds. `document` is the object of `nfprobe report --format json`."""

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
    """Reads the whole recording; `facts` are those of `reader`, where they were read already.

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
    typical = totals.sample.typical()
    late_ticks = statistics.find_late_ticks(LATE_QUANTILE)
    tally = CauseTally(late_ticks, typical, facts.switches, flow)
    near = _gather(reader, facts, kept.slowest(), tally)
    packets = [(slow, find_packet(near, slow)) for slow in kept.slowest()]
    packets = [(slow, row) for slow, row in packets if row >= 0]
    causes = find_causes(near, np.array([row for _, row in packets], np.intp), typical, facts.switches)
    scene = _Scene(facts, near, ns_per_tick)
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
    document["packets"]["causes"] = tally.describe(scene.name, ns_per_tick)
    return Report(reader.header, document, timelines, round(totals.extent.ticks * ns_per_tick), facts.damage)


def _describe_profile(facts: RecordingFacts) -> dict[str, Any] | None:
    found = describe_samples(facts.samples)
    return found and found | {"counters": describe_counts(facts.sample_counts)}


def _gather(reader: RecordingReader, facts: RecordingFacts, slowest: list[SlowPacket], tally: CauseTally) -> Columns:
    surroundings = Surroundings(slowest)
    if slowest:
        with Pipeline(facts.roles) as pipeline:
            for columns in replay(reader, facts, pipeline):
                surroundings.add(columns)
                tally.add(columns)
    return surroundings.columns()


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
    def ticks(self) -> int:
        return 0 if self._first is None else max(0, self._last - self._first)


class _Totals:
    # What is summed up over all takes.
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
    # Slow packets amid the batches that were gathered around them.
    def __init__(self, facts: RecordingFacts, near: Columns, ns_per_tick: float) -> None:
        self._facts = facts
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
            "id": f"{int(packet['digest']):016x}",
            "flow": describe_flow(packet, self._near.topic(int(packet["digest"]))),
            "latency_ns": self._ns(slow.latency_ticks),
            "cause": {
                "kind": kind.name.lower(),
                "function": self.name(int(cause["function"])) if cause["function"] != NONE else None,
                "excess_ns": self._ns(int(cause["excess_ticks"])),
                "batch": int(cause["batch_id"]) if cause["batch"] != NONE else None,
                "share": round(float(cause["share"]), 4),
                "saturated": bool(cause["saturated"]),
                "flow": self._burst_flow(cause),
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
            **self._samples_of(slow),
        }

    def _samples_of(self, slow: SlowPacket) -> dict[str, Any]:
        """Where its thread was seen while it was there, and what it counted there; nothing without a profile."""
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
        """The flow that made most of a burst."""
        if cause["flow_packet"] == NONE:
            return None
        packet = self._near.packets[cause["flow_packet"]]
        flow = describe_flow(packet, self._near.topic(int(packet["digest"])))
        return {"flow": flow, "share": round(float(cause["flow_share"]), 4)}

    def draw(self, number: int, slow: SlowPacket, row: int, cause: np.void) -> Timeline:
        batches, packet = self._near.batches, self._near.packets[row]
        since, shown = slow.start_ticks, batches["id"] == slow.batch_id
        if cause["batch"] != NONE:  # it may have ended before the packet came, with others in the queue since
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
        return TimelineBatch(int(batch["id"]), int(batch["size"]), start, end, int(batch["id"]) == slow.batch_id)

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
        """A function's name by its id."""
        return self._facts.functions.get(function, _UNKNOWN_FUNCTION).name or f"function {function}"

    def _after(self, slow: SlowPacket, ticks: int) -> float:
        return (ticks - slow.start_ticks) * self._ns_per_tick

    def _ns(self, ticks: int) -> int:
        return round(ticks * self._ns_per_tick)
