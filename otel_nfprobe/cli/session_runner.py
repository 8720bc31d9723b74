# SPDX-License-Identifier: Apache-2.0
"""The part that attach and run share: one session from its start to its summary."""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from otel_nfprobe import __version__
from otel_nfprobe.base.clock import Clock, read_boot_id
from otel_nfprobe.base.environment_variables import NFPROBE_PROGRESS
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.base.gc_tuning import keep_what_is_there
from otel_nfprobe.cli.notices import notify, notify_progress
from otel_nfprobe.cli.options import LINKS, describe_time_scale, find_flow, find_time_scale
from otel_nfprobe.cli.session_options import check_counting, decide, describe_recording, open_writer
from otel_nfprobe.cli.session_resource import find_resource
from otel_nfprobe.cli.session_spans import close_exporter, describe_unwritten, open_exporter
from otel_nfprobe.cli.waiting import has_room
from otel_nfprobe.counters.choice import CounterChoice
from otel_nfprobe.export.destination import Destination
from otel_nfprobe.export.limiter import Limiter
from otel_nfprobe.metrics.metrics_settings import find_settings
from otel_nfprobe.monitor.budget import Budget
from otel_nfprobe.monitor.drain import SpanPath
from otel_nfprobe.monitor.forks import Forks
from otel_nfprobe.monitor.latecapture import ALL
from otel_nfprobe.monitor.malloc_tuning import give_back
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.summary import summarise
from otel_nfprobe.pipeline.sampling import Sampler, format_trace_state
from otel_nfprobe.recording.flightrecorder import FlightWriter
from otel_nfprobe.recording.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.shm.control import Answer, Control, Request

if TYPE_CHECKING:
    from otel_nfprobe.cli.session_metrics import SessionMetrics


# ---- counters of a running session ----------------------------------------------------------------------------------
# Handles `nfprobe counters` requests of a session: returns its counters, or changes them.


@dataclass
class _CounterChange:
    choice: CounterChoice
    sentences: list[str]


class SessionControl:
    """Answers requests to one session until it is closed."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        inode = os.fstat(monitor.attachment.session.descriptor).st_ino
        self._control = Control(inode, self._prepare, self._act)
        self.step, self.close = self._control.step, self._control.close

    def _prepare(self, request: Request) -> _CounterChange | None:
        names = request.get("counters")
        if names is None:
            return None
        if not isinstance(names, str):
            raise UsageError("Counters are requested by name.", "nfprobe counters --help")
        choice, sentences = decide(names)
        check_counting(self._monitor.attachment.target, choice)
        return _CounterChange(choice, sentences)

    def _act(self, change: _CounterChange | None) -> Answer:
        said = [] if change is None else [*change.sentences, *self._monitor.change_counters(change.choice)]
        monitor = self._monitor
        return {
            "pid": monitor.attachment.target.pid,
            "counters": [counter.name for counter in monitor.counters],
            "software": [counter.name for counter in monitor.software_counters],
            "changes": monitor.counting.change,
            "said": said,
        }


# ---- the session ----------------------------------------------------------------------------------------------------


PROGRESS_S = 1.0
SECRETS = ("command", "key")  # arguments that are not recorded: a command line may hold passwords


class Measurement:
    """One session of a planned monitor.

    Args:
        arguments: the options of the verb.
        monitor: result of `plan`.
        resource: the target's resource attributes.
        destination: of spans, or None.
        again: command that measures this target again, for a next command.
    """

    def __init__(
        self,
        arguments: argparse.Namespace,
        monitor: Monitor,
        resource: dict[str, Any],
        destination: Destination | None,
        again: str,
    ) -> None:
        self.arguments = arguments
        self.monitor = monitor
        self._again = again
        self._resource = resource
        self._destination = destination
        self._forks: Forks | None = None
        self._budget = Budget(arguments.max_share_of_core, notify) if arguments.max_share_of_core else None
        self._metrics = _open_metrics(arguments, resource, destination)
        self._session_id = uuid.uuid4().int & 0xFFFFFFFFFFFFFFFF
        self._clock = Clock.start()
        self._recording = self._open_recording()
        self._exporter = open_exporter(arguments, destination, notify) if destination else None

    def start(self) -> None:
        """Inserts the probes and enables recording. If it fails the target is unchanged.

        Raises:
            NfprobeError: nothing is probed.
        """
        try:
            self.monitor.attachment.attach()
            give_back()
            keep_what_is_there()
            spans = None
            if self._exporter is not None:
                from otel_nfprobe.export.span import SpanEncoder  # slow to load, and few sessions send

                # A drawn batch implies nothing about its packets' IDs: only `all` satisfies the trace state.
                sample = self.arguments.sample if self.arguments.packets == ALL else None
                state = format_trace_state(sample) if sample and sample < 1 else ""
                names = self.monitor.attachment.names_by_id()
                window_ns = self.monitor.attachment.identity.correlate_window_ns
                kind = SpanEncoder if self._metrics is None else self._metrics.encoder_kind
                scale, linked = find_time_scale(self.arguments), self.arguments.spans == LINKS
                encoder = kind(self._resource, names, self._session_id, self._clock, state, window_ns, scale, linked)
                if sentence := describe_time_scale(scale, self._resource["service.name"]):
                    notify(sentence)
                spans = SpanPath(self._sampler(), encoder, self._exporter, self._limiter())
            self.monitor.start(self._clock, self._recording, spans)
            if self._metrics is not None:
                self._metrics.begin(self.monitor)
            self._control = SessionControl(self.monitor)
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Undoes a start without a session."""
        self.monitor.attachment.abandon()
        if self._recording is not None:
            self._recording.discard()
        if self._exporter is not None:
            self._exporter.close(0.0)
        if self._metrics is not None:
            self._metrics.abandon()

    def run(self, progress: Callable[[], None]) -> None:
        """Drains until the time is over, the user stops it, or the target ends; then detaches."""
        if self.arguments.follow_forks:
            self._forks = Forks(self.monitor, self._measure_child, notify)
            self._forks.start()
        try:
            self.monitor.run(self.arguments.seconds, lambda: self._step(progress))
        finally:
            if self._forks is not None:
                self._forks.stop()
            self._control.close()
            self.monitor.detach()
            if self._forks is not None:
                self._forks.end()
        if self.monitor.attachment.has_gone:
            self.monitor.attachment.not_restored.clear()  # it ended while its code was being restored

    def _step(self, progress: Callable[[], None]) -> None:
        progress()
        self._control.step()
        if self._metrics is not None:
            self._metrics.step()
        if self._budget is not None:
            self._budget.step(self.monitor)

    def ask_recorder(self) -> None:
        """Triggers a flight recorder; may be called from a signal handler."""
        if isinstance(self._recording, FlightWriter):
            self._recording.ask()

    def finish(self) -> dict[str, Any]:
        """Closes everything. Returns the summary object."""
        attachment = self.monitor.attachment
        for sentence in attachment.not_restored:
            notify(f"{sentence}.", f"nfprobe detach {attachment.target.pid}")
        summary: dict[str, Any] = summarise(self.monitor)
        if version := self._resource.get("service.version"):
            summary["version"] = version
        summary["spans"] = close_exporter(self._exporter, self.arguments, self._again, notify)
        summary["spans"]["dropped_traces"] = describe_unwritten(self.monitor.drain.spans, notify)
        if self._budget is not None:
            summary["budget"] = {"thinned": self._budget.thinned, "exceeded": self._budget.exceeded}
        if self._metrics is not None:
            summary["metrics"] = self._metrics.finish(notify)
        if self._forks is not None:
            summary |= {"children": self._forks.summaries, "children_missed": self._forks.missed}
            for child in self._forks.summaries:
                sentences = [f"process {child['pid']}: {sentence}" for sentence in child["not_restored"]]
                attachment.not_restored += sentences
        if self._recording is not None:
            self._finish_recording(self._recording, summary)
        attachment.close()
        return summary

    def _finish_recording(self, recording: RecordingWriter, summary: dict[str, Any]) -> None:
        """Appends the summary to the recording; adds the recording's part to the summary before."""
        drain = self.monitor.drain
        drain.write(lambda writer: writer.complete())
        summary["recording"], sentences = describe_recording(recording)
        for sentence in sentences:
            notify(sentence)
        error = drain.recording_error
        try:
            recording.finish(summary)
        except NfprobeError as failed:
            error = drain.recording_error = error or failed
        if error is not None:
            summary["recording"]["error"] = error.sentence
            notify(error.sentence, error.next_command)

    def _measure_child(self, monitor: Monitor) -> Measurement:
        """Runs a session on a forked child, with its own recording."""
        pid = monitor.attachment.target.pid
        record = self.arguments.record and f"{self.arguments.record}.{pid}"
        # The parent's counters may have been changed before the fork.
        choice = CounterChoice(counters=(*monitor.counters, *monitor.software_counters))
        own = {"seconds": None, "record": record, "counter_choice": choice}
        own |= {"follow_forks": False, "metrics_listen": None}
        arguments = argparse.Namespace(**{**vars(self.arguments), **own})
        resource = find_resource(arguments, monitor)
        return Measurement(arguments, monitor, resource, self._destination, self._again)

    def progress(self) -> Callable[[], None]:
        """Returns a printer of a status line per second, in place on a terminal; silent if NFPROBE_PROGRESS is `no`."""
        if os.environ.get(NFPROBE_PROGRESS) == "no":
            return lambda: None
        shown_at = time.monotonic()
        terminal = sys.stderr.isatty()

        def show() -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at < PROGRESS_S:
                return
            shown_at = time.monotonic()
            now = self.monitor.snapshot()
            batches, packets = now.received()
            line = f"{now.elapsed_s:5.0f} s  {batches:>12,} batches  {packets:>13,} packets"
            line += f"  {now.lost_records:>9,} records lost"
            if self._exporter is not None:
                line += f"  {self._exporter.read_counters().exported_spans:>10,} spans sent"
            if self.monitor.drain.recording_error is not None:
                line += "  NOT RECORDED any more"
            if has_room(sys.stderr):  # never block the drain
                notify_progress(line, "\r" if terminal else "\n")

        return show

    def _sampler(self) -> Sampler:
        policy = self.monitor.policy
        slower = None if policy.slower_than_ns is None else self._clock.find_ticks(policy.slower_than_ns)
        return Sampler(policy.sample, slower, policy.slowest, find_flow(self.arguments))

    def _limiter(self) -> Limiter:
        is_consistent = self.arguments.packets == ALL
        return Limiter(self.arguments.max_traces_per_second, self._clock.ticks_per_second, is_consistent)

    def _open_recording(self) -> RecordingWriter | None:
        if self.arguments.record is None:
            return None
        resource = self._resource
        settings = {name: value for name, value in vars(self.arguments).items() if name not in SECRETS}
        header = RecordingHeader(
            nfprobe_version=__version__,
            session=f"{self._session_id:016x}",
            pid=self.monitor.attachment.target.pid,
            executable=str(resource.get("process.executable.path", "")),
            host=str(resource.get("host.name", "")),
            start_unix_ns=int(self._clock.anchors["unix_ns"][-1]),
            ticks_per_second=self._clock.ticks_per_second,
            resource={name: str(value) for name, value in resource.items()},
            settings={name: str(value) for name, value in settings.items() if str(value) not in ("None", "[]", "")},
            boot_id=read_boot_id(),
        )
        return open_writer(self.arguments, header)


def _open_metrics(
    arguments: argparse.Namespace, resource: dict[str, Any], destination: Destination | None
) -> SessionMetrics | None:
    # The SDK for metrics loads slowly; skip it if the session has no metrics.
    settings = find_settings(arguments.endpoint, os.environ) if destination else None
    if settings is None and arguments.metrics_listen is None:
        return None
    from otel_nfprobe.cli.session_metrics import SessionMetrics

    metrics = SessionMetrics(settings, arguments.metrics_listen, resource)
    if metrics.port is not None:
        notify(f"metrics are served on port {metrics.port}, /metrics.")
    return metrics
