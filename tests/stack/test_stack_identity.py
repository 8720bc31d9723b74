# SPDX-License-Identifier: Apache-2.0
"""From a capture to Jaeger: the id that `nfprobe ids` prints finds one trace, with every NF that saw the packet."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_identity import CENTURY, InProcess, forward
from tests.support.stack_services import Jaeger
from tests.support.testpmd import Testpmd

pytestmark = [pytest.mark.stack, pytest.mark.integration]

PACKETS = 300
EACH = 30


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
