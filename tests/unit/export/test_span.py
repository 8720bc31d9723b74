# SPDX-License-Identifier: Apache-2.0
"""The encoder: what comes out of protobuf's parser equals an independent expectation, field by field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.columns import BATCH, CALL, MESSAGE_VERSION, NONE, PACKET, Columns
from otel_nfprobe.causes.latency_causes import CAUSE, CauseKind
from otel_nfprobe.export.span import (
    TAIL,
    TAIL_KINDS,
    TAIL_PART,
    EncodedRequest,
    SpanEncoder,
    Tails,
    find_session_id,
    make_tails,
)
from tests.support.marks import in_parts
from tests.support.span_expectation import (
    NAMES,
    SAMPLE,
    SLOW,
    SLOWEST,
    STATE,
    THREADS,
    Expectation,
    attributes_of,
    format_address,
    make_clock,
    make_parts,
)
from tests.support.synthetic_columns import (
    SECOND_TICKS,
    START_TICKS,
    make_columns,
)


def make_encoder(names: list[str] | None = None, **arguments: Any) -> SpanEncoder:
    encoder = SpanEncoder({"service.name": "testpmd", "process.pid": 12}, names or NAMES, 99, make_clock(), **arguments)
    encoder.set_threads(THREADS)
    return encoder


def select(count: int, reason: int = SAMPLE) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(count, dtype=np.uint32), np.full(count, reason, dtype=np.uint8)


def parse(requests: list[EncodedRequest]) -> list[Span]:
    spans: list[Span] = []
    for request in requests:
        message = ExportTraceServiceRequest.FromString(request.data)
        assert message.SerializeToString(deterministic=True) == request.data
        assert len(message.resource_spans) == 1
        assert len(message.resource_spans[0].scope_spans) == 1
        found = message.resource_spans[0].scope_spans[0].spans
        assert len(found) == request.spans
        spans.extend(found)
    return spans


def check_all(columns: Columns, selected: np.ndarray, reasons: np.ndarray, tails: Tails | None = None) -> None:
    encoder = make_encoder(trace_state=STATE)
    spans = parse(list(encoder.encode(columns, selected, reasons, tails)))
    position = 0
    for order, index in enumerate(selected):
        tail, parts = (None, None) if tails is None else (tails.rows[order], tails.parts)
        expected = Expectation(columns, int(index), int(reasons[order]), tail, parts)
        position += expected.check(spans[position:], STATE)
    assert position == len(spans)
    assert encoder.dropped_spans == encoder.bad_packets == 0


def test_layouts_are_those_of_c() -> None:
    for struct, dtype in (("struct nfp_tail", TAIL), ("struct nfp_tail_part", TAIL_PART)):
        assert ffi.sizeof(struct) == dtype.itemsize
        for name in dtype.names or ():
            assert ffi.offsetof(struct, name) == dtype.fields[name][1]  # type: ignore[index]
    for value, name in enumerate(TAIL_KINDS):
        assert getattr(lib, f"NFP_TAIL_{name.upper()}") == value
    assert (SAMPLE, SLOW, SLOWEST) == (lib.NFP_REASON_SAMPLE, lib.NFP_REASON_SLOW, lib.NFP_REASON_SLOWEST)


def test_every_field_of_every_span() -> None:
    columns = make_columns(500)
    random = np.random.default_rng(3)
    selected = np.sort(random.choice(500, 300, replace=False)).astype(np.uint32)
    tails = np.zeros(300, dtype=TAIL)
    tails["kind"] = random.integers(0, 9, 300)
    tails["function"] = random.choice([0, 1, 3, 4, NONE], 300)
    tails["excess_ns"] = random.integers(-(10**6), 10**6, 300)
    tails["batch_id"] = random.integers(0, 2**62, 300)
    tails["flags"], tails["share"] = random.integers(0, 2, 300), random.random(300)
    tails["flow_packet"], tails["flow_share"] = random.integers(0, 510, 300), random.random(300)
    for name in ("link_high", "link_low", "link_span"):
        tails[name] = random.integers(0, 2**62, 300) * (np.arange(300) % 3 > 0)
    check_all(columns, selected, random.integers(0, 8, 300).astype(np.uint8), Tails(tails, make_parts(random, tails)))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_columns(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    columns = make_columns(count, data.draw(st.integers(0, 2**32)), 4, data.draw(st.integers(0, 6)))
    big = st.integers(0, 2**64 - 1)
    small = st.integers(0, 2**32 - 1)
    for array, fields, values in (
        (columns.calls, ("self_ticks", "value"), st.integers(0, 2**56)),
        (columns.calls, ("function", "thread", "parent"), small),
        (columns.calls, ("flags",), st.integers(0, 65535)),
        (columns.batches, ("size", "requested", "flags", "thread"), small),
        (columns.batches, ("id",), st.integers(0, 2**63 - 1)),
        (columns.packets, ("id", "digest", "done_digest", "receive_ticks"), big),
        (columns.packets, ("index",), small),
        (columns.packets, ("disposition",), st.integers(0, 2)),
        (columns.packets, ("protocol", "flags"), st.integers(0, 255)),
        (columns.packets, ("ip_version",), st.integers(0, 255).filter(lambda version: version != MESSAGE_VERSION)),
        (columns.packets, ("length", "source_port", "destination_port"), st.integers(0, 65535)),
    ):
        for field in fields:
            array[field] = data.draw(st.lists(values, min_size=len(array), max_size=len(array)))
    ticks = st.integers(START_TICKS - 10**6, START_TICKS + 4 * 10**6)
    for array, start, end in (
        (columns.calls, "start_ticks", "end_ticks"),
        (columns.batches, "start_ticks", "end_ticks"),
    ):
        for row in array:
            row[start], row[end] = sorted((data.draw(ticks), data.draw(ticks)))
    for row in columns.packets:
        row["arrival_ticks"], row["done_ticks"] = data.draw(ticks), data.draw(st.one_of(st.just(0), ticks))
    selected = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=8)), dtype=np.uint32)
    reasons = np.array(data.draw(st.lists(st.integers(0, 7), min_size=len(selected), max_size=len(selected))))
    check_all(columns, selected, reasons.astype(np.uint8))


@pytest.mark.parametrize("packed", [b"\0" * 16, b"\0" * 15 + b"\1", bytes([1] * 16), bytes([0, 1, 0, 0] * 4)])
@in_parts(5)
@settings(deadline=None, max_examples=60)
@given(mask=st.integers(0, 255), seed=st.binary(min_size=16, max_size=16))
def test_addresses(part: int, packed: bytes, mask: int, seed: bytes) -> None:
    masked = bytes(b if mask >> (i // 2) & 1 else 0 for i, b in enumerate(seed))
    for address in (packed, masked, seed):
        text = ffi.new("char[40]")
        for version, size in ((4, 4), (6, 16)):
            length = lib.nfp_address_format(address, version, text)
            assert ffi.unpack(text, length).decode() == format_address(address[:size])


@pytest.mark.parametrize("latency_ns", [0, 99, 100, 199, 200, 999, 1000, 49_999, 50_000, 999_999_999, 10**9, 10**12])
def test_latency_buckets(latency_ns: int) -> None:
    columns = make_columns(1)
    columns.packets["flags"] = 0
    columns.packets["disposition"] = 1
    start = int(columns.batches["start_ticks"][0])
    columns.packets["done_ticks"] = start + -(-latency_ns * 5 // 2)
    check_all(columns, *select(1))


def test_resource_and_scope() -> None:
    (request,) = make_encoder().encode(make_columns(3), *select(3))
    resource_spans = ExportTraceServiceRequest.FromString(request.data).resource_spans[0]
    assert attributes_of(list(resource_spans.resource.attributes)) == {
        "service.name": "testpmd",
        "process.pid": 12,
    }
    scope_spans = resource_spans.scope_spans[0]
    assert scope_spans.scope.name == "otel-nfprobe"
    assert resource_spans.schema_url == scope_spans.schema_url == "https://opentelemetry.io/schemas/1.44.0"


def test_requests_stay_within_their_limits_and_never_split_a_trace() -> None:
    columns = make_columns(9000, calls_per_batch=8)
    requests = list(make_encoder().encode(columns, *select(9000)))
    assert len(requests) > 9
    assert sum(request.packets for request in requests) == 9000
    seen: set[bytes] = set()
    for request in requests:
        assert request.spans <= 8192
        assert len(request.data) <= 3.5 * 2**20
        traces = {span.trace_id for span in parse([request])}
        assert len(traces) == request.packets
        assert not traces & seen
        seen |= traces


def test_bytes_limit_with_long_names() -> None:
    columns = make_columns(2000, calls_per_batch=8)
    names = [name + "x" * 480 for name in NAMES]
    requests = list(make_encoder(names).encode(columns, *select(2000)))
    assert sum(request.packets for request in requests) == 2000
    # A trace of eight calls with these names has 12 KiB: no request grows when it has enough, and none ends before.
    assert all(768 * 2**10 <= len(request.data) < 784 * 2**10 for request in requests[:-1])
    assert {span.name for span in parse(requests)} >= set(names)


@pytest.mark.parametrize("name_bytes", [1, 480])
@pytest.mark.parametrize("calls", [8189, 8190, 20_000])
def test_a_trace_larger_than_a_request_is_cut_and_counted(calls: int, name_bytes: int) -> None:
    columns = make_columns(3, calls_per_batch=calls)
    columns.packets["flags"] = 0
    encoder = make_encoder(["f" * name_bytes] * 4)
    requests = list(encoder.encode(columns, *select(3)))
    assert [request.packets for request in requests] == [1, 1, 1]
    # Room for a queue wait is kept, so one span fewer than the limit.
    full = [len(request.data) > 3 * 2**20 if name_bytes > 1 else request.spans == 8191 for request in requests]
    assert all(full)
    assert encoder.dropped_spans == 3 * (calls + 2) - sum(request.spans for request in requests)
    for request in requests:
        batch = next(span for span in parse([request]) if span.name == "batch")
        cut = attributes_of(list(batch.attributes)).get("nf.batch.calls_cut", 0)
        assert cut == calls + 2 - request.spans


def test_indices_outside_of_the_columns() -> None:
    columns = make_columns(4, batch_size=2)
    columns.packets["batch"][1] = 2
    columns.packets["batch"][2] = NONE
    columns.batches["first_call"][0] = 10**6
    columns.batches["calls"][1] = NONE
    columns.packets["batch"][3] = 1
    columns.packets["flags"] = columns.batches["earliest_ticks"] = 0
    encoder = make_encoder()
    selected = np.array([0, 1, 2, 3, 4, NONE], dtype=np.uint32)
    requests = list(encoder.encode(columns, selected, np.ones(6, dtype=np.uint8)))
    assert encoder.bad_packets == 4
    assert sum(request.packets for request in requests) == 2
    # Packet 0 without calls; packet 3 with those that exist.
    assert len(parse(requests)) == 2 + 2 + 5


def test_empty_inputs() -> None:
    columns = Columns(np.zeros(0, dtype=CALL), np.zeros(0, dtype=BATCH), np.zeros(0, dtype=PACKET))
    encoder = make_encoder()
    assert list(encoder.encode(columns, *select(0))) == []
    assert list(encoder.encode(columns, *select(2))) == []
    assert encoder.bad_packets == 2
    assert encoder.find_randomness(columns).shape == (0,)


def test_wrong_arguments() -> None:
    columns = make_columns(4)
    encoder = make_encoder()
    with pytest.raises(ValueError):
        list(encoder.encode(columns, np.zeros(3, dtype=np.uint32), np.zeros(2, dtype=np.uint8)))
    with pytest.raises(ValueError):
        list(encoder.encode(Columns(columns.packets, columns.batches, columns.packets), *select(1)))
    with pytest.raises(ValueError):
        make_encoder(trace_state="x" * 70)


def test_ids_depend_on_the_packet_and_session_only() -> None:
    columns = make_columns(200)
    first = list(make_encoder().encode(columns, *select(200)))
    assert first == list(make_encoder().encode(make_columns(200), *select(200)))
    ids = make_encoder().find_trace_ids(columns, np.arange(200, dtype=np.uint32))
    roots = [span.trace_id for span in parse(first) if not span.parent_span_id]
    assert roots == [b"".join(int(word).to_bytes(8, "big") for word in row) for row in ids]
    other = SpanEncoder({}, NAMES, 100, make_clock()).find_trace_ids(columns, np.arange(200, dtype=np.uint32))
    assert not set(map(tuple, ids)) & set(map(tuple, other))


def test_equal_packets_have_different_traces_and_random_low_bits() -> None:
    columns = make_columns(65536, batch_size=32)
    columns.packets["digest"] = 7
    encoder = make_encoder()
    ids = encoder.find_trace_ids(columns, np.arange(65536, dtype=np.uint32))
    assert len(np.unique(ids[:, 0])) == len(np.unique(ids[:, 1])) == 65536
    randomness = encoder.find_randomness(columns)
    for bit in range(56):
        ones = int(np.count_nonzero(randomness >> np.uint64(bit) & np.uint64(1)))
        # Six standard deviations of a fair coin.
        assert abs(ones - 32768) < 6 * 128


def test_functions_and_threads_can_be_replaced() -> None:
    columns = make_columns(1)
    encoder = make_encoder()
    encoder.set_functions(["a", "b", "c", "d"])
    encoder.set_threads([(1, "one"), (2, "two")])
    spans = parse(list(encoder.encode(columns, *select(1))))
    assert {"a", "b", "c", "d"} <= {span.name for span in spans}
    assert "one" in {attributes_of(list(span.attributes)).get("thread.name") for span in spans}


def test_a_name_that_is_not_utf8_or_too_long() -> None:
    names = ["bad\udcff", "é" * 600, "c", "d"]
    spans = parse(list(make_encoder(names).encode(make_columns(1), *select(1))))
    found = {span.name for span in spans}
    assert "bad?" in found
    assert max(len(name.encode()) for name in found) <= 512


def test_late_span_of_unknown_function_falls_back() -> None:
    columns = make_columns(2)
    tails = np.zeros(2, dtype=TAIL)
    tails["function"], tails["kind"] = [NONE, len(NAMES)], 3
    spans = parse(list(make_encoder().encode(columns, *select(2, SLOW), Tails(tails))))
    assert [span.name for span in spans if not span.parent_span_id] == ["late packet: queue wait"] * 2


def test_links_lead_to_the_span_of_the_batch() -> None:
    columns = make_columns(20)
    encoder, every = make_encoder(), np.arange(20, dtype=np.uint32)
    links = encoder.find_batch_links(columns, every)
    spans = [
        span for span in parse(list(encoder.encode(columns, every, np.zeros(20, np.uint8)))) if span.name == "batch"
    ]
    found = [(span.trace_id, span.span_id) for span in spans]
    assert found == [(row[:2].astype(">u8").tobytes(), row[2:].astype(">u8").tobytes()) for row in links]


def test_causes_become_tails() -> None:
    causes = np.zeros(4, dtype=CAUSE)
    causes["kind"] = [CauseKind.UNKNOWN, CauseKind.OWN, CauseKind.QUEUE, CauseKind.BATCHING]
    causes["excess_ticks"] = [0, 2500, 25, 3]
    causes["batch_id"] = [0, 1, 2, 3]
    causes["function"] = [NONE, 5, 6, NONE]
    causes["late_ticks"], causes["rest_ticks"] = [0, 5000, 40, 3], [0, 1666, 15, 0]
    causes["parts"]["kind"][1:, 0], causes["parts"]["ticks"][1:, 0] = causes["kind"][1:], causes["excess_ticks"][1:]
    causes["parts"]["function"][1:, 0] = causes["function"][1:]
    causes["parts"]["kind"][1, 1], causes["parts"]["ticks"][1, 1] = CauseKind.INTERRUPT, 834
    causes["parts"]["by"][1, 1] = b"softirq NET_RX"
    tails, parts = make_tails(causes, SECOND_TICKS)
    assert [TAIL_KINDS[kind] for kind in tails["kind"]] == ["unknown", "own", "queue", "batching"]
    assert tails["excess_ns"].tolist() == [0, 1000, 10, 1]
    assert tails["batch_id"].tolist() == [0, 1, 2, 3]
    assert tails["function"].tolist() == [NONE, 5, 6, NONE]
    assert tails["part_count"].tolist() == [0, 3, 2, 1]
    assert tails["first_part"].tolist() == [0, 0, 3, 5]
    assert [TAIL_KINDS[kind] for kind in parts["kind"]] == [
        "own",
        "interrupt",
        "unknown",
        "queue",
        "unknown",
        "batching",
    ]
    assert parts["ns"].tolist() == [1000, 334, 666, 10, 6, 1]  # of each packet exactly its excess
    assert parts["function"].tolist() == [5, 0, NONE, 6, NONE, NONE]
    assert parts["by"].tolist() == [b"", b"softirq NET_RX", b"", b"", b"", b""]


def test_session_ids() -> None:
    assert find_session_id("a") == find_session_id("a") != find_session_id("b")
    assert 0 <= find_session_id("a") < 2**64
    assert find_session_id("00ff00000000000a") == 0x00FF00000000000A
