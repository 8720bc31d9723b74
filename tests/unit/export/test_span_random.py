# SPDX-License-Identifier: Apache-2.0
"""10^5 random spans: protobuf's official classes read the right fields, and write the same bytes again."""

from __future__ import annotations

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import MESSAGE_VERSION, NONE, Columns
from otel_nfprobe.base.holdrows import HOLD
from otel_nfprobe.export.span import TAIL, SpanEncoder, Tails
from tests.support.marks import in_parts
from tests.support.span_expectation import NAMES, STATE, THREADS, Expectation, make_clock, make_parts
from tests.support.synthetic_columns import make_columns

PACKETS = 12_500 // 4
PER_BATCH = 20
CALLS = 6  # with packet and batch 8 spans each
CHECKED_EVERY = 25  # field by field, in plain Python


def randomise(columns: Columns, random: np.random.Generator) -> None:
    """Any value in every field that no index or order depends on."""
    for array, names in (
        (columns.calls, ("function", "thread", "flags", "self_ticks")),
        (columns.batches, ("size", "requested", "flags", "thread")),
        (
            columns.packets,
            ("id", "digest", "done_digest", "index", "length", "source_port", "destination_port", "protocol"),
        ),
        (columns.packets, ("flags",)),
    ):
        for name in names:
            kind = array[name].dtype
            # As many bits as the draw says: small numbers are short varints.
            bits = random.integers(0, 8 * kind.itemsize, len(array)).astype(kind)
            array[name] = random.integers(0, np.iinfo(kind).max, len(array), dtype=kind, endpoint=True) >> bits
    columns.calls["self_ticks"] >>= np.uint64(8)
    # No two of one batch have the same position: their span ids would be equal, too, where their digests are.
    index = columns.packets["index"]
    columns.packets["index"] = (index >> 5 << 5) + (np.arange(len(index)) % PER_BATCH).astype(index.dtype)
    versions = random.integers(0, 256, len(columns.packets))
    versions[versions == MESSAGE_VERSION] = 0
    known = random.integers(0, 2, len(versions)) > 0
    columns.packets["ip_version"] = np.where(known, np.where(versions % 2, 4, 6), versions)
    for name in ("source", "destination"):
        columns.packets[name] = random.integers(0, 256, (len(versions), 16)) * (
            random.random((len(versions), 16)) < 0.6
        )
    columns.packets["disposition"] = random.integers(0, 5, len(versions))


@in_parts(4)
def test_random_spans(part: int) -> None:
    random = np.random.default_rng(20 + part)
    columns = make_columns(PACKETS, PER_BATCH, calls_per_batch=CALLS)
    randomise(columns, random)
    tails = np.zeros(PACKETS, dtype=TAIL)
    tails["kind"] = random.integers(0, 9, PACKETS)
    tails["function"] = random.choice([0, 1, 3, 4, NONE], PACKETS)
    tails["excess_ns"] = random.integers(-(2**62), 2**62, PACKETS)
    tails["share"], tails["flow_share"] = random.random(PACKETS), random.random(PACKETS)
    tails["flow_packet"] = random.integers(0, PACKETS + 100, PACKETS)
    columns.holds = np.zeros(3, HOLD)
    columns.holds["size"], columns.holds["text"] = [1, 84, 40], ord("y")
    tails["hold"] = random.choice([0, 1, 2, 3, NONE], PACKETS)
    parts = make_parts(random, tails)
    reasons = random.integers(0, 8, PACKETS).astype(np.uint8)
    encoder = SpanEncoder({"service.name": "random"}, NAMES, 7, make_clock(), STATE)
    encoder.set_threads(THREADS)
    spans: list[Span] = []
    for request in encoder.encode(columns, np.arange(PACKETS, dtype=np.uint32), reasons, Tails(tails, parts)):
        message = ExportTraceServiceRequest.FromString(request.data)
        assert message.SerializeToString(deterministic=True) == request.data
        spans.extend(message.resource_spans[0].scope_spans[0].spans)
    assert len(spans) >= 25_000
    assert len({span.span_id for span in spans}) == len(spans)
    roots = [position for position, span in enumerate(spans) if not span.parent_span_id]
    assert len(roots) == PACKETS
    for index in range(0, PACKETS, CHECKED_EVERY):
        position = roots[index]
        expected = Expectation(columns, index, int(reasons[index]), tails[index], parts)
        end = roots[index + 1] if index + 1 < PACKETS else len(spans)
        assert expected.check(spans[position : position + 20], STATE) == end - position
