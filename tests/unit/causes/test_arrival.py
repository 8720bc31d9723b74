# SPDX-License-Identifier: Apache-2.0
"""How arrival is known, and which batches a packet's wait links to."""

from __future__ import annotations

import numpy as np
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import BATCH, PACKET, BatchFlag, Columns, PacketFlag, life_start_ticks
from otel_nfprobe.causes.arrival import SOURCES, WAITED_MAX, find_source, find_sources, find_waited
from tests.support.synthetic_columns import make_columns
from tests.unit.export.test_span import make_encoder, parse, select


def test_sources() -> None:
    packets, batches = np.zeros(5, PACKET), np.zeros(5, BATCH)
    batches["start_ticks"], batches["earliest_ticks"] = 1000, [0, 900, 800, 700, 600]
    batches["flags"][3] = BatchFlag.SATURATED
    packets["arrival_ticks"][:3] = [500, 500, 1001]
    packets["flags"][:3] = [PacketFlag.ARRIVAL_KNOWN, PacketFlag.ARRIVAL_KNOWN | PacketFlag.ARRIVAL_UNIX_NS, 1]
    packets["batch"] = np.arange(5)
    found = [find_source(packet, batch) for packet, batch in zip(packets, batches, strict=True)]
    assert found == ["mbuf stamp", "capture", "poll", "saturated", "poll"]
    assert life_start_ticks(Columns(batches=batches, packets=packets)).tolist() == [500, 500, 800, 700, 600]
    batches["earliest_ticks"] = 0
    assert find_source(packets[4], batches[4]) is None


def test_sources_of_all_packets_are_those_of_each() -> None:
    random = np.random.default_rng(5)
    packets, batches = np.zeros(500, PACKET), np.zeros(40, BATCH)
    batches["start_ticks"] = random.integers(900, 1100, 40)
    batches["earliest_ticks"] = random.choice([0, 800, 1000], 40)
    batches["flags"] = random.choice([0, BatchFlag.SATURATED, BatchFlag.FULL], 40)
    packets["batch"] = random.integers(0, 44, 500)  # some have none
    packets["arrival_ticks"] = random.choice([0, 950, 1050], 500)
    packets["flags"] = random.integers(0, 256, 500)
    columns = Columns(batches=batches, packets=packets)
    expected = [
        find_source(packet, batches[packet["batch"]]) if packet["batch"] < len(batches) else None for packet in packets
    ]
    found = [SOURCES[source] if source >= 0 else None for source in find_sources(columns).tolist()]
    assert found == expected
    assert set(found) == {*SOURCES, None}


def test_waits_link_to_the_batches_that_ran_meanwhile() -> None:
    columns = make_columns(400, seed=4, batch_size=2)
    columns.batches["earliest_ticks"] = columns.batches["start_ticks"] - np.uint64(3_000_000)
    columns.packets["flags"] = 0
    chosen, reasons = select(400)
    chosen, reasons = chosen[::3], reasons[::3]
    spans = parse(list(make_encoder().encode(columns, chosen, reasons)))
    roots = [span for span in spans if not span.parent_span_id]
    batch_spans = [span for span in spans if span.name == "batch"]
    waits = {span.trace_id: span for span in spans if span.name == "queue wait"}
    first: dict[int, Span] = {}
    for packet, span in zip(chosen, batch_spans, strict=True):
        first.setdefault(int(columns.packets["batch"][packet]), span)
    most = 0
    for packet, root in zip(chosen, roots, strict=True):
        own = columns.batches[columns.packets["batch"][packet]]
        ran = [
            number
            for number, batch in enumerate(columns.batches)
            if number in first
            and batch["thread"] == own["thread"]
            and batch["start_ticks"] < own["start_ticks"]
            and batch["end_ticks"] > own["earliest_ticks"]
        ]
        expected = [(first[number].trace_id, first[number].span_id) for number in ran[-WAITED_MAX:]]
        assert [(link.trace_id, link.span_id) for link in waits[root.trace_id].links] == expected
        most = max(most, len(expected))
    assert most == WAITED_MAX


def test_packets_of_no_batch_wait_for_nothing() -> None:
    columns = make_columns(6, batch_size=2)
    columns.packets["batch"][3] = 77
    columns.batches["earliest_ticks"] = columns.batches["start_ticks"] - np.uint64(10**6)
    representatives, waits = find_waited(columns, np.array([0, 3, 5, 99], np.uint32))
    assert representatives.tolist() == [0, 5]
    assert waits[:, 1].tolist() == [0, 0, 1, 0]
    assert find_waited(columns, np.empty(0, np.uint32))[1].shape == (0, 2)
