# SPDX-License-Identifier: Apache-2.0
"""Live spans: a simulated NF's records come in small takes, as from a drain; late packets say why, and link to why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.clock import ANCHOR, Clock
from otel_nfprobe.base.columns import RECORD
from otel_nfprobe.export.span import EncodedRequest, SpanEncoder
from otel_nfprobe.export.trace_builder import Explainer
from otel_nfprobe.pipeline.absences import ABSENCE, AbsenceFlag
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.sampling import Sampler
from tests.support.marks import thorough
from tests.unit.report.test_report import NAMES, ROLES, SLOW_TICKS, Simulation

SLOWER_THAN = SLOW_TICKS // 4
TICKS_PER_SECOND = 2e9


def spans_of(requests: Iterable[EncodedRequest]) -> list[Span]:
    return [
        span
        for request in requests
        for part in ExportTraceServiceRequest.FromString(request.data).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def explain(simulation: Simulation, chunk: int, patience: int, absences: np.ndarray | None = None) -> list[Span]:
    """All spans, when records come by `chunk` and are looked at after every `patience` takes."""
    clock = Clock.from_anchors(np.array([(0, 10**18, 1 << 31)], ANCHOR), 0)
    encoder = SpanEncoder({}, NAMES, 7, clock)
    explainer = Explainer(Sampler(slower_than_ticks=SLOWER_THAN), encoder, TICKS_PER_SECOND)
    records, requests = np.array(simulation.records, RECORD), []
    if absences is not None:
        explainer.add_absences(absences)
    with Pipeline(np.array(ROLES, np.uint8)) as pipeline:
        for number, start in enumerate(range(0, len(records), chunk)):
            pipeline.feed(0, records[start : start + chunk])
            explainer.add(pipeline.take())
            if number % patience == patience - 1:
                requests += list(explainer.requests())
        pipeline.finish()
        explainer.add(pipeline.take())
        requests += list(explainer.requests())
        assert not explainer.is_waiting
    return spans_of(requests)


def attributes_of(span: Span) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in span.attributes}


@pytest.mark.parametrize("taken", [*thorough((10**6, 1), (3000, 1)), (1000, 4), *thorough((200, 7))], ids=str)
def test_late_packets_link_to_the_batch_that_made_them_late(taken: tuple[int, int]) -> None:
    chunk, patience = taken
    spans = explain(Simulation(200, (60, 150)), chunk, patience)
    roots = [span for span in spans if not span.parent_span_id]
    late = [span for span in roots if attributes_of(span)["nf.sampling.reason"] == "slow"]
    assert {span.name for span in late} == {"late packet: fw_output"}
    batches = {(span.trace_id, span.span_id): span for span in spans if span.name == "batch"}
    assert len(batches) == len({span.trace_id for span in spans}) == len(roots)
    kinds = set()
    for span in late:
        attributes = attributes_of(span)
        kinds.add(attributes["nf.tail.cause"])
        assert attributes["nf.tail.function"] == "fw_output"
        assert 0.5 <= attributes["nf.tail.share"] <= 1
        assert SLOWER_THAN / 4 < attributes["nf.tail.excess_ns"] <= SLOW_TICKS / 2
        if attributes["nf.tail.cause"] == "own":
            assert not span.links
            continue
        (link,) = span.links
        culprit = attributes_of(batches[link.trace_id, link.span_id])
        assert culprit["nf.batch.id"] == attributes["nf.tail.batch"]
    assert kinds == {"own", "queue"}


def test_what_the_scheduler_did_is_known_while_packets_come() -> None:
    simulation = Simulation(200, (60,))
    (slow,) = [
        (int(entry[0]), int(exit_[0]))
        for entry, exit_ in zip(simulation.records, simulation.records[1:], strict=False)
        if exit_[0] - entry[0] == SLOW_TICKS
    ]
    away = np.zeros(1, ABSENCE)
    away["out_ticks"], away["in_ticks"] = slow[0] + 100, slow[1] - 100
    away["flags"] = AbsenceFlag.PREEMPTED
    roots = [span for span in explain(simulation, 1000, 3, away) if not span.parent_span_id]
    late = [span for span in roots if attributes_of(span)["nf.sampling.reason"] == "slow"]
    assert late
    for span in late:
        assert span.name == "late packet: preemption"
        assert attributes_of(span)["nf.tail.cause"] == "preemption"
        assert "nf.tail.function" not in attributes_of(span)


def test_a_culprit_that_was_exported_is_not_sent_again() -> None:
    spans = explain(Simulation(200, (60, 150)), 500, 1)
    ids = [(span.trace_id, span.span_id) for span in spans]
    assert len(ids) == len(set(ids))
