# SPDX-License-Identifier: Apache-2.0
"""A monitor's sending half in a process of its own, to be killed: numbered spans through an Exporter and a spool.

    python producer.py PORT SPOOL FIRST_ID REQUESTS PAUSE_MS

Without requests it sends what is in the spool. Prints `produced FIRST COUNT` before each request, and at the end its
counters as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.cli.session_spans import describe_counters
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.export.spool import Spool, SpoolSettings, describe_endpoint

TIMEOUT_S = 10


def encode(first: int, count: int) -> EncodedRequest:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    for number in range(first, first + count):
        spans.add(trace_id=bytes(8) + number.to_bytes(8, "big"), span_id=number.to_bytes(8, "big"), name="packet")
    return EncodedRequest(message.SerializeToString(), count, count)


def main(port: int, directory: str, first: int, requests: int, pause_ms: float) -> None:
    endpoint = find_endpoint(f"http://127.0.0.1:{port}", {"OTEL_EXPORTER_OTLP_TIMEOUT": str(1000 * TIMEOUT_S)})
    assert endpoint is not None
    exporter = Exporter(endpoint, spool=Spool(SpoolSettings(Path(directory)), describe_endpoint(endpoint)))
    for number in range(requests):
        count = 1 + (first + 7 * number) % 40
        os.write(1, f"produced {first} {count}\n".encode())
        exporter.submit(encode(first, count))
        first += count
        time.sleep(pause_ms / 1000)
    if not requests:
        exporter.wait(60.0)
    print(json.dumps(describe_counters(exporter.close(3.0))), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
