# SPDX-License-Identifier: Apache-2.0
"""Spans a second of one core: encoded, and handed to gRPC, beside the OpenTelemetry SDK's exporter in the same run.

The receiver is another process that acknowledges and throws away; the heap is bounded as a monitor's is. Rates are by
CPU time of this process, medians. The SDK's spans have 8 attributes, like those of a packet; its queue is large enough
that nothing is dropped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

from synthetic_columns import make_columns

from otel_nfprobe.clock import Clock
from otel_nfprobe.endpoint import find_endpoint
from otel_nfprobe.heap import limit_heap
from otel_nfprobe.otlp import Exporter
from otel_nfprobe.resource import make_resource_attributes
from otel_nfprobe.span import EncodedRequest, SpanEncoder

NAMES = ["pcap_rx", "macswap", "lookup", "pcap_tx"]
PACKETS = 200_000
SDK_SPANS = 20_000
RUNS = 5
QUEUE_BYTES = 8 << 20  # so that what is measured is what goes on, not how a queue fills


def serve() -> None:
    """Prints a port and acknowledges everything that is sent there, until its input ends."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, _: object) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"")

    options = [("grpc.max_receive_message_length", 1 << 26)]
    server = grpc.server(ThreadPoolExecutor(2), [Handler()], options=options)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()


def encode() -> Iterator[EncodedRequest]:
    encoder = SpanEncoder(make_resource_attributes({}, "bench"), NAMES, 7, Clock.start())
    selected, reasons = np.arange(PACKETS, dtype=np.uint32), np.full(PACKETS, 1, dtype=np.uint8)
    return encoder.encode(COLUMNS, selected, reasons)


def send(port: int) -> int:
    """Encodes and sends. Returns spans."""
    endpoint = find_endpoint(f"http://127.0.0.1:{port}", {})
    assert endpoint is not None
    exporter, spans = Exporter(endpoint, QUEUE_BYTES), 0
    for request in encode():
        exporter.submit(request, wait=True)
        spans += request.spans
    assert exporter.close(60).exported_spans == spans
    return spans


def send_by_sdk(port: int) -> int:
    """What a program with the OpenTelemetry SDK does: start, end, batch, export."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"127.0.0.1:{port}", insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=SDK_SPANS))
    tracer = provider.get_tracer("bench")
    attributes = {f"nf.number.{i}": i for i in range(7)} | {"nf.packet.id": "00000000000004d2"}
    for _ in range(SDK_SPANS):
        tracer.start_span("packet", attributes=attributes, start_time=1).end(2)
    provider.force_flush()
    provider.shutdown()
    return SDK_SPANS


def rate(do: Callable[[], int]) -> float:
    """Spans per second of CPU time, median."""
    rates = []
    for _ in range(RUNS):
        begun = time.process_time()
        spans = do()
        rates.append(spans / (time.process_time() - begun))
    return statistics.median(rates)


COLUMNS = make_columns(PACKETS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return 0
    limit_heap()
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        spans, size = (sum(numbers) for numbers in zip(*((r.spans, len(r.data)) for r in encode()), strict=True))
        figures = {
            "encode": rate(lambda: sum(request.spans for request in encode())),
            "encode and send": rate(lambda: send(port)),
            "OpenTelemetry SDK: start, end, batch, send": rate(lambda: send_by_sdk(port)),
        }
        assert receiver.stdin is not None
        receiver.stdin.close()
    print(f"spans per second of one core (CPU time, median of {RUNS}); {size / spans:.0f} bytes a span")
    for name, value in figures.items():
        print(f"{name:44s} {value:12,.0f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures | {"bytes_per_span": size / spans}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
