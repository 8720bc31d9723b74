# SPDX-License-Identifier: Apache-2.0
"""For benchmarks: sessions of a real monitor in this process, whose records go one of the ways that a session's go; and
the trampolines that any probe of this kind costs at least.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from otel_nfprobe._core import lib
from otel_nfprobe.adapters.base import FREE
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.export.endpoint import find_endpoint
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.resource import make_resource_attributes
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.detail import Detail
from otel_nfprobe.monitor.drain import SpanPath
from otel_nfprobe.monitor.latecapture import CapturePolicy
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.trial import Trial
from otel_nfprobe.pipeline.sampling import Sampler
from otel_nfprobe.probes.analysis import FunctionPlan
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.probes.trampoline import ProbeRequest
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.target.target import Target

STATISTICS, RECORDING, EXPORT = "statistics", "recording", "export"
TRIAL_S, TRIAL_RING_BYTES = 2.0, 16 << 20
CLOSE_S = 5.0  # for what the exporter has not sent yet


@dataclass
class BareChoice(Choice):
    """The same sites with the reference trampolines, or those of them whose functions' names begin so."""

    bare = ""

    def requests(self, plans: Sequence[FunctionPlan] | None = None) -> list[ProbeRequest]:
        return [
            replace(request, shape=lib.NFP_SHAPE_BARE, return_mask=0xFFFFFFFF)
            if request.plan.name.startswith(self.bare)
            else request
            for request in super().requests(plans)
        ]


def without_frees(choice: Choice) -> Choice:
    """The same probes but those of functions that free packets, as `nfprobe attach` has them without --packets all."""
    left = copy(choice)
    left.leave_out(FREE)
    return left


class BlindMonitor(Monitor):
    """Does not record why threads did not run."""

    def _watch_absences(self, clock: Clock) -> AbsenceWatch | None:
        return None


@dataclass(frozen=True)
class Session:
    """What a session is asked for, with the thresholds that sessions have by default.

    Attributes:
        way: STATISTICS, which every session makes; RECORDING, a file beside them; EXPORT, to a receiver.
        port: of that receiver.
        make: what measures.
    """

    ring_bytes: int
    packets: str
    counters: Sequence[Counter] = ()
    detail: Detail | None = None
    way: str = STATISTICS
    port: int = 0
    make: type[Monitor] = Monitor


def choose_by_trial(name: str, target: Target) -> Choice:
    """The probes of `nfprobe attach PID`, those of `--packets all` included.

    Args:
        name: of the adapter, or "auto".
    """
    adapter = choose_adapter(name, target)
    assert adapter is not None
    found = Trial(target, adapter, (), None, False, TRIAL_RING_BYTES, threading.Event()).run(TRIAL_S)
    return choose(target, adapter, found.globs(), [])


@contextmanager
def attached(target: Target, choice: Choice, session: Session, say: Callable[[str], None] = print) -> Iterator[Monitor]:
    """A monitor with the probes of a choice; the target is as it was afterwards."""
    policy = CapturePolicy.choose(None, None, None)
    monitor = session.make(
        Attachment(target, choice, session.ring_bytes, say), session.packets, policy=policy, detail=session.detail
    )
    monitor.counters = tuple(session.counters)
    clock = Clock.start()
    with ExitStack() as stop:
        recording = _open_recording(clock, stop) if session.way == RECORDING else None
        monitor.attachment.attach()
        stop.callback(monitor.attachment.close)
        spans = _open_spans(monitor, clock, session.port, stop) if session.way == EXPORT else None
        monitor.start(clock, recording, spans)
        stop.callback(monitor.detach)
        yield monitor


def _open_recording(clock: Clock, stop: ExitStack) -> RecordingWriter:
    folder = stop.enter_context(tempfile.TemporaryDirectory())
    recording = RecordingWriter(Path(folder, "r.nfprobe"), RecordingHeader(ticks_per_second=clock.ticks_per_second))
    stop.callback(recording.discard)
    return recording


def _open_spans(monitor: Monitor, clock: Clock, port: int, stop: ExitStack) -> SpanPath:
    endpoint = find_endpoint(f"http://127.0.0.1:{port}", {})
    assert endpoint is not None
    exporter = Exporter(endpoint)
    stop.callback(exporter.close, CLOSE_S)
    encoder = SpanEncoder(make_resource_attributes({}, "bench"), monitor.attachment.names_by_id(), 7, clock)
    sampler = Sampler(monitor.policy.sample, None, monitor.policy.slowest)
    return SpanPath(sampler, encoder, exporter)
