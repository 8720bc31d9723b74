# SPDX-License-Identifier: Apache-2.0
"""Spans a second of one core: encoded, and handed to gRPC, beside the OpenTelemetry SDK's exporter in the same run.

The receiver is another process that acknowledges and throws away; the heap is bounded as a monitor's is. Rates are by
CPU time of this process; the first run of each is not counted. The SDK's spans have 8 attributes, like those of a
packet; its queue is large enough that nothing is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Columns
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import EncodedRequest, SpanEncoder
from otel_nfprobe.monitor.malloc_tuning import limit_heap
from tests.benchmarks.receiver import receiver
from tests.benchmarks.rounds import Spread, make_parser, spent_s, spread, write_figures
from tests.support.synthetic_columns import make_columns

NAMES = ["pcap_rx", "macswap", "lookup", "pcap_tx"]
PACKETS, PACKETS_SHORT = 200_000, 20_000
SDK_SPANS, SDK_SPANS_SHORT = 20_000, 1_000
RUNS = 5
QUEUE_BYTES = 8 << 20  # so that what is measured is what goes on, not how a queue fills


def encode(columns: Columns) -> Iterator[EncodedRequest]:
    encoder = SpanEncoder(make_resource_attributes({}, "bench"), NAMES, 7, Clock.start())
    packets = len(columns.packets)
    return encoder.encode(columns, np.arange(packets, dtype=np.uint32), np.full(packets, 1, dtype=np.uint8))


def count_encoded(columns: Columns) -> int:
    """Encodes. Returns spans."""
    return sum(request.spans for request in encode(columns))


def send(columns: Columns, port: int) -> int:
    """Encodes and sends. Returns spans."""
    endpoint = find_endpoint(f"http://127.0.0.1:{port}", {})
    assert endpoint is not None
    exporter, spans = Exporter(endpoint, QUEUE_BYTES), 0
    for request in encode(columns):
        exporter.submit(request, wait=True)
        spans += request.spans
    assert exporter.close(60).exported_spans == spans
    return spans


def send_by_sdk(spans: int, port: int) -> int:
    """What a program with the OpenTelemetry SDK does: start, end, batch, export."""
    provider = TracerProvider()
    exporter = OTLPSpanExporter(endpoint=f"127.0.0.1:{port}", insecure=True)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=spans))
    tracer = provider.get_tracer("bench")
    attributes = {f"nf.number.{i}": i for i in range(7)} | {"nf.packet.id": "00000000000004d2"}
    for _ in range(spans):
        tracer.start_span("packet", attributes=attributes, start_time=1).end(2)
    provider.force_flush()
    provider.shutdown()
    return spans


def rate(runs: int, do: Callable[[], int]) -> Spread:
    """Spans per second of CPU time. The first run is not counted."""
    rates = []
    for _ in range(runs + 1):
        begin_s = spent_s()
        spans = do()
        rates.append(spans / (spent_s() - begin_s))
    return spread(rates[1:])


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    packets, sdk_spans, runs = (PACKETS_SHORT, SDK_SPANS_SHORT, 1) if arguments.short else (PACKETS, SDK_SPANS, RUNS)
    limit_heap()
    columns = make_columns(packets)
    sizes = [(request.spans, len(request.data)) for request in encode(columns)]
    with receiver() as port:
        figures = {
            "encode": rate(runs, partial(count_encoded, columns)),
            "encode and send": rate(runs, partial(send, columns, port)),
            "OpenTelemetry SDK: start, end, batch, send": rate(runs, partial(send_by_sdk, sdk_spans, port)),
        }
    spans, size = (sum(numbers) for numbers in zip(*sizes, strict=True))
    print(f"spans per second of one core (CPU time, median of {runs}, quartiles); {size / spans:.0f} bytes a span")
    for name, value in figures.items():
        print(f"{name:44s} {value.median:12,.0f} ({value.low:,.0f} .. {value.high:,.0f})")
    write_figures(arguments.json, {**figures, "bytes_per_span": size / spans})
    return 0


if __name__ == "__main__":
    sys.exit(main())
