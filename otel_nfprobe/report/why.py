# SPDX-License-Identifier: Apache-2.0
"""What made packets late in a chain of network functions, as the JSON object of `nfprobe why`.

Each recording is replayed once to read its packets, and once or twice more to find the causes of those that matter:
of late packets, and of packets that released them at once. What is computed of them is in the package `chains`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Columns, Rows, concatenate
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.causes.arrivals import Matches
from otel_nfprobe.causes.baseline import Baseline, BatchSample
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.chains.blame import BlameCount, LatePacket, LatePackets, count_blame, find_late, judge_late
from otel_nfprobe.chains.clocks import ClockLink, link_clocks
from otel_nfprobe.chains.follow import BETWEEN, Culprit, Part
from otel_nfprobe.chains.hops import HOP, HOPS_MAX, HopFlag, make_keys, order_hops, read_hops
from otel_nfprobe.chains.join import WINDOW_NS, join_hops, match_unique
from otel_nfprobe.chains.ways import SOURCE, Ways, count_lost, find_ways
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay

SLOWEST = 5
PARTS_SHOWN = 5
TIMES = ("start_ns", "begin_ns", "receive_ns", "send_ns", "done_ns")
RECORDINGS_MAX = 12


@dataclass(frozen=True)
class WhyRequest:
    """What is asked. above_ns: packets with a longer latency are late; None: the slowest 1 %. packet: an id or content
    id, shown instead of the slowest; within_ns: equal ids further apart are of different packets."""

    slowest: int = SLOWEST
    above_ns: int | None = None
    packet: int | None = None
    within_ns: int = WINDOW_NS


@dataclass
class ChainRecording:
    """One recording of the chain. `hops` are in the order in which its threads worked on them."""

    reader: RecordingReader
    facts: RecordingFacts
    clock: Clock  # its own
    name: str = ""
    hops: Rows = field(default_factory=lambda: np.empty(0, HOP))
    left_out: int = 0
    not_identified: int = 0
    baseline: Baseline | None = None
    reference: Clock | None = None  # of its boot
    link: ClockLink | None = None  # from that to the first recording's; None: the same
    flows: dict[int, str] = field(default_factory=dict)  # by row

    @property
    def ns_per_tick(self) -> float:
        return 1e9 / self.clock.ticks_per_second

    def to_own_ns(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """Converts times of the chain to this recording's own Unix time."""
        if self.link is not None:
            times = self.link.convert_back(times)
        assert self.reference is not None
        ticks = self.reference.convert_back(times.astype(np.uint64))
        return self.clock.convert(ticks).astype(np.int64)


@dataclass
class ChainAnalysis:
    """The recordings of a chain, the ways of their packets, and whose delay the late ones have; `shown`: packets."""

    recordings: list[ChainRecording]
    ways: Ways
    late: LatePackets
    shown: NDArray[np.int64]


def build_why(readers: Sequence[RecordingReader], request: WhyRequest) -> dict[str, Any]:
    """Reads the recordings and returns the document.

    Raises:
        UsageError: they cannot be joined; the sentence says why.
    """
    return _Describer(analyse_chain(readers, request)).describe()


def analyse_chain(readers: Sequence[RecordingReader], request: WhyRequest) -> ChainAnalysis:
    """Reads and joins the recordings, and finds whose delay the late packets have.

    Raises:
        UsageError: they cannot be joined; the sentence says why.
    """
    recordings = _open(readers)
    for recording in recordings:
        _read(recording)
    _link(recordings)
    hops = [recording.hops for recording in recordings]
    errors = [_error_ns(recording) for recording in recordings]
    joined = join_hops(hops, request.within_ns, errors)
    if not joined.packets:
        sentence = (
            "No packet was seen in more than one of these recordings: other traffic, other times, or ids made with"
            " another --key."
        )
        raise UsageError(sentence, f"nfprobe report {recordings[0].reader.path}")
    ways = find_ways(hops, joined)
    for number, recording in enumerate(recordings):
        _apply_arrivals(recording, ways, number)
    asked = _find_packets(ways, hops, request.packet)
    shown = asked if request.packet is not None else _find_slowest(ways, hops, request)
    for number, recording in enumerate(recordings):
        first = ways.joined.first[:-1][shown]
        mine = first[ways.joined.recording[first] == number]
        recording.flows = dict.fromkeys(ways.joined.row[mine].tolist(), "")
    late = judge_late(
        hops, ways, lambda number, rows: _judge(recordings[number], rows), request.above_ns, shown.tolist()
    )
    for recording in recordings:
        if "" in recording.flows.values():
            _judge(recording, set())
    return ChainAnalysis(recordings, ways, late, shown)


# ---- reading --------------------------------------------------------------------------------------------------------


def _open(readers: Sequence[RecordingReader]) -> list[ChainRecording]:
    sessions: dict[str, str] = {}
    for reader in readers:
        session = reader.header.session
        if session and session in sessions:
            sentence = f"{sessions[session]} and {reader.path} are of one session, not of two network functions."
            raise UsageError(sentence, f"nfprobe report {reader.path}")
        sessions[session] = reader.path
    if len(readers) > RECORDINGS_MAX:
        raise UsageError(
            f"At most {RECORDINGS_MAX} recordings can be joined, not {len(readers)}.", "nfprobe why --help"
        )
    recordings = []
    for reader in readers:
        facts = read_facts(reader)
        recordings.append(ChainRecording(reader, facts, facts.make_clock()))
    for recording, name in zip(recordings, _find_names(recordings), strict=True):
        recording.name = name
    for recording in recordings:
        boot = recording.reader.header.boot_id
        recording.reference = next(
            (other.clock for other in recordings if boot and other.reader.header.boot_id == boot), recording.clock
        )
    return recordings


def _find_names(recordings: Sequence[ChainRecording]) -> list[str]:
    """Returns the services' names; those of files where services have the same."""
    services = [
        recording.facts.header.resource.get("service.name") or PurePath(recording.facts.header.executable).name
        for recording in recordings
    ]
    counts = Counter(services)
    names = [
        service if service and counts[service] == 1 else Path(recording.reader.path).stem
        for service, recording in zip(services, recordings, strict=True)
    ]
    return [name if names.count(name) == 1 else f"{name}#{at + 1}" for at, name in enumerate(names)]


def _read(recording: ChainRecording) -> None:
    """Reads all packets, and what is usual."""
    facts, sample, parts, count = recording.facts, BatchSample(), [np.empty(0, HOP)], 0
    reference = recording.reference
    assert reference is not None
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        for columns in replay(recording.reader, facts, pipeline):
            sample.add(columns)
            recording.not_identified += int(columns.batches["size"].sum()) - len(columns.packets)
            found = read_hops(columns, lambda ticks: reference.convert(ticks).astype(np.int64))
            kept = found[: HOPS_MAX - count]
            parts.append(kept)
            count += len(kept)
            recording.left_out += len(found) - len(kept)
    recording.hops = order_hops(np.concatenate(parts))
    recording.baseline = sample.baseline()
    if not len(recording.hops):
        sentence = f"{recording.reader.path} has no identified packets, so nothing can be joined with it."
        raise UsageError(sentence, f"nfprobe attach PID --packets all --record {recording.reader.path}")


def _link(recordings: Sequence[ChainRecording]) -> None:
    """Converts all times to the first recording's clock, as far as the packets tell."""
    linked = [one for one in recordings if one.reference is recordings[0].reference]
    left = [one for one in recordings if one.reference is not recordings[0].reference]
    while left:
        pairs = [(len(match_unique(here.hops, there.hops)[0]), here, there) for here in linked for there in left]
        _, here, there = max(pairs, key=lambda pair: pair[0])
        link = link_clocks(here.hops, there.hops)
        if link is None:
            sentence = (
                f"{there.reader.path} was recorded on another host or after another boot, and too few of its packets"
                f" are in {here.reader.path}: other traffic, other times, or ids made with another --key."
            )
            raise UsageError(sentence, f"nfprobe report {there.reader.path}")
        if here.link is not None and link.error_ns is not None:
            link = replace(link, error_ns=link.error_ns + _error_ns(here))
        group = [one for one in left if one.reference is there.reference]
        for one in group:
            one.link = link
            for name in TIMES:
                one.hops[name] = link.convert(one.hops[name])
            emptied = one.hops["emptied_ns"]
            one.hops["emptied_ns"] = np.where(emptied != 0, link.convert(emptied), 0)
        linked += group
        left = [one for one in left if one.reference is not there.reference]


def _error_ns(recording: ChainRecording) -> int:
    return 0 if recording.link is None else recording.link.error_ns or 0


# ---- causes ---------------------------------------------------------------------------------------------------------


def _apply_arrivals(recording: ChainRecording, ways: Ways, number: int) -> None:
    """Lets replays of this recording know when packets arrived from another one, and what latency is usual then."""
    mine = np.flatnonzero(ways.joined.recording == number)
    came = mine[ways.previous[mine] != SOURCE]
    keys = make_keys(recording.hops[ways.joined.row[came]])
    order = np.argsort(keys)
    times = recording.to_own_ns(ways.arrival_ns[came][order])
    recording.facts.arrivals = Matches(keys[order], times, len(recording.hops))
    if len(mine) and recording.baseline is not None:
        usual = round(float(np.median(ways.durations_ns[mine])) / recording.ns_per_tick)
        recording.baseline = replace(recording.baseline, latency_ticks=usual)


def _judge(recording: ChainRecording, rows: set[int]) -> Mapping[int, list[Part]]:
    """Finds the causes of these hops in their own recording, by one replay."""
    wanted = np.array(sorted(rows | recording.flows.keys()), np.int64)
    keys = make_keys(recording.hops[wanted])
    order = np.argsort(keys)
    keys, wanted = keys[order], wanted[order]
    parts: dict[int, list[Part]] = {}
    before = Columns()
    facts, baseline = recording.facts, recording.baseline
    assert baseline is not None
    with Pipeline(facts.roles) as pipeline:
        pipeline.set_costs(facts.costs)
        for columns in replay(recording.reader, facts, pipeline):
            packets, found = _find_keys(columns, keys)
            if len(packets):
                both = concatenate([before, columns])
                packets = packets + len(before.packets)
                causes = find_causes(both, packets, baseline, facts.absences)
                for packet, row, cause in zip(packets.tolist(), wanted[found].tolist(), causes, strict=True):
                    parts[row] = parts_of(cause, recording.ns_per_tick)
                    if row in recording.flows:
                        one = both.packets[packet]
                        recording.flows[row] = describe_flow(one, both.topic(int(one["digest"])))
            before = columns
    return parts


def parts_of(cause: np.void, ns_per_tick: float) -> list[Part]:
    """Returns what delayed a packet, of a row of dtype CAUSE, the largest part first."""
    return [
        Part(
            int(part["kind"]),
            int(part["function"]),
            part["by"].decode("utf-8", "replace"),
            float(part["ticks"]) * ns_per_tick,
            int(part["batch_id"]),
        )
        for part in cause["parts"][cause["parts"]["kind"] != 0]  # few of them
        if part["kind"] != CauseKind.UNKNOWN
    ]


def _find_keys(columns: Columns, keys: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the packets of these columns that have one of the keys (sorted), and which one."""
    packets = columns.packets
    rows = np.flatnonzero(packets["batch"] < len(columns.batches))
    if not len(rows) or not len(keys):
        return np.empty(0, np.intp), np.empty(0, np.intp)
    ids = columns.batches["id"][packets["batch"][rows]] << np.uint64(16)
    mine = ids | (packets["index"][rows] & np.uint32(0xFFFF)).astype(np.uint64)
    at = np.minimum(np.searchsorted(keys, mine), len(keys) - 1)
    found = keys[at] == mine
    return rows[found], at[found]


# ---- what is shown --------------------------------------------------------------------------------------------------


def _find_packets(ways: Ways, hops: Sequence[Rows], packet: int | None) -> NDArray[np.int64]:
    """Returns the joined packets with this id or content id at any hop.

    Raises:
        UsageError: there is none.
    """
    if packet is None:
        return np.empty(0, np.int64)
    found = np.zeros(len(ways.joined.row), bool)
    for number, rows in enumerate(hops):
        mine = ways.joined.recording == number
        here = rows[ways.joined.row[mine]]
        found[mine] = (here["id"] == np.uint64(packet)) | (here["content"] == np.uint64(packet))
    if not found.any():
        sentence = f"No packet with the id {packet:016x} was joined: it is in one recording or none, or not unique."
        raise UsageError(sentence, "nfprobe ids FILE.pcap")
    numbers: NDArray[np.int64] = distinct(ways.joined.packet[found])
    return numbers[np.argsort(-ways.latency_ns[numbers], kind="stable")]


def _find_slowest(ways: Ways, hops: Sequence[Rows], request: WhyRequest) -> NDArray[np.int64]:
    """Returns the slowest of the late packets, one of each batch in which the first function received them."""
    _, late = find_late(ways, request.above_ns)
    late = late[np.argsort(-ways.latency_ns[late], kind="stable")]
    first = ways.joined.first[:-1][late]
    batches = np.zeros(len(late), [("recording", "<i2"), ("batch", "<u8")])
    batches["recording"] = ways.joined.recording[first]
    for number, rows in enumerate(hops):
        mine = batches["recording"] == number
        batches["batch"][mine] = rows["batch_id"][ways.joined.row[first[mine]]]
    _, kept = np.unique(batches, return_index=True)
    slowest: NDArray[np.int64] = late[np.sort(kept)][: max(0, request.slowest)]
    return slowest


class _Describer:
    # The document: what was found as plain data.
    def __init__(self, analysis: ChainAnalysis) -> None:
        self._recordings, self._ways, self._late = analysis.recordings, analysis.ways, analysis.late
        self._shown = analysis.shown
        self._hops = [recording.hops for recording in analysis.recordings]

    def describe(self) -> dict[str, Any]:
        shown = self._shown
        by_packet = {late.packet: late for late in self._late.packets}
        shown_set = set(shown.tolist())
        counted = [late for late in self._late.packets if late.packet not in shown_set or self._is_late(late)]
        return {
            "recordings": [self._describe_recording(number) for number in range(len(self._recordings))],
            "clocks": self._describe_clocks(),
            "joined": self._describe_joined(),
            "ways": self._describe_ways(),
            "between": self._describe_between(),
            "late": {"over_ns": self._late.threshold_ns, "packets": self._late.found, "judged": len(counted)},
            "blame": self._describe_blame(count_blame(counted), len(counted)),
            "baseline": self._describe_blame(count_blame(counted, is_local=True), len(counted)),
            "packets": [self._describe_packet(by_packet[packet]) for packet in shown.tolist()],
        }

    def _is_late(self, late: LatePacket) -> bool:
        return bool(self._ways.latency_ns[late.packet] > self._late.threshold_ns)

    def _describe_recording(self, number: int) -> dict[str, Any]:
        recording, facts = self._recordings[number], self._recordings[number].facts
        ambiguous = sum(
            pairs.ambiguous[0 if first == number else 1]
            for (first, second), pairs in self._ways.joined.pairs.items()
            if number in (first, second)
        )
        return {
            "name": recording.name,
            "file": recording.reader.path,
            "pid": facts.header.pid,
            "host": facts.header.host,
            "packets": len(recording.hops),
            "joined": int((self._ways.joined.recording == number).sum()),
            "ambiguous": ambiguous,
            "left_out": recording.left_out,
            "not_identified": max(recording.not_identified, 0),
            "saturated": int(((recording.hops["flags"] & HopFlag.SATURATED) != 0).sum()),
            "complete": facts.complete,
            "damage": facts.damage,
        }

    def _describe_clocks(self) -> list[dict[str, Any]]:
        clocks = []
        for recording in self._recordings:
            link = recording.link
            clocks.append(
                {
                    "name": recording.name,
                    "is_same": link is None,
                    "offset_ns": link.offset_ns if link else 0,
                    "rate": link.rate if link else 0.0,
                    "error_ns": link.error_ns if link else 0,
                    "packets": list(link.pairs) if link else [0, 0],
                    "is_order_known": link.is_order_known if link else True,
                }
            )
        return clocks

    def _describe_joined(self) -> dict[str, int]:
        pairs = self._ways.joined.pairs.values()
        return {
            "packets": self._ways.joined.packets,
            "by_content": sum(one.by_content for one in pairs),
            "impossible": sum(one.impossible for one in pairs),
            "inconsistent": self._ways.joined.inconsistent,
        }

    def _describe_ways(self) -> list[dict[str, Any]]:
        return [
            {
                "way": [self._name(number) for number in route],
                "packets": int((mine := self._ways.way == at).sum()),
                "latency_ns": _quantiles(self._ways.latency_ns[mine]),
            }
            for at, route in enumerate(self._ways.routes)
        ]

    def _describe_between(self) -> list[dict[str, Any]]:
        ways, lost = self._ways, count_lost(self._hops, self._ways)
        edges = sorted(set(zip(ways.previous.tolist(), ways.joined.recording.tolist(), strict=True)))
        found = []
        for previous, number in edges:
            if previous == SOURCE:
                continue
            mine = (ways.previous == previous) & (ways.joined.recording == number)
            found.append(
                {
                    "from": self._name(previous),
                    "to": self._name(number),
                    "packets": int(mine.sum()),
                    "at_least_ns": _quantiles(ways.between_ns[mine]),
                    "at_most_ns": _quantiles(ways.at_most_ns[mine]),
                    "lost": lost.get((previous, number)),
                }
            )
        return sorted(found, key=lambda one: -one["packets"])

    def _describe_blame(self, counts: Sequence[BlameCount], judged: int) -> list[dict[str, Any]]:
        return [
            {
                **self._describe_culprit(count.culprit),
                "packets": count.packets,
                "share": round(count.packets / judged, 4),
                "mean_ns": round(count.total_ns / count.packets),
                "max_ns": round(count.most_ns),
            }
            for count in counts
        ]

    def _describe_culprit(self, culprit: Culprit) -> dict[str, Any]:
        is_between = culprit.kind == BETWEEN
        return {
            "nf": self._name(culprit.recording),
            "kind": "between" if is_between else CauseKind(culprit.kind).name.lower(),
            "function": self._function(culprit),
            "after": self._name(culprit.previous) if is_between else None,
            "by": culprit.by or None,
        }

    def _describe_packet(self, late: LatePacket) -> dict[str, Any]:
        ways, packet = self._ways, late.packet
        first, end = int(ways.joined.first[packet]), int(ways.joined.first[packet + 1])
        number, row = int(ways.joined.recording[first]), int(ways.joined.row[first])
        hop = self._hops[number][row]
        total = sum(late.blame.ns.values())
        parts = sorted(late.blame.ns.items(), key=lambda item: -item[1])
        where = int(ways.joined.recording[late.where])
        return {
            "id": f"{int(hop['id']):016x}",
            "content_id": f"{int(hop['content']):016x}",
            "flow": self._recordings[number].flows.get(row, ""),
            "latency_ns": int(ways.latency_ns[packet]),
            "late_ns": int(ways.late_ns[packet]),
            "late_in": self._name(where),
            "is_between": late.is_between,
            "late_there_ns": int((ways.between_excess_ns if late.is_between else ways.excess_ns)[late.where]),
            "cause": self._describe_part(late, late.culprit, total),
            "local_cause": self._describe_culprit(late.local),
            "parts": [self._describe_part(late, culprit, total) for culprit, _ in parts[:PARTS_SHOWN]],
            "way": [self._describe_hop(at) for at in range(first, end)],
        }

    def _describe_part(self, late: LatePacket, culprit: Culprit, total: float) -> dict[str, Any]:
        ns = late.blame.ns.get(culprit, 0.0)
        via = late.blame.released.get(culprit)
        return {
            **self._describe_culprit(culprit),
            "ns": round(ns),
            "share": round(ns / total, 4) if total else 0.0,
            "held_ns": round(late.blame.held_ns.get(culprit, 0.0)),
            "released": via
            and {
                "by": self._name(via[0].recording),
                "packets": via[0].packets,
                "at": self._name(via[1]),
                "shrunk_ns": via[0].shrunk_ns,
            },
        }

    def _describe_hop(self, at: int) -> dict[str, Any]:
        ways = self._ways
        number, row = int(ways.joined.recording[at]), int(ways.joined.row[at])
        hop = self._hops[number][row]
        begin = min(max(int(hop["begin_ns"]), int(ways.arrival_ns[at])), int(ways.until_ns[at]))
        return {
            "nf": self._name(number),
            "between_ns": int(ways.between_ns[at]) if ways.previous[at] != SOURCE else None,
            "between_at_most_ns": int(ways.at_most_ns[at]) if ways.previous[at] != SOURCE else None,
            "queue_ns": begin - int(ways.arrival_ns[at]),
            "batch_ns": int(ways.until_ns[at]) - begin,
            "excess_ns": int(ways.excess_ns[at]),
            "batch": int(hop["batch_id"]),
            "batch_size": int(hop["size"]),
            "arrival_unix_ns": int(ways.arrival_ns[at]),
        }

    def _name(self, number: int) -> str:
        return self._recordings[number].name

    def _function(self, culprit: Culprit) -> str | None:
        if culprit.function == NONE:
            return None
        function = self._recordings[culprit.recording].facts.functions.get(culprit.function)
        return (function.name if function else "") or f"function {culprit.function}"


def _quantiles(values: NDArray[np.int64]) -> dict[str, int]:
    found = np.quantile(values, (0.5, 0.99, 1.0)) if len(values) else (0, 0, 0)
    return {name: round(float(value)) for name, value in zip(("p50", "p99", "max"), found, strict=True)}
