# SPDX-License-Identifier: Apache-2.0
"""`nfprobe agent --config FILE`: keeps sessions on all processes that match rules while it runs."""

from __future__ import annotations

import argparse
import signal
import threading
from collections.abc import Sequence

from otel_nfprobe.agent.agent import Agent
from otel_nfprobe.agent.page import Page, tell_systemd
from otel_nfprobe.agent.rules import Configuration, read_configuration
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import EXIT_DONE, parse
from otel_nfprobe.cli.notices import notify, print_line
from otel_nfprobe.cli.session_options import check_session_options


class AgentCommand:
    """Measures all processes that match the rules of a file, and follows their restarts, until it is stopped.

    SIGHUP reads the file again; a file with errors changes nothing. docs/agent.md describes the file.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--config", required=True, metavar="FILE", help="the rules, YAML")
        parser.add_argument("--check", action="store_true", help="check the file, report errors, and exit")

    def run(self, arguments: argparse.Namespace) -> int:
        configuration = read_configuration(arguments.config, check_attach_words)
        if arguments.check:
            print_line(f"{arguments.config}: {len(configuration.rules)} rules.")
            return EXIT_DONE
        agent = Agent(configuration, notify)
        hangup = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: agent.stopping.set())
        signal.signal(signal.SIGHUP, lambda *_: hangup.set())
        page = Page(agent, *configuration.listen) if configuration.listen else None
        if page is not None:
            notify(f"health, readiness and metrics are served on port {page.port}.")
        tell_systemd("READY=1")
        try:
            agent.run(lambda: _reload(arguments.config, hangup))
        finally:
            tell_systemd("STOPPING=1")
            if page is not None:
                page.close()
        return EXIT_DONE


def _reload(path: str, hangup: threading.Event) -> Configuration | None:
    if not hangup.is_set():
        return None
    hangup.clear()
    try:
        return read_configuration(path, check_attach_words)
    except NfprobeError as error:
        notify(f"{error.sentence} The rules stay unchanged.", error.next_command)
        return None


def check_attach_words(words: Sequence[str]) -> None:
    """Raises UsageError if `nfprobe attach` would reject these options."""
    _, arguments = parse(["attach", "1", *words])
    check_session_options(arguments)
