# SPDX-License-Identifier: Apache-2.0
"""`nfprobe attach PID`: probes on; export and/or record until told to stop; detach; summary."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from otel_nfprobe.adapters.base import choose_adapter
from otel_nfprobe.choice import choose
from otel_nfprobe.cli.main import print_json
from otel_nfprobe.cli.session_options import add_session_options, check_session_options
from otel_nfprobe.clock import Clock
from otel_nfprobe.drain import SpanPath
from otel_nfprobe.endpoint import find_endpoint
from otel_nfprobe.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.leftover import refuse_second
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.otlp import Exporter
from otel_nfprobe.recording import RecordingHeader, RecordingWriter
from otel_nfprobe.resource import describe_target, find_version, make_resource_attributes
from otel_nfprobe.sampling import Sampler, format_trace_state
from otel_nfprobe.span import SpanEncoder
from otel_nfprobe.target import Target
from otel_nfprobe.views.summary import format_summary

PROGRESS_S = 1.0
EXPORT_CLOSE_S = 10.0


class AttachCommand:
    """Puts probes into a running process, exports or records until Ctrl-C, --for, or its end, then detaches."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", type=int, help="process to attach to")
        add_session_options(parser)

    def run(self, arguments: argparse.Namespace) -> int:
        try:
            return self._run(arguments)
        except (NfprobeError, OSError) as error:
            ended = isinstance(error, ProcessLookupError) or not os.path.exists(f"/proc/{arguments.pid}")
            if not ended or isinstance(error, UsageError):
                raise
            raise NfprobeError(f"Process {arguments.pid} has ended.", "pgrep -a NAME") from error

    def _run(self, arguments: argparse.Namespace) -> int:
        check_session_options(arguments)
        endpoint = find_endpoint(arguments.endpoint, os.environ)
        with _Signals() as signals:
            try:
                monitor = _plan(arguments, signals.stopping)
                resource = make_resource_attributes(describe_target(arguments.pid), arguments.service)
                signals.at_once = False
            except KeyboardInterrupt:
                sentence = f"Stopped before process {arguments.pid} was touched."
                raise NfprobeError(sentence, f"nfprobe attach {arguments.pid}") from None
            session_id = uuid.uuid4().int & 0xFFFFFFFFFFFFFFFF
            clock = Clock.start()
            recording = _open_recording(arguments, monitor.target, resource, session_id, clock)
            exporter = Exporter(endpoint) if endpoint else None
            _measure(arguments, monitor, clock, recording, exporter, resource, session_id)
            summary = _finish(arguments, monitor, recording, exporter)
        if not arguments.json:
            print(format_summary(summary), file=sys.stderr)
        else:
            print_json(summary)
        failed = monitor.not_restored or monitor.drain.recording_error or summary["spans"]["dropped"]
        return 1 if failed else 0


def _say(sentence: str, next_command: str = "") -> None:
    _print(f"nfprobe: {sentence}" + (f"\nnext: {next_command}" if next_command else ""))


# A terminal that is gone, or a full disk, must not end a session out of order.
def _print(text: str, end: str = "\n") -> None:
    with suppress(OSError):
        print(text, end=end, file=sys.stderr, flush=True)


def _plan(arguments: argparse.Namespace, stopping: threading.Event) -> Monitor:
    """Everything that is done before the target is touched."""
    target = Target(arguments.pid)
    if target.pid == os.getpid():
        raise RefusedError("nfprobe cannot probe itself.", "pgrep -a NAME")
    target.check()
    refuse_second(target)
    adapter = choose_adapter(arguments.adapter, target)
    choice = choose(target, adapter, arguments.functions, arguments.exclude, arguments.strategy, arguments.no_stop)
    return Monitor(target, choice, arguments.ring_size, arguments.packets == "all", _say, stopping)


def _sampler(arguments: argparse.Namespace, clock: Clock) -> Sampler:
    """Without a choice the slowest thousandth and a fair thousandth are exported."""
    chosen = any(value is not None for value in (arguments.slower_than, arguments.slowest, arguments.sample))
    sample = arguments.sample if chosen else 0.001
    slowest = arguments.slowest if chosen else 0.001
    slower = None if arguments.slower_than is None else clock.find_ticks(arguments.slower_than)
    return Sampler(sample or 0.0, slower, slowest)


def _open_recording(
    arguments: argparse.Namespace, target: Target, resource: dict[str, Any], session_id: int, clock: Clock
) -> RecordingWriter | None:
    if arguments.record is None:
        return None
    header = RecordingHeader(
        nfprobe_version=find_version(),
        session=f"{session_id:016x}",
        pid=target.pid,
        executable=str(resource.get("process.executable.path", "")),
        host=str(resource.get("host.name", "")),
        start_unix_ns=int(clock.anchors["unix_ns"][-1]),
        ticks_per_second=clock.ticks_per_second,
        resource={name: str(value) for name, value in resource.items()},
        settings={name: str(value) for name, value in vars(arguments).items() if value not in (None, [])},
    )
    return RecordingWriter(arguments.record, header)


def _measure(
    arguments: argparse.Namespace,
    monitor: Monitor,
    clock: Clock,
    recording: RecordingWriter | None,
    exporter: Exporter | None,
    resource: dict[str, Any],
    session_id: int,
) -> None:
    try:
        monitor.attach()
        spans = None
        if exporter is not None:
            state = format_trace_state(arguments.sample) if arguments.sample and arguments.sample < 1 else ""
            encoder = SpanEncoder(resource, monitor.names_by_id(), session_id, clock, state)
            spans = SpanPath(_sampler(arguments, clock), encoder, exporter)
        monitor.start(clock, recording, spans)
    except BaseException:
        monitor.abandon()
        if recording is not None:
            recording.discard()
        if exporter is not None:
            exporter.close(0.0)
        raise
    _say(_describe_start(monitor))
    try:
        monitor.run(arguments.seconds, _progress(monitor, exporter))
    finally:
        monitor.detach()


def _describe_start(monitor: Monitor) -> str:
    choice = monitor.choice
    refused = sum(choice.refused.values())
    knows = f", adapter {choice.adapter.name}" if choice.adapter else ""
    skipped = f", {refused} refused (nfprobe functions {monitor.target.pid})" if refused else ""
    stopped_ms = monitor.patcher.stops.longest_ns / 1e6
    return (
        f"attached to {monitor.target.pid}: {len(monitor.probes)} functions probed{skipped}{knows}; "
        f"all threads stood still for {stopped_ms:.2f} ms. Ctrl-C detaches."
    )


def _progress(monitor: Monitor, exporter: Exporter | None) -> Callable[[], None]:
    """A line a second, on a terminal the same line again."""
    shown_at = time.monotonic()
    terminal = sys.stderr.isatty()

    def show() -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at < PROGRESS_S:
            return
        shown_at = time.monotonic()
        counts = monitor.session.thread_counts()
        line = (
            f"{shown_at - monitor.started_at:5.0f} s  {sum(c.batches for c in counts):>12,} batches"
            f"  {sum(c.received for c in counts):>13,} packets"
            f"  {sum(sum(c.lost) for c in counts):>9,} records lost"
        )
        if exporter is not None:
            line += f"  {exporter.read_counters().exported_spans:>10,} spans sent"
        if monitor.drain.recording_error is not None:
            line += "  NOT RECORDED any more"
        _print(line, "\r" if terminal else "\n")

    return show


def _finish(
    arguments: argparse.Namespace, monitor: Monitor, recording: RecordingWriter | None, exporter: Exporter | None
) -> dict[str, Any]:
    summary: dict[str, Any] = monitor.summary()
    summary["spans"] = _close_exporter(exporter, arguments)
    for sentence in monitor.not_restored:
        _say(f"{sentence}.", f"nfprobe detach {monitor.target.pid}")
    if recording is not None:
        summary["recording"] = {"file": recording.path, "bytes": recording.bytes_written}
        error = monitor.drain.recording_error
        try:
            recording.finish(summary)
        except NfprobeError as failed:
            error = monitor.drain.recording_error = error or failed
        if error is not None:
            summary["recording"]["error"] = error.sentence
            _say(error.sentence, error.next_command)
    monitor.close()
    return summary


def _close_exporter(exporter: Exporter | None, arguments: argparse.Namespace) -> dict[str, Any]:
    if exporter is None:
        return {"exported": 0, "dropped": 0, "spooled": 0}
    counters = exporter.close(EXPORT_CLOSE_S)
    dropped = sum(counters.dropped_spans.values())
    if dropped:
        endpoint = f" --endpoint {arguments.endpoint}" if arguments.endpoint else ""
        again = f"export {arguments.record}{endpoint}" if arguments.record else f"attach {arguments.pid} --record FILE"
        reason = counters.last_error or ", ".join(counters.dropped_spans)
        _say(f"{dropped:,} spans were dropped: {reason.rstrip('.')}.", f"nfprobe {again}")
    return {
        "exported": counters.exported_spans,
        "dropped": dropped,
        "spooled": 0,
        "dropped_reasons": dict(counters.dropped_spans),
    }


class _Signals:
    """SIGINT, SIGTERM and SIGHUP end the session in order, as the target must be restored first.

    While `at_once`, as long as nothing has been touched, they raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.at_once = True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if number != signal.SIGHUP or before != signal.SIG_IGN:  # nohup holds
                self._before[number] = before
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, _number: int, _frame: object) -> None:
        self.stopping.set()
        if self.at_once:
            self.at_once = False
            raise KeyboardInterrupt
