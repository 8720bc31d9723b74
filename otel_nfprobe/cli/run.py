# SPDX-License-Identifier: Apache-2.0
"""`nfprobe run -- COMMAND...`: starts a program with probes in place before its first instruction.

Standard input, output and exit status are the program's. nfprobe's messages go to standard error, the summary last.
Signals sent to nfprobe are forwarded to the program, whose end determines nfprobe's exit status.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import signal
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from otel_nfprobe.adapters.base import Adapter
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.cli.main import tell_error
from otel_nfprobe.cli.notices import notify, notify_summary, print_line
from otel_nfprobe.cli.session_options import add_session_options, check_session_options
from otel_nfprobe.cli.session_plan import choose_by_trial, describe_probes, plan
from otel_nfprobe.cli.session_resource import find_resource
from otel_nfprobe.cli.session_runner import Measurement
from otel_nfprobe.cli.waiting import Waiting
from otel_nfprobe.export.destination import Destination, find_destination
from otel_nfprobe.probes.launch import Launch
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.report.views.table import format_summary
from otel_nfprobe.target.target import Target

ROLES_STABLE_S = 0.25  # ports are started one by one
ROLES_LOOK_S = 0.02
ROLES_SOON_S = 30.0  # after this, they are searched for less often
ROLES_LATER_LOOK_S = 0.5


class RunCommand:
    """Starts a program, holds it before its first instruction until its probes are in place, and exits as it does.

    If the adapter finds receive functions only later (DPDK: when a port is started), the program runs without probes
    until then. Standard input, output and exit status are the program's; nfprobe's messages and the final summary go to
    standard error. --for ends the measurement, not the program. Forked processes are measured with --follow-forks;
    programs that they or the program execute (exec) are not.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        add_session_options(parser, json_to="standard error", until="the program ends")
        parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="program and arguments")

    def run(self, arguments: argparse.Namespace) -> int:
        command = _command_of(arguments)
        check_session_options(arguments)
        destination = find_destination(arguments.exporter, arguments.endpoint, os.environ)
        with Launch(command) as launch:
            summary = None
            try:
                launch.start()
                summary = _Run(arguments, command, launch, destination).measure()
            except Exception as error:
                if not (launch.released or launch.is_replaced or launch.has_ended()):
                    raise _not_run(error, launch) from error
                tell_error(error)  # the program continues and determines the exit status
            code = launch.wait()
        _print_summary(arguments, launch, summary, code)
        return _end_as(code)


def _command_of(arguments: argparse.Namespace) -> list[str]:
    command: list[str] = arguments.command
    command = command[1:] if command[:1] == ["--"] else command
    if not command:
        raise UsageError("No program to run is given.", "nfprobe run --functions GLOB -- COMMAND")
    return command


class LaunchedTarget(Target):
    """A process started to be probed: unlike for attach, a shell that runs a script is accepted."""

    @property
    def command_line(self) -> list[str]:
        """Returns it without arguments, by which `check` recognizes a shell that runs a script, and refuses it."""
        return super().command_line[:1]


class _Run:
    """A launched program being measured."""

    def __init__(
        self, arguments: argparse.Namespace, command: list[str], launch: Launch, destination: Destination | None
    ) -> None:
        self.arguments = arguments
        self.launch = launch
        self.destination = destination
        self.again = f"nfprobe run --record FILE -- {shlex.join(command)}"
        self.target = LaunchedTarget(launch.pid)

    def measure(self) -> dict[str, Any] | None:
        """Measures until the program ends or the time is over.

        Returns:
            The summary object, or None if the program ended before there was anything to probe.
        """
        check_target(self.target)
        adapter = choose_adapter(self.arguments.adapter, self.target, self.arguments.batch_function)
        if adapter is not None and not _roles_of(adapter, self.target):
            if (self.arguments.functions or self.arguments.capture) and self.arguments.adapter == "auto":
                notify(f"adapter {adapter.name} finds no receive function yet: only --functions are probed.")
                adapter = None
            elif not self._wait_for_roles(adapter):
                return None
        return self._measure(adapter)

    def _wait_for_roles(self, adapter: Adapter) -> bool:
        """Lets the program run until the adapter finds its functions; False if the program ends before that."""
        notify(f"{self.target.name} runs; probes follow when adapter {adapter.name} finds its receive functions.")
        self.launch.release()
        found: list[int] = []
        since = started = time.monotonic()
        while not self.launch.has_ended():
            roles = _roles_of(adapter, self.target)
            if roles != found:
                found, since = roles, time.monotonic()
            elif found and time.monotonic() - since >= ROLES_STABLE_S:
                check_target(self.target)  # it may have changed its user or its system call filter
                return True
            time.sleep(ROLES_LOOK_S if time.monotonic() - started < ROLES_SOON_S else ROLES_LATER_LOOK_S)
        next_command = f"nfprobe functions {self.launch.path}"
        notify(f"Nothing was measured: adapter {adapter.name} found no receive function.", next_command)
        return False

    def _measure(self, adapter: Adapter | None) -> dict[str, Any]:
        with self._waiting(f"reading the files of {self.launch.path}, to choose probes"):
            monitor = plan(self.arguments, self.target, adapter, threading.Event())
        if self.launch.released:  # a held program runs nothing that a trial could measure
            choose_by_trial(self.arguments, monitor, self.arguments.trial or 0.0)
        attributes = find_resource(self.arguments, monitor)
        measurement = Measurement(self.arguments, monitor, attributes, self.destination, self.again)
        with self._waiting(f"placing {len(monitor.attachment.choice.requests()):,} probes"):
            measurement.start()
        if not self.launch.released:
            try:
                self.launch.release()
            except BaseException:
                measurement.abandon()
                raise
        notify(f"started {self.launch.pid}: {describe_probes(monitor, self.launch.path)}.")
        measurement.run(lambda: None)
        if not monitor.attachment.has_gone:
            notify(f"Measured for {monitor.seconds:.1f} s; the program continues, nfprobe exits with it.")
        return measurement.finish()

    def _waiting(self, text: str) -> AbstractContextManager[object]:
        return nullcontext() if self.launch.released else Waiting(text)  # then the terminal is the program's


def _roles_of(adapter: Adapter, target: Target) -> list[int]:
    """Returns addresses of the functions that the adapter knows in the target now; empty if it finds none yet.

    Raises:
        UsageError: the adapter itself is invalid.
    """
    try:
        return sorted(role.address for role in adapter.roles(target))
    except UsageError:
        raise
    except NfprobeError:
        return []


def _not_run(error: Exception, launch: Launch) -> Exception:
    """Converts an error about a program that never ran: a next command cannot name its process."""
    if isinstance(error, NfprobeError) and str(launch.pid) in error.next_command.split():
        error.sentence += f" {launch.path} was not run."
        error.next_command = f"nfprobe functions {launch.path}"
    return error


def _print_summary(arguments: argparse.Namespace, launch: Launch, summary: dict[str, Any] | None, code: int) -> None:
    ended = {"exit_status": code} if code >= 0 else {"signal": -code}
    if arguments.json:
        nothing = {"pid": launch.pid, "session": None, "seconds": 0, "functions": {"probed": 0, "refused": {}}}
        print_line(json.dumps({**(summary or nothing), "program": ended}, separators=(",", ":"), allow_nan=False))
    elif summary is not None:
        notify_summary(format_summary(summary, arguments.verbose), summary)


def _end_as(code: int) -> int:
    """Exits with the program's status; if a signal killed it, with the same signal."""
    if code >= 0:
        return code
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # only the program itself should leave a core file
    with suppress(OSError, ValueError):
        signal.signal(-code, signal.SIG_DFL)
    with suppress(OSError, ValueError):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return 128 - code
