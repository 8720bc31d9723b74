# SPDX-License-Identifier: Apache-2.0
"""`nfprobe detach PID`: ends a session from outside, or cleans up after a killed monitor."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import print_json, tell
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.linux.namespaces import namespace_ids
from otel_nfprobe.probes.evidence import find_references
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.leftover import find_monitor, open_leftover
from otel_nfprobe.target.target import Target, has_ended
from otel_nfprobe.target.turns import take_turn

PLACES_TOLD_MAX = 5
# Longer than a monitor waits itself: for turns (30 s), the helper thread (20 s), a receiver.
MONITOR_PATIENCE_S = 90.0


class DetachCommand:
    """Ends the session on a process and restores its code.

    A running monitor is asked to detach, and prints its summary where it runs. After a killed monitor, this command
    removes the probes.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", metavar="PID", type=parse_process, help="the target, or its name")
        parser.add_argument("--json", action="store_true", help="print the result as one JSON object")

    def run(self, arguments: argparse.Namespace) -> int:
        target = Target(arguments.pid)
        monitor = find_monitor(target)
        if monitor is not None:
            _ask(monitor, target)
            result = {"pid": target.pid, "monitor": monitor, "restored": None}
            sentence = f"monitor {monitor} has detached from process {target.pid}"
        else:
            with take_turn(target):
                restored = _clean_up(target)
            result = {"pid": target.pid, "monitor": None, "restored": restored}
            sentence = (
                f"{restored} probes of a killed monitor were removed from process {target.pid}"
                if restored
                else f"nothing is attached to process {target.pid}"
            )
        if arguments.json:
            print_json(result)
        else:
            print(sentence, file=sys.stderr)
        return 0


def _ask(monitor: int, target: Target) -> None:
    try:
        os.kill(monitor, signal.SIGTERM)
    except ProcessLookupError:
        return
    except PermissionError:
        raise NfprobeError(
            f"The monitor {monitor} of process {target.pid} belongs to another user.",
            f"sudo nfprobe detach {target.pid}",
        ) from None
    deadline = time.monotonic() + MONITOR_PATIENCE_S
    while time.monotonic() < deadline:
        if has_ended(monitor):  # including zombies
            return
        time.sleep(0.02)
    raise NfprobeError(f"Monitor {monitor} does not end.", f"kill -9 {monitor}; nfprobe detach {target.pid}")


def _clean_up(target: Target) -> int:
    session = open_leftover(target)
    if session is None:
        _check_nothing_stands(target, is_own=True)
        return 0
    try:
        armed = len(_armed(session))
        patcher = Patcher(session, target)
        missing = _restore(session, target, patcher)
        for sentence in patcher.tell_left():
            tell(sentence)
        if missing or patcher.left:
            raise NfprobeError(
                f"{len(missing) + len(patcher.left)} of {armed} probes were not found unchanged; they were left alone.",
                f"nfprobe doctor {target.pid}",
            )
        _check_nothing_stands(target, _is_own(session, target))
        return armed
    finally:
        session.close()


def _check_nothing_stands(target: Target, is_own: bool) -> None:
    """Checks the code itself for probes: the target can change the session's memory that lists them, and close it.

    Args:
        is_own: the probes were inserted into this process, not inherited by fork.
    """
    standing = find_references(target, PLACES_TOLD_MAX)
    parts = []
    if standing.jumps:
        parts.append(
            f"{standing.jumps} jumps to trampolines remain in the code of process {target.pid}"
            f" ({_places(standing.jump_places)})"
        )
    if standing.slots:
        parts.append(
            f"{len(standing.slots)} slots of process {target.pid} point to trampolines"
            f" ({_places(standing.slots[:PLACES_TOLD_MAX])})"
        )
    if not parts:
        return
    sentence = f"{', and '.join(parts)}, which no session open there knows; they were left alone."
    if is_own:
        raise NfprobeError(sentence, f"nfprobe doctor {target.pid}")
    tell(sentence)  # inherited by fork, and inactive


def _places(addresses: Sequence[int]) -> str:
    return ", ".join(f"{address:#x}" for address in addresses)


def _restore(session: Session, target: Target, patcher: Patcher) -> list[int]:
    """Restores a process's code. A forked child may hold its parent's session, whose code stays unchanged."""
    armed = _armed(session)
    missing = patcher.disarm()
    if not _is_own(session, target):
        for index in armed:
            session.patches.mark(index, True)
    return missing


def _is_own(session: Session, target: Target) -> bool:
    return int(session.header.target_pid) == namespace_ids(Path(f"/proc/{target.pid}"))[-1]


def _armed(session: Session) -> list[int]:
    return [index for index in range(session.probe_count) if session.probe(index).armed]
