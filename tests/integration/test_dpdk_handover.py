# SPDX-License-Identifier: Apache-2.0
"""Packets that go from one lcore to another, in DPDK's own examples: over rings, and over an event device.

One thread receives, others work on the packets, and one puts them in order and transmits: each packet is one packet,
and its trace has the batches of all threads that say when they take packets over.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import TRANSMITTED, BatchFlag, Columns, concatenate, with_again
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.integration.test_dpdk_examples import measure
from tests.support.dpdk_examples import BURST, Example, build_example, examples_are_installed
from tests.support.otlp_receiver import Receiver

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]


PACKETS = 1_000
RECEIVES, TAKES_EVENTS = "eth_pcap_rx", "sw_event_dequeue_burst"
Start = Callable[..., Example]
# Lcores of the receiver, the sender, the scheduler and the workers.
EVENT_CORES = ("-r", "1", "-t", "1", "-e", "1", "-w", "6", "-s", "1", "-n", "0")


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    started: list[Example] = []

    def run(name: str, *options: str, **settings: Any) -> Example:
        program = build_example(tmp_path_factory.mktemp("examples"), name)
        started.append(Example(program, tmp_path, f"nfo{os.getpid()}", options, lcores=3, memory_mib=512, **settings))
        return started[-1]

    yield run
    for example in started:
        example.stop()


def follow(recording: Path) -> tuple[Columns, PipelineCounts]:
    """What became of each packet."""
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return concatenate(list(replay(reader, facts, pipeline))), pipeline.counts()


def check(summary: dict[str, Any], columns: Columns, counts: PipelineCounts, sent: int) -> int:
    """All that was transmitted is what was received, with the same id. Returns how many were received before."""
    assert not any(summary["records"]["lost"].values()), summary
    before = PACKETS - summary["packets"]["received"]
    assert 0 < before <= BURST  # in the call that was open when the probes came
    assert (summary["packets"]["transmitted"], summary["packets"]["dropped"]) == (sent, 0)
    assert len(columns.packets) == PACKETS - before
    is_sent = columns.packets["disposition"] == TRANSMITTED
    assert np.count_nonzero(is_sent) == sent - before
    assert np.array_equal(columns.packets["done_digest"][is_sent], columns.packets["digest"][is_sent])
    assert np.all(columns.packets["done_ticks"][is_sent] > columns.packets["receive_ticks"][is_sent])
    assert counts.generated == before
    return before


Attributes = dict[str, Any]


def attributes_of(span: Span) -> Attributes:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


def traces_of(requests: list[bytes]) -> dict[bytes, list[Span]]:
    traces: dict[bytes, list[Span]] = defaultdict(list)
    for request in requests:
        for part in ExportTraceServiceRequest.FromString(request).resource_spans:
            for span in part.scope_spans[0].spans:
                traces[span.trace_id].append(span)
    return traces


def check_way(trace: list[Span], calls: Sequence[str], sending: str) -> None:
    """One packet, a batch that begins with each of the calls, the waits between them.

    `sending`: what ran in the last batch of each packet that was sent; "": packets are kept until a later one.
    """
    (packet,) = [span for span in trace if not span.parent_span_id]
    batches = sorted((span for span in trace if span.name == "batch"), key=lambda span: span.start_time_unix_nano)
    waits = [span for span in trace if span.name == "queue wait" and "nf.handover" in attributes_of(span)]
    numbers = [attributes_of(span).get("nf.handover", 0) for span in batches]
    assert numbers == list(range(len(calls)))
    assert [attributes_of(span)["nf.handover"] for span in waits] == numbers[1:]
    assert {span.parent_span_id for span in (*batches, *waits)} == {packet.span_id}
    assert len({attributes_of(span)["nf.batch.id"] for span in batches}) == len(batches)
    for wait, batch in zip(waits, batches[1:], strict=True):
        assert wait.end_time_unix_nano == batch.start_time_unix_nano >= wait.start_time_unix_nano
    inside = [[call for call in trace if call.parent_span_id == span.span_id] for span in batches]
    assert [min(found, key=lambda call: call.start_time_unix_nano).name for found in inside] == list(calls)
    if sending and attributes_of(packet)["nf.packet.disposition"] == "transmitted":
        assert [sending in {call.name for call in found} for found in inside] == [*[False] * (len(calls) - 1), True]


def check_links(traces: dict[bytes, list[Span]], packets: int, handovers: int) -> None:
    """With `--spans links` each packet links to all its batches, each of which is there once."""
    spans = {(span.trace_id, span.span_id): span for trace in traces.values() for span in trace}
    roots = [span for span in spans.values() if "nf.packet.id" in attributes_of(span)]
    assert len(roots) == packets
    for root in roots:
        linked = [spans[link.trace_id, link.span_id] for link in root.links]
        assert [span.name for span in linked] == ["batch"] * (handovers + 1)
    sizes = [attributes_of(span)["nf.batch.size"] for span in spans.values() if span.name == "batch"]
    assert sum(sizes) >= packets * (handovers + 1)


def check_spans(
    nfprobe: Any, receiver: Receiver, recording: Path, columns: Columns, calls: Sequence[str], sending: str = ""
) -> None:
    """What was sent while the program ran is sent of its recording, and says each packet's way."""
    live, receiver.requests = list(receiver.requests), []
    words = ("export", recording, "--endpoint", f"http://127.0.0.1:{receiver.port}", "--sample", "1")
    done = nfprobe.run(*words)
    assert done.returncode == 0, done.stderr
    assert receiver.requests == live
    traces = traces_of(live)
    assert len(traces) == len(columns.packets)
    for trace in traces.values():
        check_way(trace, calls, sending)
    receiver.requests = []
    assert nfprobe.run(*words, "--spans", "links").returncode == 0
    check_links(traces_of(receiver.requests), len(columns.packets), len(calls) - 1)


def options(receiver: Receiver, recording: Path) -> tuple[object, ...]:
    endpoint = f"http://127.0.0.1:{receiver.port}"
    return "--packets", "all", "--record", recording, "--endpoint", endpoint, "--sample", "1"


def taken_over(columns: Columns) -> np.ndarray[Any, Any]:
    return (columns.batches["flags"] & BatchFlag.TAKEN_OVER) != 0


def test_through_rings(
    nfprobe: Any, start: Start, capture: Callable[[int], Path], tmp_path: Path, receiver: Receiver
) -> None:
    """The sender takes packets out of a reorder buffer: in the order in which they were received."""
    example, recording = start("packet_ordering", "-p", "3"), tmp_path / "rings.nfprobe"
    sent = PACKETS // BURST * BURST  # it sends whole bursts only, and keeps the rest
    summary = measure(nfprobe, example, capture(PACKETS).read_bytes(), (PACKETS, sent), *options(receiver, recording))
    columns, counts = follow(recording)
    before = check(summary, columns, counts, sent)
    is_taken = taken_over(columns)
    sending = columns.packets["done_function"][columns.packets["disposition"] == TRANSMITTED][0]
    receivers = set(columns.batches["thread"][~is_taken].tolist())
    senders = set(columns.calls["thread"][columns.calls["function"] == sending].tolist())
    assert len(receivers) == len(senders) == 1
    assert not receivers & senders
    assert senders == set(columns.batches["thread"][is_taken].tolist())
    assert columns.batches["size"][is_taken].sum() == PACKETS
    assert counts.taken_over == len(columns.handovers) == PACKETS - before
    every = with_again(columns)  # what an earlier take has given, too
    taken = np.lexsort((every.handovers["index"], every.batches["start_ticks"][every.handovers["batch"]]))
    packets = columns.packets[columns.handovers["packet"][taken]]
    assert np.all(np.lexsort((packets["index"], packets["receive_ticks"])) == np.arange(len(packets)))
    check_spans(nfprobe, receiver, recording, columns, (RECEIVES, "rte_reorder_drain"), "eth_pcap_tx_dumper")


def test_through_an_event_device(
    nfprobe: Any, start: Start, capture: Callable[[int], Path], tmp_path: Path, receiver: Receiver
) -> None:
    """Two workers take packets from the device's scheduler and give them back; an adapter of it sends them."""
    example = start("eventdev_pipeline", *EVENT_CORES, devices=("event_sw0",))
    recording = tmp_path / "events.nfprobe"
    summary = measure(
        nfprobe, example, capture(PACKETS).read_bytes(), (PACKETS, PACKETS), *options(receiver, recording)
    )
    columns, counts = follow(recording)
    before = check(summary, columns, counts, PACKETS)
    assert columns.batches["size"][taken_over(columns)].sum() == 2 * PACKETS
    assert counts.taken_over == len(columns.handovers) == 2 * (PACKETS - before)
    check_spans(nfprobe, receiver, recording, columns, (RECEIVES, TAKES_EVENTS, TAKES_EVENTS))
