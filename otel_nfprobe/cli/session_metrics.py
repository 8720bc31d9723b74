# SPDX-License-Identifier: Apache-2.0
"""The metrics of one session: when they are sent, and what is said when they were not. Called by measure.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from otel_nfprobe.exemplars import ExemplarEncoder
from otel_nfprobe.metrics import MetricsMaker, SnapshotTaker
from otel_nfprobe.metrics_sender import MetricsSender, open_exporter
from otel_nfprobe.metrics_settings import MetricsSettings
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.otlp import DROPPED_UNREACHABLE, Exporter

CLOSE_S = 10.0
CLOSE_SOON_S = 1.0  # for a receiver that has just shown that it is not there


class SessionMetrics:
    """Metrics of one session.

    Args:
        settings: where to and how often.
        resource: the target's resource attributes.

    Attributes:
        encoder_kind: its spans are to be encoded by one of these.
    """

    encoder_kind = ExemplarEncoder

    def __init__(self, settings: MetricsSettings, resource: Mapping[str, Any]) -> None:
        self._settings = settings
        self._open = open_exporter(settings.endpoint)
        self._resource = resource
        self._sender: MetricsSender | None = None

    def begin(self, monitor: Monitor) -> None:
        """The session has begun: its monitor sends spans, encoded by an `encoder_kind`."""
        spans, clock = monitor.drain.spans, monitor.drain.clock
        assert spans is not None
        assert isinstance(spans.encoder, ExemplarEncoder)
        maker = MetricsMaker(self._resource, time.time_ns(), clock.ticks_per_second, self._settings.temporality)
        self._taker = SnapshotTaker(monitor, spans.encoder)
        self._exporter: Exporter = spans.exporter
        self._due_at = time.monotonic() + self._settings.interval_s
        self._sender = MetricsSender(self._open, maker)

    def send_if_due(self) -> None:
        """To be called often by the thread that drains."""
        now = time.monotonic()
        if self._sender is None or now < self._due_at or not self._sender.is_idle:
            return
        self._due_at = now + self._settings.interval_s
        self._send(self._sender, is_last=False)

    def along(self, progress: Callable[[], None]) -> Callable[[], None]:
        """`progress`, and `send_if_due` with it."""

        def step() -> None:
            progress()
            self.send_if_due()

        return step

    def finish(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Sends the last metrics, after the spans. Returns what the summary says of them."""
        assert self._sender is not None
        self._send(self._sender, is_last=True)
        unreachable = self._exporter.read_counters().dropped_spans[DROPPED_UNREACHABLE] > 0
        sent = self._sender.close(CLOSE_SOON_S if unreachable else CLOSE_S)
        if sent.failed and not sent.is_refused:
            total = sent.delivered + sent.failed
            say(f"{sent.failed} of {total} exports of metrics were not delivered: {sent.error.rstrip('.')}.")
        return {"delivered": sent.delivered, "failed": sent.failed, "error": sent.error}

    def abandon(self) -> None:
        """Ends without a last export."""
        if self._sender is not None:
            self._sender.close(0.0)
        else:
            self._open.shutdown()

    def _send(self, sender: MetricsSender, is_last: bool) -> None:
        try:
            sender.send(self._taker.take(self._exporter.read_counters(), is_last))
        except MemoryError:
            return  # the next export says the same, when there is memory again
