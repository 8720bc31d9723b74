# SPDX-License-Identifier: Apache-2.0
"""Metrics sender: the SDK's OTLP exporter for metrics in a thread of its own.

The drain never waits for it: a snapshot due while the previous one is still being sent is skipped. The next one covers
its time.
"""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, cast

import grpc
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult

from otel_nfprobe.export.delivery import make_readable
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.metrics.metrics import MetricsMaker, MetricsSnapshot

POINTS_MAX = 1000  # per request: 160 buckets and a long name each fit the 4 MiB that receivers accept
ABANDON_S = 2.0  # a thread that has not ended by then is abandoned
# The answer of receivers that only accept traces, such as Jaeger.
NO_METRICS = re.compile(r"UNIMPLEMENTED|\b404\b")
_GRPC_LOGGER = "opentelemetry.exporter.otlp.proto.grpc"


@dataclass(frozen=True)
class SentMetrics:
    """How often metrics were delivered, and how often and why not."""

    delivered: int = 0
    failed: int = 0
    error: str = ""

    @property
    def is_refused(self) -> bool:
        """The receiver accepts no metrics at all."""
        return NO_METRICS.search(self.error) is not None


class MetricsSender:
    """Sends the metrics that `maker` makes of snapshots, one at a time."""

    def __init__(self, exporter: MetricExporter, maker: MetricsMaker) -> None:
        self._maker = maker
        self._exporter = exporter
        self._changed = threading.Condition()
        self._waiting: deque[MetricsSnapshot] = deque()  # at most one, plus the last one of the session
        self._closing = False
        self._sent = SentMetrics()
        self._thread = threading.Thread(target=self._run, name="nfprobe-metrics", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Returns whether a snapshot would be sent immediately, and not be refused."""
        with self._changed:
            return not self._waiting and not self._sent.is_refused

    def send(self, snapshot: MetricsSnapshot) -> None:
        """Queues a snapshot; does not block."""
        with self._changed:
            self._waiting.append(snapshot)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> SentMetrics:
        """Waits at most this time for pending snapshots. Returns the totals."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # interrupts its waits and calls, except HTTP calls
        self._thread.join(ABANDON_S)
        return self._sent

    def _run(self) -> None:
        with _LogCapture() as complaints:
            while True:
                with self._changed:
                    while not self._waiting and not self._closing:
                        self._changed.wait()
                    if not self._waiting:
                        return
                    snapshot = self._waiting[0]
                complaints.last = ""
                self._send(snapshot, complaints)
                with self._changed:
                    self._waiting.popleft()

    def _send(self, snapshot: MetricsSnapshot, complaints: _LogCapture) -> None:
        if self._sent.is_refused:
            return
        try:
            result = self._exporter.export(self._maker.make(snapshot))
        except Exception as error:  # whatever the SDK raises, the session continues
            result, complaints.last = MetricExportResult.FAILURE, make_readable(f"{type(error).__name__}: {error}")
        if result is MetricExportResult.SUCCESS:
            self._maker.confirm()
            self._sent = replace(self._sent, delivered=self._sent.delivered + 1)
        else:
            self._sent = replace(self._sent, failed=self._sent.failed + 1, error=complaints.last or "no answer")


class _LogCapture(logging.Handler):
    """Captures what the SDK's exporters log in this thread, instead of letting it reach standard error."""

    def __init__(self) -> None:
        super().__init__()
        self.last = ""
        self._logger = logging.getLogger("opentelemetry.exporter.otlp")
        self._thread = threading.get_ident()

    def __enter__(self) -> _LogCapture:
        self._logger.addHandler(self)
        self._logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the gRPC error, or the whole message about HTTP."""
        if record.thread != self._thread:
            return
        if not record.name.startswith(_GRPC_LOGGER):
            # The last message only says that there were too many before it.
            if "max retries" not in record.msg or not self.last:
                self.last = make_readable(record.getMessage())
        elif isinstance(record.args, tuple):
            for code in record.args:
                if isinstance(code, grpc.StatusCode):
                    self.last = f"{code.name}: {make_readable(str(record.args[-1]))}"


def open_exporter(endpoint: Endpoint) -> MetricExporter:
    """Creates the SDK's exporter for metrics; it connects on first use."""
    if endpoint.path:
        return _open_http(endpoint)
    credentials = None
    if endpoint.secure:
        credentials = grpc.ssl_channel_credentials(
            endpoint.root_certificates, endpoint.client_key, endpoint.client_certificate
        )
    scheme = "https" if endpoint.secure else "http"
    return OTLPMetricExporter(
        endpoint=f"{scheme}://{endpoint.target}",
        insecure=not endpoint.secure,
        credentials=credentials,
        headers=endpoint.headers,
        timeout=endpoint.timeout_s,
        compression=grpc.Compression.Gzip if endpoint.gzip else grpc.Compression.NoCompression,
        max_export_batch_size=POINTS_MAX,
        # The SDK's annotation says strings; gRPC accepts integers, as in the SDK's own default options.
        channel_options=cast(Any, (("grpc.enable_http_proxy", 0),)) if endpoint.loopback else None,
    )


def _open_http(endpoint: Endpoint) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetricExporter

    from otel_nfprobe.export.boundedsession import open_session  # requests takes long to load

    return HttpMetricExporter(
        session=open_session(),
        endpoint=endpoint.url,
        certificate_file=endpoint.root_certificates_file,
        client_key_file=endpoint.client_key_file,
        client_certificate_file=endpoint.client_certificate_file,
        headers=dict(endpoint.headers),
        timeout=endpoint.timeout_s,
        compression=Compression.Gzip if endpoint.gzip else Compression.NoCompression,
        max_export_batch_size=POINTS_MAX,
    )
