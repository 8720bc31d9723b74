# SPDX-License-Identifier: Apache-2.0
"""From a packet that came late in a burst to what had released the burst: by a link into a trace of both functions."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import Columns
from otel_nfprobe.export.span import SpanEncoder, find_session_id
from otel_nfprobe.export.trace_builder import Explainer
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.sampling import Sampler
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.support.simulated_chain import Nf, Packet, arrive, run, write
from tests.unit.export.test_trace_builder import attributes_of, spans_of

COUNT, EVERY_NS = 4_000, 1000
STALL = (2_000_000, 1_500_000)
ABOVE_NS = 300_000
WINDOW_NS = 10**9


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A function of fw stalls once; ovs is nearly busy."""
    folder, nfs = tmp_path_factory.mktemp("chain"), [Nf("fw", 300, stalls=[STALL]), Nf("ovs", 800)]
    going: list[Packet] = arrive(COUNT, EVERY_NS)
    for nf in nfs:
        going = run(nf, going)
    return [write(nf, folder / f"{nf.name}.nfp") for nf in nfs]


def export(path: Path, window_ns: int = WINDOW_NS) -> list[Span]:
    """Spans of packets later than ABOVE_NS."""
    reader = RecordingReader(path)
    facts = read_facts(reader)
    clock, session = facts.make_clock(), find_session_id(reader.header.session)
    encoder = SpanEncoder({}, facts.function_names, session, clock, correlate_window_ns=window_ns)
    above = round(ABOVE_NS * clock.ticks_per_second / 1e9)
    explainer = Explainer(Sampler(slower_than_ticks=above), encoder, clock.ticks_per_second)
    requests = []

    def take(columns: Columns) -> None:
        explainer.add(columns)
        requests.extend(explainer.requests())

    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            take(columns)
    return spans_of(requests)


def roots(spans: list[Span]) -> dict[bytes, Span]:
    return {span.trace_id: span for span in spans if not span.parent_span_id}


def bursts(spans: list[Span]) -> list[Span]:
    return [span for span in roots(spans).values() if attributes_of(span).get("nf.tail.cause") == "burst"]


def test_a_burst_links_to_what_had_released_it(recordings: list[Path]) -> None:
    fw, ovs = map(export, recordings)
    before, late = roots(fw), bursts(ovs)
    own = {span.span_id: span for span in ovs}
    assert len(late) > 50
    assert len({(span.trace_id, span.span_id) for span in ovs}) == len(ovs)
    for span in late:
        (link,) = span.links
        content = attributes_of(span)["nf.tail.upstream.content_id"]
        head = own[link.span_id]
        assert head.trace_id == link.trace_id
        assert attributes_of(head)["nf.packet.content_id"] == content
        culprit = attributes_of(before[link.trace_id])  # what the other function says of the same packet
        assert culprit["nf.packet.content_id"] == content
        assert culprit["nf.tail.cause"] in ("own", "queue")
        assert culprit["nf.tail.function"] == "fw_work"


def test_without_traces_in_common_there_is_no_link(recordings: list[Path]) -> None:
    late = bursts(export(recordings[1], 0))
    assert late
    for span in late:
        assert not span.links
        assert "nf.tail.upstream.content_id" not in attributes_of(span)
