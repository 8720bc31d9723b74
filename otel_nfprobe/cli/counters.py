# SPDX-License-Identifier: Apache-2.0
"""`nfprobe counters PID [NAME,...]`: shows or changes the counters that a running session reads."""

from __future__ import annotations

import argparse
from typing import Any

from otel_nfprobe.base.errors import NfprobeError, UsageError
from otel_nfprobe.base.printable import printable
from otel_nfprobe.cli.main import print_json, tell
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.counters.choice import NONE
from otel_nfprobe.shm.control import Answer, AnswerError, ask
from otel_nfprobe.target.leftover import find_held_session, find_monitor
from otel_nfprobe.target.target import Target

USAGE = 2


class CountersCommand:
    """Shows which performance counters the session on a process reads, or changes them.

    The session of attach, run or agent continues, and no code of the process is changed. Calls that are open at that
    moment are not counted.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=parse_process, help="the target, or its name")
        about = f"as for attach --counters, or {NONE} (default: show the current ones)"
        parser.add_argument("names", metavar="NAME,...", nargs="?", help=about)
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")

    def run(self, arguments: argparse.Namespace) -> int:
        target = Target(arguments.pid)
        answer = _ask(target, {"counters": arguments.names})
        for sentence in answer["said"]:
            tell(sentence)
        if arguments.json:
            print_json(answer)
        else:
            print(printable(_line(answer)))
        return 0


def _ask(target: Target, request: dict[str, Any]) -> Answer:
    inode = find_held_session(target)
    if inode is None:
        raise NfprobeError(
            f"Nothing is attached to process {target.pid}.", f"nfprobe attach {target.pid} --counters NAME,..."
        )
    try:
        return ask(inode, request)
    except AnswerError as refused:
        sentence = str(refused.answer.get("error") or f"The session on process {target.pid} did not answer.")
        following = str(refused.answer.get("next") or "nfprobe status PID").replace("PID", str(target.pid))
        raise (UsageError if refused.answer.get("status") == USAGE else NfprobeError)(sentence, following) from None
    except (OSError, ValueError):
        monitor = find_monitor(target) or "in another PID namespace"
        sentence = f"The session on process {target.pid}, of monitor {monitor}, accepts no requests from here."
        raise NfprobeError(sentence, f"nsenter -t {monitor} -n nfprobe counters {target.pid}") from None


def _line(answer: Answer) -> str:
    probes = ", ".join(answer["counters"]) or "no counters"
    apart = f"; read at intervals: {', '.join(answer['software'])}" if answer["software"] else ""
    changes = f"; changes so far: {answer['changes']}" if answer["changes"] else ""
    return f"{answer['pid']}: probes read {probes}{apart}{changes}"
