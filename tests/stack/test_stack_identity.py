# SPDX-License-Identifier: Apache-2.0
"""From a capture to Jaeger: the ids that `nfprobe ids` prints find one trace, with every NF that saw the packet."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_identity import CENTURY, InProcess, forward
from tests.support.frames import ethernet, ipv4, udp
from tests.support.stack_services import Jaeger
from tests.support.testpmd import Testpmd
from tests.support.traffic import write_pcap

pytestmark = [pytest.mark.stack, pytest.mark.integration]

PACKETS = 300
EACH = 30
FLOWS = 4096


def test_an_id_of_a_capture_finds_one_trace_through_two_functions(
    nfprobe: Any,
    jaeger: Jaeger,
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, client = InProcess(capsys), jaeger.client
    files = [capture(PACKETS), tmp_path / "between.pcap", tmp_path / "behind.pcap"]
    services = [f"nf{number}-{uuid.uuid4().hex[:8]}" for number in (1, 2)]
    for service, received, sent in zip(services, files, files[1:], strict=False):
        recording = tmp_path / f"{service}.nfp"
        testpmd = start_testpmd(f"net_pcap0,rx_pcap={received},tx_pcap={sent}")
        forward(nfprobe, testpmd, PACKETS, "--packets", "all", "--record", recording)
        options = ("--correlate-window", CENTURY, "--endpoint", jaeger.otlp_endpoint, "--service", service)
        command.run("export", recording, *options)
        assert client.await_traces(service, PACKETS) == PACKETS
    for packet_id in command.ids(files[0])[::EACH]:
        found = [client.find_trace_ids(service, {"nf.packet.id": packet_id}) for service in services]
        assert found[0] == found[1]
        (trace_id,) = found[0]
        roots = [span for span in client.read_trace(trace_id) if not span.parent_span_id]
        assert [span.attributes["nf.packet.id"] for span in roots] == [packet_id] * 2
        assert len({span.span_id for span in roots}) == 2
        assert {span.resource["service.name"] for span in roots} == set(services)


def test_equal_packets_of_many_flows_are_found_one_by_one(
    nfprobe: Any, jaeger: Jaeger, start_testpmd: Callable[..., Testpmd], tmp_path: Path, capsys: Any
) -> None:
    command, client, service = InProcess(capsys), jaeger.client, f"flows-{uuid.uuid4().hex[:8]}"
    flows = [(bytes([10, 0, 0, n // 64]), 1024 + n % 64) for n in range(FLOWS)]
    played, recording = tmp_path / "equal.pcap", tmp_path / "equal.nfp"
    write_pcap(played, [ethernet(ipv4(udp(bytes(18), port, 53), source=source, ip_id=0)) for source, port in flows])
    testpmd = start_testpmd(f"net_pcap0,rx_pcap={played},tx_pcap={tmp_path / 'out.pcap'}")
    forward(nfprobe, testpmd, FLOWS, "--packets", "all", "--record", recording)
    command.run("export", recording, "--endpoint", jaeger.otlp_endpoint, "--service", service)
    assert client.await_traces(service, FLOWS) == FLOWS
    for id, (source, port) in list(zip(command.ids(played), flows, strict=True))[5::101]:
        (trace_id,) = client.find_trace_ids(service, {"nf.packet.id": id})
        (root,) = [span for span in client.read_trace(trace_id) if not span.parent_span_id]
        assert root.attributes["source.address"] == ".".join(map(str, source))
        assert root.attributes["source.port"] == port
        assert "nf.packet.repeated" not in root.attributes


def test_a_packet_is_found_on_both_sides_of_address_translation(
    nfprobe: Any, jaeger: Jaeger, start_testpmd: Callable[..., Testpmd], tmp_path: Path, capsys: Any
) -> None:
    """Its content id finds one trace with both functions, its id the function that sees these addresses."""
    command, client = InProcess(capsys), jaeger.client
    bodies = [bytes([n]) * (20 + n) for n in range(EACH)]
    inside = [ethernet(ipv4(udp(body, 5000), source=b"\x0a\0\0\7", ip_id=9)) for body in bodies]
    outside = [ethernet(ipv4(udp(body, 40000), source=b"\xc0\0\2\1", ttl=63, ip_id=9)) for body in bodies]
    played, services = [tmp_path / "inside.pcap", tmp_path / "outside.pcap"], []
    for file, frames in zip(played, (inside, outside), strict=True):
        write_pcap(file, frames)
        services.append(f"{file.stem}-{uuid.uuid4().hex[:8]}")
        recording = file.with_suffix(".nfp")
        testpmd = start_testpmd(f"net_pcap0,rx_pcap={file},tx_pcap={tmp_path / 'out.pcap'}")
        forward(nfprobe, testpmd, EACH, "--packets", "all", "--record", recording)
        options = ("--correlate-window", CENTURY, "--endpoint", jaeger.otlp_endpoint, "--service", services[-1])
        command.run("export", recording, *options)
        assert client.await_traces(services[-1], EACH) == EACH
    assert command.content_ids(played[0]) == command.content_ids(played[1])
    for content_id, *ids in zip(command.content_ids(played[0]), *map(command.ids, played), strict=True):
        found = [client.find_trace_ids(service, {"nf.packet.content_id": content_id}) for service in services]
        (trace_id,) = found[0]
        assert found == [[trace_id], [trace_id]]
        roots = [span for span in client.read_trace(trace_id) if not span.parent_span_id]
        assert {span.resource["service.name"] for span in roots} == set(services)
        assert {span.attributes["nf.packet.id"] for span in roots} == set(ids)
        assert client.find_trace_ids(services[0], {"nf.packet.id": ids[0]}) == [trace_id]
        assert not client.find_trace_ids(services[0], {"nf.packet.id": ids[1]})
