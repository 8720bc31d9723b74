# SPDX-License-Identifier: Apache-2.0
"""`nfprobe detach PID`: ends a session from outside, or cleans up after a monitor that was killed."""

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
from otel_nfprobe.linux.namespaces import namespace_ids
from otel_nfprobe.probes.evidence import find_standing
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.leftover import find_monitor, open_leftover
from otel_nfprobe.target.target import Target, has_ended
from otel_nfprobe.target.turns import take_turn

PLACES_TOLD_MAX = 5
MONITOR_PATIENCE_S = 30.0  # it may still wait for a receiver


class DetachCommand:
    """Ends the session on a process and restores its code.

    A monitor that lives is asked to detach and waited for: it prints its summary where it runs. After one that was
    killed the probes are taken out from here.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("pid", type=int, help="the target")
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
        if has_ended(monitor):  # or nobody has waited for it yet
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
                f"{len(missing) + len(patcher.left)} of {armed} probes were not found as they were written; they were"
                " left alone.",
                f"nfprobe doctor {target.pid}",
            )
        _check_nothing_stands(target, _is_own(session, target))
        return armed
    finally:
        session.close()


def _check_nothing_stands(target: Target, is_own: bool) -> None:
    """The session's memory says which probes there are; the target can write there, and close what is open of it.

    Args:
        is_own: the probes were put into this process: it was not forked with them.
    """
    standing = find_standing(target, PLACES_TOLD_MAX)
    parts = []
    if standing.jumps:
        parts.append(
            f"{standing.jumps} jumps to trampolines stand in the code of process {target.pid}"
            f" ({_places(standing.jump_places)})"
        )
    if standing.slots:
        parts.append(
            f"{len(standing.slots)} slots of process {target.pid} lead to trampolines"
            f" ({_places(standing.slots[:PLACES_TOLD_MAX])})"
        )
    if not parts:
        return
    sentence = (
        f"{', and '.join(parts)}, of which no session's memory that is open there says anything; they were left alone."
    )
    if is_own:
        raise NfprobeError(sentence, f"nfprobe doctor {target.pid}")
    tell(sentence)  # it was forked with them, and they are silent


def _places(addresses: Sequence[int]) -> str:
    return ", ".join(f"{address:#x}" for address in addresses)


def _restore(session: Session, target: Target, patcher: Patcher) -> list[int]:
    """Restores a process's code. A forked child may have its parent's session, whose code stays as it is."""
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
