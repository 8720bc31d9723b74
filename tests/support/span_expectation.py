# SPDX-License-Identifier: Apache-2.0
"""What the spans of a packet must be, in plain Python from the columns, apart from the C encoder."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.clock import ANCHOR, Clock
from otel_nfprobe.base.columns import NONE, Columns, Rows
from otel_nfprobe.causes.holds import describe_hold
from otel_nfprobe.export.span import TAIL_KINDS, TAIL_PART
from tests.support.synthetic_columns import SECOND_TICKS, START_NS, START_TICKS

SAMPLE, SLOW, SLOWEST = 1, 2, 4
NAMES = ["burst_receive", "engine<int>", "lookup", "burst_transmit"]
THREADS = [(4711, "lcore-worker-1"), (4712, "")]
STATE = "ot=th:fd70a4"


def make_clock() -> Clock:
    rate = (10**9 << 32) // SECOND_TICKS
    middle = START_TICKS + 700_000
    anchors = [(START_TICKS, START_NS, rate), (middle, START_NS + (700_000 * rate >> 32), rate + 2000)]
    return Clock.from_anchors(np.array(anchors, dtype=ANCHOR), 0)


def value_of(value: AnyValue) -> Any:
    if value.HasField("array_value"):
        return [value_of(part) for part in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


def attributes_of(entries: Iterable[KeyValue]) -> dict[str, Any]:
    values = {entry.key: value_of(entry.value) for entry in entries}
    assert len(values) == len(entries)
    return values


def make_parts(random: np.random.Generator, tails: Rows) -> Rows:
    """Parts of random packets; of some packets too many, or not there."""
    parts = np.zeros(5 * len(tails), TAIL_PART)
    parts["kind"] = random.integers(1, len(TAIL_KINDS), len(parts))
    parts["function"] = random.choice([0, 1, 3, 4, NONE], len(parts))
    parts["by"] = random.choice([b"", b"softirq NET_RX", b"x" * 40], len(parts))
    parts["ns"] = random.integers(0, 2**62, len(parts)) >> random.integers(0, 62, len(parts))
    tails["part_count"] = random.integers(0, 9, len(tails))
    tails["first_part"] = random.integers(0, len(parts) + 2, len(tails))
    return parts


def describe_ns(duration_ns: int) -> str:
    for unit, unit_ns in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if duration_ns >= unit_ns - unit_ns // 2000:
            for digits in (2, 1, 0):
                rounded = (Decimal(duration_ns) / unit_ns).quantize(Decimal(10) ** -digits, ROUND_HALF_UP)
                if rounded < 10 ** (3 - digits):
                    break
            return f"{rounded} {unit}"
    return f"{duration_ns} ns"


def describe_part(part: np.void) -> str:
    owner = {"unknown": "unexplained"}.get(kind := TAIL_KINDS[part["kind"]], kind)
    if kind in ("own", "queue"):
        owner = NAMES[part["function"]] if part["function"] < len(NAMES) else "unprobed code"
    return f"{owner}{': ' if part['by'] else ''}{part['by'].decode()} {describe_ns(int(part['ns']))}"


# What the spans of one packet must be, from the columns, in plain Python.
class Expectation:
    def __init__(
        self, columns: Columns, index: int, reasons: int, tail: np.void | None, parts: Rows | None = None
    ) -> None:
        self.columns = columns
        self.packet = columns.packets[index]
        self.batch = columns.batches[int(self.packet["batch"])]
        first = int(self.batch["first_call"])
        self.calls = columns.calls[first : first + int(self.batch["calls"])]
        self.first = first
        self.reasons = reasons
        self.tail = tail
        self.parts = np.empty(0, TAIL_PART) if parts is None else parts
        self.clock = make_clock()

    def ns(self, ticks: int) -> int:
        return int(self.clock.convert([ticks])[0])

    def arrived(self) -> bool:
        known = bool(self.packet["flags"] & 1 and self.packet["arrival_ticks"])
        return known and self.packet["arrival_ticks"] <= self.batch["start_ticks"]

    def source(self) -> str | None:
        if self.arrived():
            return "capture" if self.packet["flags"] & 5 == 5 else "mbuf stamp"
        if not self.batch["earliest_ticks"]:
            return None
        return "saturated" if self.batch["flags"] & 8 else "poll"

    def arrival_attributes(self) -> dict[str, Any]:
        source = self.source()
        values: dict[str, Any] = {"nf.arrival.source": source} if source else {}
        if source in ("poll", "saturated"):
            values["nf.arrival.latest"] = self.ns(self.packet["receive_ticks"])
        if source == "poll":
            values["nf.arrival.earliest"] = self.ns(self.batch["earliest_ticks"])
        return values

    def root_times(self) -> tuple[int, int]:
        bound = self.batch["earliest_ticks"] or self.batch["start_ticks"]
        start = self.ns(self.packet["arrival_ticks"] if self.arrived() else bound)
        end = self.ns(self.packet["done_ticks"] or self.batch["end_ticks"])
        return start, max(start, end)

    def root_name(self) -> str:
        if self.reasons & (SLOW | SLOWEST):
            if self.tail is not None and self.tail["function"] < len(NAMES):
                return f"late packet: {NAMES[self.tail['function']]}"
            number = 0 if self.tail is None else int(self.tail["kind"])
            kind = TAIL_KINDS[number] if number < len(TAIL_KINDS) else ""
            names = {"queue": ": queue wait", "burst": ": queue wait", "preemption": ": preemption"}
            names |= {other: f": {other}" for other in ("barrier", "interrupt", "host")}
            return "late packet" + names.get(kind, "")
        return "dropped packet" if self.packet["disposition"] == 2 else "packet"

    def root_attributes(self) -> dict[str, Any]:
        packet = self.packet
        start, end = self.root_times()
        values: dict[str, Any] = {
            "nf.packet.id": f"{packet['id']:016x}",
            "nf.packet.content_id": f"{packet['digest']:016x}",
            "nf.packet.length": packet["length"],
            "nf.packet.disposition": ["unknown", "transmitted", "dropped", "punted", "absorbed"][packet["disposition"]],
        }
        if packet["disposition"] == 1 and packet["done_digest"] not in (0, packet["digest"]):
            values["nf.packet.done_content_id"] = f"{packet['done_digest']:016x}"
        marks = {2: "repeated", 16: "fragment", 32: "truncated", 64: "malformed", 128: "inner"}
        values |= {f"nf.packet.{name}": True for bit, name in marks.items() if packet["flags"] & bit}
        if packet["done_ticks"] and packet["disposition"]:
            values["nf.packet.latency_ns"] = end - start
            values["nf.latency.bucket"] = expected_bucket(end - start)
        if self.reasons:
            strongest = "slow" if self.reasons & SLOW else "slowest" if self.reasons & SLOWEST else "sample"
            values["nf.sampling.reason"] = strongest
        return values | self.flow_attributes() | self.tail_attributes() | self.arrival_attributes()

    def flow_attributes(self) -> dict[str, Any]:
        packet, version = self.packet, int(self.packet["ip_version"])
        if version not in (4, 6):
            return {}
        size = {4: 4, 6: 16}[version]
        values: dict[str, Any] = {"network.type": f"ipv{version}"}
        for side in ("source", "destination"):
            values[f"{side}.address"] = format_address(bytes(packet[side][:size]))
        transports = {1: "icmp", 6: "tcp", 17: "udp", 33: "dccp", 58: "icmp", 132: "sctp", 136: "udplite"}
        name = transports.get(int(packet["protocol"]))
        if name:
            values["network.transport"] = name
        if packet["protocol"] == 50:
            values["nf.packet.spi"] = int(packet["source_port"]) << 16 | int(packet["destination_port"])
        if name not in (None, "icmp"):
            values["source.port"] = packet["source_port"]
            values["destination.port"] = packet["destination_port"]
        return values

    def tail_attributes(self) -> dict[str, Any]:
        if self.tail is None or not 0 < self.tail["kind"] < len(TAIL_KINDS):
            return {}
        values = {"nf.tail.cause": TAIL_KINDS[self.tail["kind"]]}
        if self.tail["flags"] & 1:
            values["nf.tail.saturated"] = True
        values |= self.part_attributes()
        if TAIL_KINDS[self.tail["kind"]] == "unknown":
            return values
        values |= {
            "nf.tail.excess_ns": self.tail["excess_ns"],
            "nf.tail.batch": self.tail["batch_id"],
            "nf.tail.share": self.tail["share"],
        }
        holds = self.columns.holds
        if TAIL_KINDS[self.tail["kind"]] == "barrier" and self.tail["hold"] < len(holds):
            values["nf.tail.command"] = describe_hold(holds[self.tail["hold"]])
        if self.tail["by"]:
            values["nf.tail.by"] = self.tail["by"].decode()
        if TAIL_KINDS[self.tail["kind"]] == "burst":
            values |= self.burst_attributes()
        if self.tail["function"] < len(NAMES):
            values["nf.tail.function"] = NAMES[self.tail["function"]]
        return values

    def part_attributes(self) -> dict[str, Any]:
        assert self.tail is not None
        first, count = int(self.tail["first_part"]), int(self.tail["part_count"])
        parts = self.parts[first : first + count]
        if len(parts) < count or not 0 < count <= 7 or not (parts["kind"] > 0).all():
            return {}
        return {
            "nf.tail.parts": [describe_part(part) for part in parts],
            "nf.tail.part_kinds": [TAIL_KINDS[part["kind"]] for part in parts],
            "nf.tail.part_ns": parts["ns"].tolist(),
        }

    def burst_attributes(self) -> dict[str, Any]:
        assert self.tail is not None
        if self.tail["flow_packet"] >= len(self.columns.packets):
            return {}
        flow = self.columns.packets[self.tail["flow_packet"]]
        version = int(flow["ip_version"])
        if version not in (4, 6):
            return {}
        values: dict[str, Any] = {"nf.tail.flow.share": self.tail["flow_share"]}
        for side in ("source", "destination"):
            address = format_address(bytes(flow[side][: {4: 4, 6: 16}[version]]))
            values[f"nf.tail.flow.{side}"] = f"{address if version == 4 else f'[{address}]'}:{flow[side + '_port']}"
        return values

    def check_links(self, root: Span) -> None:
        """The culprit batch's span, if it is another trace's."""
        tail = self.tail
        if tail is None or not (tail["link_high"] or tail["link_low"]):
            assert not root.links
            return
        (link,) = root.links
        assert link.trace_id == int(tail["link_high"]).to_bytes(8, "big") + int(tail["link_low"]).to_bytes(8, "big")
        assert link.span_id == int(tail["link_span"]).to_bytes(8, "big")
        assert link.flags == 0x103

    def batch_attributes(self) -> dict[str, Any]:
        batch = self.batch
        values: dict[str, Any] = {
            "nf.batch.id": batch["id"],
            "nf.batch.size": batch["size"],
            "nf.batch.index": self.packet["index"],
            "nf.batch.requested": batch["requested"],
            "nf.duration_ns": self.ns(batch["end_ticks"]) - self.ns(batch["start_ticks"]),
            "nf.batch.detail": not batch["flags"] & 16,
        }
        if batch["flags"] & 2:
            values["nf.batch.lossy"] = True
        if batch["flags"] & 4:
            values["nf.batch.unfinished"] = True
        return values | thread_attributes(batch["thread"])

    def call_attributes(self, call: np.void) -> dict[str, Any]:
        start = int(call["start_ticks"])
        name = NAMES[call["function"]] if call["function"] < len(NAMES) else "unknown function"
        anchors = [tuple(map(int, anchor)) for anchor in self.clock.anchors]
        rate = next((a[2] for a in reversed(anchors) if a[0] <= start), anchors[0][2])
        values: dict[str, Any] = {
            "code.function.name": name,
            "nf.duration_ns": max(0, self.ns(call["end_ticks"]) - self.ns(start)),
            "nf.self_ns": int(call["self_ticks"]) * rate >> 32,
        }
        if call["flags"] & (1 | 128):  # cut to its batch by time, or by packets
            values["nf.call.clipped"] = True
        if call["flags"] & 2:
            values["nf.call.unwound"] = True
        if call["flags"] & 4:
            values["nf.call.value"] = int(np.uint64(call["value"]).astype(np.int64))
        return values | thread_attributes(call["thread"])

    def check(self, spans: list[Span], state: str) -> int:
        """Compares the spans that begin with this packet's; returns how many they are."""
        root, position = spans[0], 1
        assert root.name == self.root_name()
        assert not root.parent_span_id
        assert (root.start_time_unix_nano, root.end_time_unix_nano) == self.root_times()
        assert attributes_of(list(root.attributes)) == self.root_attributes()
        self.check_links(root)
        batch_start = self.ns(self.batch["start_ticks"])
        if self.root_times()[0] < batch_start:
            wait, position = spans[1], 2
            assert (wait.name, wait.parent_span_id) == ("queue wait", root.span_id)
            assert (wait.start_time_unix_nano, wait.end_time_unix_nano) == (self.root_times()[0], batch_start)
            assert attributes_of(list(wait.attributes)) == {
                "nf.duration_ns": batch_start - self.root_times()[0],
                "nf.arrival.source": self.source(),
            }
        batch = spans[position]
        assert (batch.name, batch.parent_span_id) == ("batch", root.span_id)
        assert batch.start_time_unix_nano == batch_start
        assert batch.end_time_unix_nano == self.ns(self.batch["end_ticks"])
        assert attributes_of(list(batch.attributes)) == self.batch_attributes()
        calls = spans[position + 1 : position + 1 + len(self.calls)]
        self.check_calls(calls, batch)
        mine = spans[: position + 1 + len(calls)]
        assert len({span.span_id for span in mine}) == len(mine)
        for span in mine:
            assert span.trace_id == root.trace_id
            assert span.kind == Span.SpanKind.SPAN_KIND_INTERNAL
            assert span.flags == 0x103
            assert span.trace_state == (state if self.reasons & SAMPLE else "")
            assert any(span.span_id)
        return len(mine)

    def check_calls(self, spans: list[Span], batch: Span) -> None:
        assert len(spans) == len(self.calls)
        for index, (call, span) in enumerate(zip(self.calls, spans, strict=True)):
            attributes = self.call_attributes(call)
            assert span.name == attributes["code.function.name"]
            assert span.start_time_unix_nano == self.ns(call["start_ticks"])
            assert span.end_time_unix_nano - span.start_time_unix_nano == attributes["nf.duration_ns"]
            assert attributes_of(list(span.attributes)) == attributes
            parent = int(call["parent"]) - self.first
            enclosing = spans[parent] if 0 <= parent < index else batch
            assert span.parent_span_id == enclosing.span_id


def thread_attributes(index: int) -> dict[str, Any]:
    if index >= len(THREADS):
        return {}
    tid, name = THREADS[index]
    return {"thread.id": tid} | ({"thread.name": name} if name else {})


def format_address(packed: bytes) -> str:
    if len(packed) == 4:
        return str(ipaddress.IPv4Address(packed))
    text = str(ipaddress.IPv6Address(packed))
    # Later Pythons write mapped addresses with dots.
    return f"::ffff:{packed[12] << 8 | packed[13]:x}:{packed[14] << 8 | packed[15]:x}" if "." in text else text


def expected_bucket(latency_ns: int) -> str:
    edges = [m * 10**e for e in range(2, 9) for m in (1, 2, 5)] + [10**9]

    def text(ns: int) -> str:
        for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
            if ns >= size:
                return f"{ns // size}{unit}"
        return f"{ns}ns"

    if latency_ns < edges[0]:
        return "<100ns"
    below = [edge for edge in edges if edge <= latency_ns]
    return ">=1s" if len(below) == len(edges) else f"{text(below[-1])}-{text(edges[len(below)])}"
