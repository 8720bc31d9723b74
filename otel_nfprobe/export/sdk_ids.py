# SPDX-License-Identifier: Apache-2.0
"""SDK ID generator: the trace IDs that a packet has in every NF, so that a program's own span is in the packet's trace.

    with packet_trace(content_id, unix_ns):  # of the packet about to be sent, as `nfprobe ids` prints it
        with tracer.start_as_current_span("send"): ...

The trace is the one that monitors with --correlate give the packet. Otherwise IDs are random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from otel_nfprobe.pipeline.identity import BITS_64, mix

WINDOW_NS = 10**9  # of --correlate
_trace: ContextVar[int | None] = ContextVar("nfprobe_packet_trace", default=None)


class PacketIdGenerator(RandomIdGenerator):
    """Random IDs, and inside `packet_trace` the packet's."""

    def generate_trace_id(self) -> int:
        """A trace id."""
        trace = _trace.get()
        return super().generate_trace_id() if trace is None else trace

    def is_trace_id_random(self) -> bool:
        """Returns True: its low 56 bits are a hash, so they are as good as random."""
        return True


@contextmanager
def packet_trace(content_id: int, unix_ns: int | None = None, window_ns: int = WINDOW_NS) -> Iterator[int]:
    """Gives traces that begin inside it the trace ID of a packet, which it yields.

    Args:
        content_id: of the packet; address translation does not change it.
        unix_ns: when the NF receives it; None: now.
        window_ns: --correlate-window of the monitors.
    """
    window = (time.time_ns() if unix_ns is None else unix_ns) // window_ns
    token = _trace.set(correlated_trace_id(content_id, window))
    try:
        yield correlated_trace_id(content_id, window)
    finally:
        _trace.reset(token)


def correlated_trace_id(content_id: int, window: int) -> int:
    """Returns the trace ID of a packet in a window, as defined in docs/identity.md and native/core/otlp_id.h."""
    high = mix((mix(content_id) + window) & BITS_64)
    low = mix(~high & BITS_64 ^ content_id)
    return (high or 1) << 64 | low
