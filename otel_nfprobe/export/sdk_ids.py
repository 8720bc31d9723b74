# SPDX-License-Identifier: Apache-2.0
"""SDK id generator: trace ids that a packet has in every NF, so that a program's own span is in the packet's trace.

    with packet_trace(content_id, unix_ns):  # of the packet that is about to be sent, as `nfprobe ids` prints it
        with tracer.start_as_current_span("send"): ...

The trace is the one that monitors with --correlate give the packet. Elsewhere ids are random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

WINDOW_NS = 10**9  # of --correlate
_BITS_64 = (1 << 64) - 1
_trace: ContextVar[int | None] = ContextVar("nfprobe_packet_trace", default=None)


class PacketIdGenerator(RandomIdGenerator):
    """Random ids, and inside of `packet_trace` the packet's."""

    def generate_trace_id(self) -> int:
        """A trace id."""
        trace = _trace.get()
        return super().generate_trace_id() if trace is None else trace

    def is_trace_id_random(self) -> bool:
        """Its low 56 bits are as good as random: they are hashed."""
        return True


@contextmanager
def packet_trace(content_id: int, unix_ns: int | None = None, window_ns: int = WINDOW_NS) -> Iterator[int]:
    """Gives traces that begin inside of it the trace id of a packet, which is what it yields.

    Args:
        content_id: of the packet; address translation does not change it.
        unix_ns: when it is received by the NF; None: now.
        window_ns: of --correlate-window, as the monitors have it.
    """
    window = (time.time_ns() if unix_ns is None else unix_ns) // window_ns
    token = _trace.set(correlated_trace_id(content_id, window))
    try:
        yield correlated_trace_id(content_id, window)
    finally:
        _trace.reset(token)


def correlated_trace_id(content_id: int, window: int) -> int:
    """The trace id of a packet in a window, as docs/identity.md defines it and native/core/otlp_id.h makes it."""
    high = _mix((_mix(content_id) + window) & _BITS_64)
    low = _mix(~high & _BITS_64 ^ content_id)
    return (high or 1) << 64 | low


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _BITS_64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _BITS_64
    return x ^ x >> 31
