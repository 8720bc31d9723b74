# SPDX-License-Identifier: Apache-2.0
"""Spans of dropped packets: one for what a stall cost a queue, in the trace of a packet of the stall's batch.

Such a span is a child of the batch that was being worked on while the queue was full. It lasts from the reading of the
queue's counter before the packets were dropped to the one after it: nobody knows better when that was. There are few,
so they are encoded one by one. Pure: no I/O, no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.causes.drop_causes import DropCauseKind
from otel_nfprobe.export.resource import SCHEMA_URL, encode_attribute, encode_scope
from otel_nfprobe.pipeline.queue_drops import name_queue

SPAN_NAME = "packets dropped by a full queue"


class BatchSpan(NamedTuple):
    """Where a culprit's batch is a span."""

    trace_high: int
    trace_low: int
    span: int


def encode_drops(
    drops: Rows,
    causes: Rows,
    links: NDArray[np.uint64],
    resource: bytes,
    clock: Clock,
    ticks_per_second: float,
    function_names: Sequence[str],
) -> bytes:
    """Returns an ExportTraceServiceRequest with a span for each row.

    Args:
        drops: dtype QUEUE_DROP; causes: theirs, dtype DROP_CAUSE.
        links: of the culprits' batch spans, shape (n, 3): trace and span ID.
        resource: a ResourceSpans without spans.
        ticks_per_second: of the session, which does not change as the clock's does.
    """
    spans = [
        _make_span(drop, cause, BatchSpan(*link), clock, ticks_per_second, function_names)
        for drop, cause, link in zip(drops, causes, links.tolist(), strict=True)
    ]
    part = ResourceSpans.FromString(resource)
    part.schema_url = SCHEMA_URL
    part.scope_spans.append(ScopeSpans(scope=encode_scope(), spans=spans, schema_url=SCHEMA_URL))
    return ExportTraceServiceRequest(resource_spans=[part]).SerializeToString()


def _make_span(
    drop: np.void,
    cause: np.void,
    batch: BatchSpan,
    clock: Clock,
    ticks_per_second: float,
    function_names: Sequence[str],
) -> Span:
    times = np.array([drop["since_ticks"], drop["until_ticks"]], np.uint64)
    start, end = clock.convert(times).tolist()
    trace = batch.trace_high.to_bytes(8, "big") + batch.trace_low.to_bytes(8, "big")
    # Another reading of another queue has another id.
    own = hashlib.blake2b(trace + drop.tobytes(), digest_size=8).digest()
    kind, function = DropCauseKind(int(cause["kind"])), int(cause["function"])
    attributes = [
        encode_attribute("nf.drop.queue", name_queue(drop)),
        encode_attribute("nf.drop.packets", int(drop["packets"])),
        encode_attribute("nf.drop.cause", kind.name.lower()),
        encode_attribute("nf.drop.stall_ns", round(int(cause["stall_ticks"]) * 1e9 / ticks_per_second)),
        encode_attribute("nf.drop.share", min(float(cause["share"]), 1.0)),
    ]
    if function != NONE and function < len(function_names):
        attributes.append(encode_attribute("nf.drop.function", function_names[function]))
    if by := cause["by"].decode("utf-8", "replace"):
        attributes.append(encode_attribute("nf.drop.by", by))
    return Span(
        trace_id=trace,
        span_id=own,
        parent_span_id=batch.span.to_bytes(8, "big"),
        name=SPAN_NAME,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start,
        end_time_unix_nano=end,
        attributes=attributes,
    )
