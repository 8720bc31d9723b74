# SPDX-License-Identifier: Apache-2.0
"""`nfprobe top PID`: what a network function does, second by second, while somebody looks."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.attach import TRIAL_S, StopSignals, may_end, prepare
from otel_nfprobe.cli.main import EXIT_DONE, EXIT_NOT_DONE, print_json
from otel_nfprobe.cli.notices import hold_messages
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.cli.session_options import add_session_options, check_session_options
from otel_nfprobe.cli.session_plan import choose_by_trial
from otel_nfprobe.cli.session_resource import find_resource
from otel_nfprobe.cli.session_runner import Measurement
from otel_nfprobe.monitor.live import LiveView
from otel_nfprobe.report.views.live_table import render_live

EACH_S = 1.0
Show = Callable[[dict[str, Any]], None]


class TopCommand:
    """Shows threads, functions, late packets with their causes, and what the probes cost, each second.

    Attaches, and detaches when it ends. On a terminal it is a page with keys; otherwise, or with --once, a table.
    Nothing is recorded or exported.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=parse_process, help="process to look at, or its name")
        parser.add_argument("--once", action="store_true", help="one look at one second, then detach")
        add_session_options(parser, json_to="standard output, each second,", until="it is quit")

    def run(self, arguments: argparse.Namespace) -> int:
        check_session_options(arguments)
        refuse_outputs(arguments)
        page = None
        if not (arguments.once or arguments.json) and sys.stdout.isatty() and sys.stdin.isatty():
            from otel_nfprobe.cli.top_page import run_page  # slow to load, and a table does without

            page = run_page
        with may_end(arguments.pid), StopSignals() as signals:
            monitor = prepare(arguments, signals)
            choose_by_trial(arguments, monitor, TRIAL_S if arguments.trial is None else arguments.trial)
            again = f"nfprobe top {arguments.pid}"
            session = Measurement(arguments, monitor, find_resource(arguments, monitor), None, again)
            session.start()
            if page is None:
                look(session, signals.stopping, show_once(arguments), arguments.once)
            else:
                with hold_messages():
                    page(partial(look, session, signals.stopping), signals.stopping)
            session.finish()
        return EXIT_NOT_DONE if monitor.attachment.not_restored or monitor.switched_off else EXIT_DONE


def refuse_outputs(arguments: argparse.Namespace) -> None:
    """Refuses options of what `top` does not write.

    Raises:
        UsageError: there is one.
    """
    for name in ("record", "flight_recorder", "endpoint", "exporter", "metrics_listen", "follow_forks"):
        if getattr(arguments, name, None):
            option = name.replace("_", "-")
            raise UsageError(f"nfprobe top writes nothing: --{option} is attach's.", "nfprobe attach --help")


def show_once(arguments: argparse.Namespace) -> Show:
    """Returns what prints one look."""
    if arguments.json:
        return print_json
    return lambda view: print(render_live(view), flush=True)


def look(session: Measurement, stopping: threading.Event, show: Show, once: bool = False) -> None:
    """Runs the session and shows each second of it, until it is stopped, its time is over, or the target ends."""
    view, due = LiveView(session.monitor), [time.monotonic() + EACH_S]

    def step() -> None:
        if time.monotonic() < due[0]:
            return
        due[0] = time.monotonic() + EACH_S
        show(view.take())
        if once:
            stopping.set()

    session.run(step)
