# SPDX-License-Identifier: Apache-2.0
"""--spans=links: each batch once, as a trace of its own, and every packet of it links there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import Columns
from otel_nfprobe.cli.main import main
from otel_nfprobe.export.span import TAIL, EncodedRequest, SpanEncoder, Tails
from otel_nfprobe.export.timescale import TRUE_TIMES, TimeScale
from tests.support.otlp_receiver import Receiver
from tests.support.span_expectation import NAMES, STATE, THREADS, attributes_of, make_clock
from tests.support.synthetic_columns import make_columns
from tests.support.synthetic_recording import BATCHES, write_recording
from tests.support.synthetic_recording import PACKETS as RECORDED_PACKETS
from tests.unit.export.test_span import parse

SAMPLE, SLOW = 1, 2


def encode(columns: Columns, selected: np.ndarray, linked: bool, scale: TimeScale = TRUE_TIMES) -> list[EncodedRequest]:
    encoder = SpanEncoder({"service.name": "nf"}, NAMES, 99, make_clock(), STATE, 0, scale, linked)
    encoder.set_threads(THREADS)
    tails = np.zeros(len(selected), dtype=TAIL)
    tails["kind"] = 3
    links = encoder.find_batch_links(columns, selected[::-1].copy())
    for column, name in enumerate(("link_high", "link_low", "link_span")):
        tails[name] = links[:, column] * (selected % 3 > 0)
    return list(encoder.encode(columns, selected, np.full(len(selected), SAMPLE | SLOW, np.uint8), Tails(tails)))


def roots_of(spans: list[Span]) -> tuple[list[Span], list[Span]]:
    """Roots that are packets, and roots that are batches."""
    roots = [span for span in spans if not span.parent_span_id]
    return [span for span in roots if span.name != "batch"], [span for span in roots if span.name == "batch"]


def test_what_is_said_is_the_same() -> None:
    columns, selected = make_columns(500), np.arange(3, 497, 2, dtype=np.uint32)
    nested, linked = (parse(encode(columns, selected, is_linked)) for is_linked in (False, True))
    packets, batches = roots_of(linked)
    before = roots_of(nested)[0]
    own = {span.parent_span_id: span for span in nested if span.name == "batch"}
    place = {(span.trace_id, span.span_id): span for span in batches}
    names = ("nf.batch.id", "nf.batch.index")
    for packet, span in zip(packets, before, strict=True):
        assert (packet.trace_id, packet.span_id, packet.name) == (span.trace_id, span.span_id, span.name)
        assert packet.start_time_unix_nano == span.start_time_unix_nano
        assert packet.trace_state == STATE
        batch = attributes_of(list(own[span.span_id].attributes))
        expected = attributes_of(list(span.attributes)) | {name: batch[name] for name in names}
        assert attributes_of(list(packet.attributes)) == expected
        first, *others = [place[link.trace_id, link.span_id] for link in packet.links]
        shown = attributes_of(list(first.attributes))
        assert shown == {key: value for key, value in batch.items() if key != "nf.batch.index"}
        assert len(others) == len(span.links)
    waits = [[link.span_id for link in span.links] for span in linked if span.name == "queue wait"]
    assert len(waits) == sum(span.name == "queue wait" for span in nested)
    assert {span for links in waits for span in links} <= {span.span_id for span in batches}
    assert sum(map(len, waits)) == sum(len(span.links) for span in nested if span.name == "queue wait")


def test_each_batch_is_there_once_with_its_calls() -> None:
    columns = make_columns(9000, calls_per_batch=8)
    selected = np.random.default_rng(2).permutation(9000)[:6000].astype(np.uint32)
    requests = encode(columns, selected, linked=True)
    assert all(request.spans <= 8192 and len(request.data) <= 3.5 * 2**20 for request in requests)
    assert sum(request.packets for request in requests) == len(selected)
    spans = parse(requests)
    packets, batches = roots_of(spans)
    assert len(packets) == len({span.trace_id for span in packets}) == len(selected)
    ids = [attributes_of(list(span.attributes))["nf.batch.id"] for span in batches]
    used = columns.batches[np.unique(columns.packets["batch"][selected])]
    assert sorted(ids) == used["id"].tolist()
    assert {span.trace_state for span in batches} == {""}
    traces = Counter(span.trace_id for span in spans)
    assert {traces[span.trace_id] for span in batches} == {1 + 8}
    assert {traces[span.trace_id] for span in packets} <= {1, 2}
    assert sum(len(request.data) for request in requests) < 0.4 * sum(
        len(request.data) for request in encode(columns, selected, linked=False)
    )


def test_stretched_copies_of_batches() -> None:
    columns, selected = make_columns(64), np.arange(64, dtype=np.uint32)
    spans = parse(encode(columns, selected, True, TimeScale(1000)))
    true, copies = spans[: len(spans) // 2], spans[len(spans) // 2 :]
    ids = {span.span_id: copy.span_id for span, copy in zip(true, copies, strict=True)}
    starts = {span.trace_id: span.start_time_unix_nano for span in true if not span.parent_span_id}
    for span, copy in zip(true, copies, strict=True):
        start = starts[span.trace_id]
        assert copy.start_time_unix_nano - start == 1000 * (span.start_time_unix_nano - start)
        assert [link.span_id for link in copy.links] == [ids[link.span_id] for link in span.links]


@pytest.mark.usefixtures("clean_environment")
def test_a_recording_with_links(receiver: Receiver, tmp_path: Path) -> None:
    recording = write_recording(tmp_path / "session.nfp")
    words = ["export", str(recording), "--endpoint", f"http://127.0.0.1:{receiver.port}", "--spans", "links"]
    assert main(words) == 0
    packets, batches = roots_of(receiver.spans())
    assert (len(packets), len(batches)) == (RECORDED_PACKETS, BATCHES)
    assert len(receiver.spans()) == RECORDED_PACKETS + BATCHES * 4
