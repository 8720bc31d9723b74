# SPDX-License-Identifier: Apache-2.0
"""The broker adapter on Debian's mosquitto: every message, exactly; its subscribers' counts and the broker's own
are the oracle."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.adapters.installed import choose_adapter, load_adapter
from otel_nfprobe.base.columns import TRANSMITTED, Columns, concatenate
from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.report.report import build_report
from otel_nfprobe.target.target import Target
from tests.support.mqtt import PATIENCE_S, Broker, Client, packet, text
from tests.support.packet_digest import siphash
from tests.support.probed import Probed, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

MESSAGES = 20_000
RING_BYTES = 64 << 20  # room for all records of a test
TOPIC = "plant/7/temperature"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.end()


class Watched(Probed):
    """A session on a broker that keeps its columns."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker.pid, [], Path("broker"), ring_bytes=RING_BYTES)
        self._broker = broker
        self._parts: list[Columns] = []

    def __enter__(self) -> Watched:
        super().__enter__()
        take = self.monitor.drain.pipeline.take

        def keep(is_part: bool = False) -> Columns:
            self._parts.append(take(is_part))
            return self._parts[-1]

        self.monitor.drain.pipeline.take = keep
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert wait_until(self._broker.is_idle, PATIENCE_S)
        super().__exit__(kind, error, trace)

    def columns(self) -> Columns:
        return concatenate(self._parts)


def received(process: subprocess.Popen[bytes]) -> list[int]:
    """What a mosquitto_sub has received when it has ended."""
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return [int(line) for line in output.split()]


@pytest.mark.parametrize("subscribers", [1, 3])
def test_every_message_is_received_and_every_delivery_transmitted(broker: Broker, subscribers: int) -> None:
    listeners = [broker.subscribe(TOPIC, MESSAGES) for _ in range(subscribers)]
    with Watched(broker) as watched:
        broker.publish(TOPIC, MESSAGES)
        delivered = [received(listener) for listener in listeners]
    assert delivered == [list(range(1, MESSAGES + 1))] * subscribers
    counts = watched.counts
    watched.assert_exact()
    assert (counts.batches, counts.received, counts.unknown) == (MESSAGES, MESSAGES, 0)
    assert (counts.transmitted, counts.resent) == (MESSAGES * subscribers, MESSAGES * (subscribers - 1))
    assert watched.calls["send__publish"] >= MESSAGES * subscribers
    assert wait_until(lambda: broker.own_count("publish/messages/received") == MESSAGES)
    columns = watched.columns()
    assert columns.packets["digest"].tolist() == [siphash(TOPIC.encode())] * MESSAGES
    assert columns.topic(siphash(TOPIC.encode())) == TOPIC
    assert sorted(columns.packets["length"].tolist()) == sorted(len(str(i)) for i in range(1, MESSAGES + 1))
    assert (columns.packets["disposition"] == TRANSMITTED).all()
    broker.assert_as_before()


@pytest.mark.parametrize("qos", [1, 2])
def test_message_ids(broker: Broker, qos: int) -> None:
    listener = broker.subscribe(TOPIC, 300, qos)
    with Watched(broker) as watched:
        broker.publish(TOPIC, 300, qos)
        assert received(listener) == list(range(1, 301))
    watched.assert_exact()
    counts, columns = watched.counts, watched.columns()
    assert (counts.received, counts.transmitted, counts.resent) == (300, 300, 0)
    packets = columns.packets[np.argsort(columns.packets["receive_ticks"])]
    assert packets["ip_id"].tolist() == list(range(1, 301))
    assert packets["length"].tolist() == [len(str(number)) for number in range(1, 301)]
    names = watched.monitor.attachment.names_by_id()
    sent = columns.calls[columns.calls["function"] == names.index("send__publish")]
    assert sorted(sent["value"].tolist()) == list(range(1, 301))  # ids of the broker's own, one subscriber


def test_traces_of_a_recording(broker: Broker, nfprobe: Any, tmp_path: Path) -> None:
    topic, recording = "a/\u00e4", tmp_path / "broker.nfp"
    monitor = nfprobe.start("attach", broker.pid, "--record", recording, "--trial", "0s", "--json")
    while "attached to" not in (line := monitor.stderr.readline()):
        assert line, "nfprobe has ended"
    listeners = [broker.subscribe("a/#", 5) for _ in range(2)]
    broker.publish(topic, 5)
    assert [received(listener) for listener in listeners] == [[1, 2, 3, 4, 5]] * 2
    assert wait_until(broker.is_idle, PATIENCE_S)  # the call that sent the last message has returned
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=PATIENCE_S)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["adapter"] == "broker"
    assert summary["packets"] == {"received": 5, "transmitted": 10, "dropped": 0, "unknown": 0}
    traces = traces_of(recording)
    assert len(traces) == 5
    for spans in traces:
        check_trace(spans, topic)
    slowest = build_report(RecordingReader(str(recording))).document["packets"]["slowest"]
    assert [packet["flow"] for packet in slowest] == [f"topic {topic}"] * 5
    broker.assert_as_before()


def check_trace(spans: list[Span], topic: str) -> None:
    """Of a message of one byte with two receivers."""
    root, names = spans[0], [span.name for span in spans]
    assert attribute(root, "messaging.destination.name") == topic
    assert attribute(root, "messaging.message.body.size") == 1
    assert attribute(root, "nf.packet.content_id") == f"{siphash(topic.encode()):016x}"
    assert attribute(root, "nf.packet.disposition") == "transmitted"
    expected = {"packet__read": 1, "handle__publish": 1, "db__message_store": 1, "sub__messages_queue": 1}
    assert {name: names.count(name) for name in expected} == expected
    assert names.count("send__publish") == names.count("packet__write") == 2
    parents = {span.span_id: span.name for span in spans}
    by_name = {span.name: parents.get(span.parent_span_id) for span in spans}
    assert by_name["sub__messages_queue"] == "handle__publish"
    assert by_name["packet__write"] == "send__publish"
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in spans)


def traces_of(recording: Path) -> list[list[Span]]:
    """The spans of each packet, in their order."""
    reader = RecordingReader(str(recording))
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(replay(reader, facts, pipeline))
    encoder = SpanEncoder({}, facts.function_names, 1, facts.make_clock())
    chosen = np.arange(len(columns.packets), dtype=np.uint32)
    traces: dict[bytes, list[Span]] = {}
    for request in encoder.encode(columns, chosen, np.ones(len(chosen), np.uint8)):
        message = ExportTraceServiceRequest.FromString(request.data)
        for span in message.resource_spans[0].scope_spans[0].spans:
            traces.setdefault(span.trace_id, []).append(span)
    return list(traces.values())


def attribute(span: Span, key: str) -> object:
    (value,) = [entry.value for entry in span.attributes if entry.key == key]
    return getattr(value, value.WhichOneof("value"))


def test_hostile_clients_never_hurt_the_broker(broker: Broker) -> None:
    long = b"l/" + b"x" * 65_533
    listener = Client(broker.port, "listener")
    listener.subscribe(b"#")
    with Watched(broker) as watched:
        writer = Client(broker.port, "writer")
        writer.publish(long, b"payload")
        assert listener.receive() == (0x30, text(long) + b"payload")
        malformed = [
            packet(0x30, b"\xff\xff" + b"short"),  # a topic longer than the packet
            packet(0x30, b""),
            packet(0x30, text(b"")),
            packet(0x36, text(b"a") + b"\0\1"),  # quality of service 3
            packet(0x30, text(b"a/+/b")),
            packet(0x30, text(b"\xff\xfe\xed\xa0\x80")),
            packet(0x30, text(b"a\0b")),
            packet(0x32, text(b"a")),  # no message id
            packet(0x32, text(b"a") + b"\0\0"),
        ]
        for index, bad in enumerate(malformed):
            client = Client(broker.port, f"bad-{index}")
            client.socket.sendall(bad)
            assert client.is_closed(), bad
            client.close()
        unfinished = [Client(broker.port, f"slow-{index}") for index in range(200)]
        for client in unfinished:
            client.socket.sendall(packet(0x30, text(b"never"), claimed=1000))
        for client in unfinished:
            client.close()
        writer.publish(b"after", b"all")
        assert listener.receive() == (0x30, text(b"after") + b"all")
    listener.close()
    writer.close()
    watched.assert_exact()
    counts, columns = watched.counts, watched.columns()
    assert (counts.received, counts.transmitted) == (2, 2)
    topics = [columns.topic(int(digest)) for digest in columns.packets["digest"]]
    assert sorted(topics) == ["after", "l/" + "x" * 79 + "..."]
    assert columns.packets["digest"].tolist().count(siphash(long[:1024])) == 1
    broker.assert_as_before()


def test_what_the_broker_makes_itself_is_not_received(broker: Broker) -> None:
    with Watched(broker) as watched:
        assert broker.own_count("clients/total") >= 0
        listener = broker.subscribe("$SYS/broker/uptime", 2)
        listener.communicate(timeout=PATIENCE_S)
    watched.assert_exact()
    assert (watched.counts.received, watched.counts.batches, watched.counts.transmitted) == (0, 0, 0)
    assert watched.counts.generated >= 3


def test_another_program_is_no_broker(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    target = Target(spawn("sleep", "60").pid)
    adapter = load_adapter("broker")
    assert adapter.recognise(target) is None
    with pytest.raises(RefusedError, match="no mosquitto"):
        adapter.roles(target)
    with pytest.raises(UsageError, match="does not know process"):
        choose_adapter("broker", target)
