# SPDX-License-Identifier: Apache-2.0
"""The metrics of one session: sent periodically, served on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.metrics.exemplars import ExemplarEncoder, ExemplarKeeper
from otel_nfprobe.metrics.metrics import MetricsMaker, SnapshotTaker
from otel_nfprobe.metrics.metrics_listener import MetricsListener, parse_address
from otel_nfprobe.metrics.metrics_sender import MetricsSender, open_exporter
from otel_nfprobe.metrics.metrics_settings import MetricsSettings, Temporality
from otel_nfprobe.monitor.monitor import Monitor

CLOSE_S = 10.0
CLOSE_SOON_S = 1.0  # for a receiver that was just unreachable


class SessionMetrics:
    """Metrics of one session, sent by OTLP, served for scraping, or both.

    Args:
        settings: destination and interval, or None.
        listen: `[HOST:]PORT` to serve them on, or None.
        resource: the target's resource attributes.

    Attributes:
        encoder_kind: class of the encoder for its spans.

    Raises:
        NfprobeError: the address cannot be bound.
    """

    encoder_kind = ExemplarEncoder

    def __init__(self, settings: MetricsSettings | None, listen: str | None, resource: Mapping[str, Any]) -> None:
        self._listener = MetricsListener(*parse_address(listen)) if listen else None
        self._settings = settings
        self._open = open_exporter(settings.endpoint) if settings else None
        self._resource = resource
        self._exporter: Exporter | None = None
        self._sender: MetricsSender | None = None

    @property
    def port(self) -> int | None:
        """Returns the port on which metrics are served."""
        return self._listener.port if self._listener else None

    def begin(self, monitor: Monitor) -> None:
        """Starts with the session; if its monitor sends spans, an `encoder_kind` encodes them."""
        spans = monitor.drain.spans
        self._exporter = spans.exporter if spans else None
        ticks_per_second, now_ns = monitor.drain.clock.ticks_per_second, time.time_ns()
        if self._listener is not None:
            self._shown = SnapshotTaker(monitor, _keep(monitor))
            maker = MetricsMaker(self._resource, now_ns, ticks_per_second, Temporality(), explicit=True)
            self._listener.begin(maker)
        if self._settings is not None and self._open is not None:
            temporality, explicit = self._settings.temporality, self._settings.explicit
            self._taker = SnapshotTaker(monitor, _keep(monitor))
            maker = MetricsMaker(self._resource, now_ns, ticks_per_second, temporality, explicit)
            self._due_at = time.monotonic() + self._settings.interval_s
            self._sender = MetricsSender(self._open, maker)

    def step(self) -> None:
        """Sends due metrics and answers requests; call it often from the draining thread."""
        now = time.monotonic()
        if self._listener is not None and self._listener.is_asked:
            self._give(self._shown, self._listener.give)
        if self._settings is None or self._sender is None or now < self._due_at or not self._sender.is_idle:
            return
        self._due_at = now + self._settings.interval_s
        self._give(self._taker, self._sender.send)

    def finish(self, notify: Callable[[str], None]) -> dict[str, Any]:
        """Sends the last metrics, after the spans. Returns their part of the summary."""
        if self._listener is not None:
            self._listener.close()
        if self._sender is None:
            return {"delivered": 0, "failed": 0, "error": ""}
        self._give(self._taker, self._sender.send, is_last=True)
        sent = self._sender.close(CLOSE_SOON_S if self._counters().is_failing else CLOSE_S)
        if sent.failed and not sent.is_refused:
            total = sent.delivered + sent.failed
            notify(f"{sent.failed} of {total} exports of metrics were not delivered: {sent.error.rstrip('.')}.")
        return {"delivered": sent.delivered, "failed": sent.failed, "error": sent.error}

    def abandon(self) -> None:
        """Closes without a last export."""
        if self._listener is not None:
            self._listener.close()
        if self._sender is not None:
            self._sender.close(0.0)
        elif self._open is not None:
            self._open.shutdown()

    def _counters(self) -> ExportCounters:
        return self._exporter.read_counters() if self._exporter else ExportCounters()

    def _give(self, taker: SnapshotTaker, take: Callable[[Any], None], is_last: bool = False) -> None:
        try:
            take(taker.take(self._counters(), is_last))
        except MemoryError:
            return  # the next export includes these values, once there is memory


def _keep(monitor: Monitor) -> ExemplarKeeper:
    """Keeps exemplars of exported spans; without export there are no spans to refer to."""
    spans = monitor.drain.spans
    if spans is None or not isinstance(spans.encoder, ExemplarEncoder):
        return ExemplarKeeper()
    return spans.encoder.keep_exemplars()
