# SPDX-License-Identifier: Apache-2.0
"""The searches of docs/searches.md, typed into the real Jaeger, find exactly the traces that they are to find."""

from __future__ import annotations

import json
import re
import shlex
import time
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import NONE, Columns
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import TAIL, TAIL_KINDS, TAIL_PART, SpanEncoder, Tails
from otel_nfprobe.pipeline.sampling import REASON_SAMPLE, REASON_SLOW
from tests.stack.test_stack_export import make_recent_columns
from tests.support.jaeger_client import JaegerClient
from tests.support.span_expectation import attributes_of
from tests.support.stack_services import Jaeger

ROOT = Path(__file__).resolve().parents[2]
PACKETS = 400
NAMES = ["fw_rx", "fw_lookup", "fw_output", "fw_tx"]


class Search(NamedTuple):
    """A row of the page."""

    what: str
    operation: str
    tags: dict[str, str]
    traceql: str


def read_searches() -> list[Search]:
    item = r"^\* (.+)\n(?:  \* operation: (.+)\n)?(?:  \* tags: (.+)\n)?  \* TraceQL: `([^`]+)`"
    page = re.sub(r"\n    +", " ", (ROOT / "docs" / "searches.md").read_text())
    rows = re.findall(item, page, re.MULTILINE)
    return [
        Search(what, operation.strip("`"), dict(word.split("=") for word in shlex.split(tags.strip("`"))), traceql)
        for what, operation, tags, traceql in rows
    ]


def make_packets(clock: Clock) -> tuple[Columns, np.ndarray, Tails]:
    columns, random = make_recent_columns(clock, PACKETS), np.random.default_rng(1)
    packets, tails = columns.packets, np.zeros(PACKETS, TAIL)
    packets["id"][7], packets["digest"][7] = 0x4D2, 0x5692B9AC90A560C0
    packets["ip_version"][9:12], packets["protocol"][9:12], packets["destination_port"][9:12] = 4, 17, 53
    packets["source"][9:12, :4] = 10, 0, 0, 8
    reasons = np.where(random.random(PACKETS) < 0.5, REASON_SLOW, REASON_SAMPLE).astype(np.uint8)
    tails["kind"] = np.where(reasons == REASON_SLOW, random.integers(1, len(TAIL_KINDS), PACKETS), 0)
    tails["hold"] = NONE
    tails["function"] = np.where(np.isin(tails["kind"], (1, 2, 3)) & (np.arange(PACKETS) % 4 > 0), 2, 0xFFFFFFFF)
    # Of each late packet a part of its cause and, of every second one, one of a function.
    late = np.flatnonzero(tails["kind"])
    parts = np.zeros((len(late), 2), TAIL_PART)
    parts["kind"][:, 0], parts["kind"][:, 1] = tails["kind"][late], TAIL_KINDS.index("own")
    tails["first_part"][late], tails["part_count"][late] = 2 * np.arange(len(late)), 1 + late % 2
    return columns, reasons, Tails(tails, parts.ravel())


@pytest.fixture(scope="module")
def sent(jaeger: Jaeger) -> tuple[str, list[Span]]:
    """Traces of every kind are in Jaeger: the service's name and all spans."""
    clock, service = Clock.start(), f"nf-{uuid.uuid4().hex[:12]}"
    columns, reasons, tails = make_packets(clock)
    encoder = SpanEncoder(make_resource_attributes({}, service), NAMES, time.time_ns(), clock)
    encoder.set_threads([(11, "lcore-worker-1"), (12, "lcore-worker-2")])
    endpoint, spans = find_endpoint(jaeger.otlp_endpoint, {}), []
    assert endpoint is not None
    exporter = Exporter(endpoint)
    for request in encoder.encode(columns, np.arange(PACKETS, dtype=np.uint32), reasons, tails):
        assert exporter.submit(request)
        spans += ExportTraceServiceRequest.FromString(request.data).resource_spans[0].scope_spans[0].spans
    assert not exporter.close(60).dropped_spans
    assert jaeger.client.await_traces(service, PACKETS) == PACKETS
    return service, spans


def text_of(value: Any) -> str:
    if isinstance(value, list):
        return json.dumps(value, separators=(",", ":"))
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_meant(span: Span, search: Search) -> bool:
    values = {key: text_of(value) for key, value in attributes_of(span.attributes).items()}
    return search.operation in ("", span.name) and search.tags.items() <= values.items()


@pytest.mark.stack
@pytest.mark.parametrize("search", read_searches(), ids=lambda search: search.what[:30])
def test_a_search(jaeger: Jaeger, sent: tuple[str, list[Span]], search: Search) -> None:
    service, spans = sent
    expected = {span.trace_id.hex() for span in spans if is_meant(span, search)}
    client: JaegerClient = jaeger.client
    found = client.find_trace_ids(service, search.tags or None, search.operation, limit=1000)
    assert set(found) == expected
    assert 0 < len(found) < PACKETS


def test_the_page_names_attributes_that_exist() -> None:
    groups = yaml.safe_load((ROOT / "schema" / "attributes.yaml").read_text())["groups"]
    known = {item["id"] for group in groups for item in group["attributes"] if "id" in item}
    searches = read_searches()
    assert len(searches) >= 12
    for search in searches:
        assert search.tags.keys() <= known
        asked = set(re.findall(r"span\.([a-z_.]+)", search.traceql))
        assert asked <= known
        assert asked or search.traceql == f'{{ name = "{search.operation}" }}'
