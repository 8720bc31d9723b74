# SPDX-License-Identifier: Apache-2.0
"""SDK exporter: nfprobe's sender for any program that uses the OpenTelemetry SDK (OTEL_TRACES_EXPORTER=nfprobe).

`export` encodes and returns without waiting for the receiver. Settings are the standard OTEL_EXPORTER_OTLP_* variables;
NFPROBE_SPOOL names a directory for spans that cannot be delivered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_nfprobe._core import lib
from otel_nfprobe.base.environment_variables import NFPROBE_SPOOL
from otel_nfprobe.export.destination import find_default_endpoint
from otel_nfprobe.export.endpoint import Endpoint, find_endpoint
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.export.spool import Spool, SpoolSettings, describe_endpoint

CLOSE_S = 10.0


class NfprobeSpanExporter(SpanExporter):
    """Exports spans by OTLP, in a separate thread with a bounded queue.

    Args:
        endpoint: as --endpoint; None: OTEL_EXPORTER_OTLP_ENDPOINT, or the specification's default.

    Raises:
        UsageError: the endpoint or a variable cannot be used.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        # The SDK creates an exporter only if it is not disabled.
        environment = {name: value for name, value in os.environ.items() if name != "OTEL_SDK_DISABLED"}
        found = find_endpoint(endpoint, environment) if endpoint else find_default_endpoint(environment)
        assert found is not None
        self._exporter = Exporter(found, spool=_open_spool(found))

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Queues spans; FAILURE if some were dropped: the queue is full, or a name is not valid Unicode."""
        queued = [request is not None and self._exporter.submit(request) for request in _make_requests(spans)]
        return SpanExportResult.SUCCESS if all(queued) else SpanExportResult.FAILURE

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Waits until everything is delivered or dropped; False when that takes longer."""
        return self._exporter.wait(timeout_s=timeout_millis / 1000)

    def shutdown(self) -> None:
        """Sends the remaining spans."""
        self._exporter.close(CLOSE_S)

    def read_counters(self) -> ExportCounters:
        """Returns what happened to the spans."""
        return self._exporter.read_counters()


def _open_spool(endpoint: Endpoint) -> Spool | None:
    directory = os.environ.get(NFPROBE_SPOOL, "")
    return Spool(SpoolSettings(Path(directory).absolute()), describe_endpoint(endpoint)) if directory else None


# Yields requests within the limits of native/core/otlp.h; a larger span is sent alone. None: it cannot be encoded.
def _make_requests(spans: Sequence[ReadableSpan]) -> Iterator[EncodedRequest | None]:
    if not spans:
        return
    data = _encode(spans) if len(spans) <= lib.NFP_OTLP_SPANS_MAX else None
    if data is not None and (len(spans) == 1 or len(data) <= lib.NFP_OTLP_BYTES_MAX):
        yield EncodedRequest(data, len(spans), 0)
    elif len(spans) == 1:
        yield None
    else:
        half = len(spans) // 2
        yield from _make_requests(spans[:half])
        yield from _make_requests(spans[half:])


def _encode(spans: Sequence[ReadableSpan]) -> bytes | None:
    try:
        return encode_spans(spans).SerializeToString()
    except ValueError:  # a surrogate in a name; the SDK drops such attributes itself
        return None
