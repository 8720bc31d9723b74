# SPDX-License-Identifier: Apache-2.0
"""An export of a recording sends what the session itself has sent: byte for byte, request for request."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.otlp_receiver import Receiver

pytestmark = [pytest.mark.integration, pytest.mark.shared]


def spans_of(requests: list[bytes]) -> list[bytes]:
    return [
        span.SerializeToString()
        for request in requests
        for part in ExportTraceServiceRequest.FromString(request).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]


def resource_of(request: bytes) -> dict[str, str]:
    attributes = ExportTraceServiceRequest.FromString(request).resource_spans[0].resource.attributes
    return {attribute.key: str(attribute.value) for attribute in attributes}


@pytest.mark.parametrize(
    "options",
    [
        ("--sample", "1", "--spans", "links"),
        ("--slowest", "2%", "--sample", "5%", "--correlate", "--time-scale", "1000", "--max-traces-per-second", "300"),
    ],
)
def test_the_spans_are_the_same(
    nfprobe: Any,
    start_firewall: Callable[..., Firewall],
    receiver: Receiver,
    tmp_path: Path,
    options: tuple[str, ...],
) -> None:
    firewall = start_firewall(20_000)
    recording, endpoint = tmp_path / "session.nfp", f"http://127.0.0.1:{receiver.port}"
    words = ["--adapter", DESCRIPTION, "--trial", "0s", "--for", "1.5s", "--endpoint", endpoint, *options]
    summary = nfprobe.json("attach", firewall.pid, *words, "--ring-size", "64MiB", "--record", recording)
    assert summary["spans"]["dropped"] == summary["recording"]["left_out"] == 0
    live, receiver.requests = receiver.requests, []
    done = nfprobe.run("export", recording, "--endpoint", endpoint, *options, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["spans"]["exported"] == summary["spans"]["exported"] > 100
    assert spans_of(receiver.requests) == spans_of(live)
    assert resource_of(receiver.requests[0]) == resource_of(live[0])
    assert receiver.requests == live
