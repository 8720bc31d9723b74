# SPDX-License-Identifier: Apache-2.0
"""`nfprobe attach PID`: inserts probes, exports and/or records until stopped, detaches, prints a summary."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.errors import EndedError, NfprobeError, RefusedError, UsageError
from otel_nfprobe.cli.main import EXIT_DONE, print_json
from otel_nfprobe.cli.notices import notify, notify_summary
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.cli.session_options import add_session_options, check_session_options
from otel_nfprobe.cli.session_plan import choose_by_trial, describe_probes, plan
from otel_nfprobe.cli.session_resource import find_resource
from otel_nfprobe.cli.session_runner import Measurement
from otel_nfprobe.cli.session_spans import is_behind
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.export.destination import find_destination
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.report.views.table import format_summary
from otel_nfprobe.target.leftover import refuse_second
from otel_nfprobe.target.target import Target, has_ended

TRIAL_S = 1.0


class AttachCommand:
    """Puts probes into a running process, exports or records until Ctrl-C, --for, or its end, then detaches."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=parse_process, help="process to attach to, or its name")
        add_session_options(parser)
        parser.add_argument(
            "--dry-run", action="store_true", help="say what would be probed and what a call would cost; touch nothing"
        )

    def run(self, arguments: argparse.Namespace) -> int:
        with may_end(arguments.pid):
            return self._run(arguments)

    def _run(self, arguments: argparse.Namespace) -> int:
        check_session_options(arguments)
        destination = find_destination(arguments.exporter, arguments.endpoint, os.environ)
        with StopSignals() as signals:
            monitor = prepare(arguments, signals)
            resource = find_resource(arguments, monitor)
            trial_s = TRIAL_S if arguments.trial is None else arguments.trial
            if arguments.dry_run:
                return _show_dry_run(monitor, trial_s, arguments.json)
            choose_by_trial(arguments, monitor, trial_s)
            again = f"nfprobe attach {arguments.pid} --record FILE"
            measurement = Measurement(arguments, monitor, resource, destination, again)
            if arguments.flight_recorder is not None:
                signals.on_user_signal(measurement.ask_recorder)
            with Waiting(f"placing {len(monitor.attachment.choice.requests()):,} probes"):
                measurement.start()
            notify(_describe_start(monitor))
            measurement.run(measurement.progress())
            summary = measurement.finish()
        if not arguments.json:
            notify_summary(format_summary(summary, arguments.verbose), summary)
        else:
            print_json(summary)
        wrong = monitor.attachment.not_restored or monitor.switched_off
        failed = wrong or monitor.drain.recording_error or summary["spans"]["dropped"] or is_behind(summary)
        return 1 if failed else 0


@contextmanager
def may_end(pid: int) -> Iterator[None]:
    """Says of an error that the process has ended, if that is why."""
    try:
        yield
    except (NfprobeError, OSError) as error:
        ended = isinstance(error, ProcessLookupError) or has_ended(pid)
        is_there = os.path.exists(f"/proc/{pid}")  # even a zombie: then a refusal says so
        if not ended or isinstance(error, UsageError) or (is_there and isinstance(error, RefusedError)):
            raise
        raise EndedError.of(pid) from error


def prepare(arguments: argparse.Namespace, signals: StopSignals) -> Monitor:
    """Prepares everything that does not touch the target. From its end on, signals end a session properly.

    Raises:
        NfprobeError: it was stopped, or the process cannot be probed.
    """
    try:
        with Waiting(f"reading the files of process {arguments.pid}, to choose probes"):
            monitor = _plan(arguments, signals.stopping)
        signals.at_once = False
    except KeyboardInterrupt:
        sentence = f"Stopped before process {arguments.pid} was touched."
        raise NfprobeError(sentence, f"nfprobe {arguments.verb} {arguments.pid}") from None
    return monitor


def _plan(arguments: argparse.Namespace, stopping: threading.Event) -> Monitor:
    target = Target(arguments.pid)
    if target.pid == os.getpid():
        raise RefusedError("nfprobe cannot probe itself.", "pgrep -a NAME")
    check_target(target)
    refuse_second(target)
    return plan(arguments, target, choose_adapter(arguments.adapter, target, arguments.batch_function), stopping)


def _show_dry_run(monitor: Monitor, trial_s: float, as_json: bool) -> int:
    from otel_nfprobe.cli.dry_run import describe_dry_run, print_dry_run

    found = describe_dry_run(monitor, trial_s)
    print_json(found) if as_json else print_dry_run(found)
    return EXIT_DONE


def _describe_start(monitor: Monitor) -> str:
    stopped_ms = monitor.attachment.patcher.stops.longest_ns / 1e6
    return (
        f"attached to {monitor.attachment.target.pid}: {describe_probes(monitor, monitor.attachment.target.pid)}; "
        f"all threads were stopped for {stopped_ms:.2f} ms. Ctrl-C detaches."
    )


class StopSignals:
    """SIGINT, SIGTERM and SIGHUP end the session properly, as the target must be restored first.

    While `at_once`, before the target is touched, they raise KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.at_once = True
        self._before: dict[int, Any] = {}
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before = signal.getsignal(number)
            if number != signal.SIGHUP or before != signal.SIG_IGN:  # respects nohup
                self._before[number] = before
                signal.signal(number, self._stop)
        sys.unraisablehook = self._note_unraisable
        return self

    def on_user_signal(self, ask: Callable[[], None]) -> None:
        """SIGUSR2 triggers a flight recorder."""
        self._before[signal.SIGUSR2] = signal.signal(signal.SIGUSR2, lambda *_: ask())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._unraisable_hook

    def _note_unraisable(self, unraisable: Any) -> None:
        """A KeyboardInterrupt that meets a callback of the interpreter's own ends nothing there; `stopping` does."""
        if not self.stopping.is_set() or not issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._unraisable_hook(unraisable)

    def _stop(self, _number: int, _frame: object) -> None:
        self.stopping.set()
        if self.at_once:
            self.at_once = False
            raise KeyboardInterrupt
