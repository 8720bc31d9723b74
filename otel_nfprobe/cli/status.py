# SPDX-License-Identifier: Apache-2.0
"""`nfprobe status [PID]`: which processes have probes, how many packets and losses they have."""

from __future__ import annotations

import argparse
import mmap
import os
from pathlib import Path
from typing import Any

from otel_nfprobe._core import ffi
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.main import print_json
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.linux.descriptors import look_at_session_file
from otel_nfprobe.linux.namespaces import namespace_ids
from otel_nfprobe.shm.session import (
    FIXED_BYTES,
    LOST_CLASSES,
    PROBE_COUNT,
    PROBE_TABLE_OFFSET,
    THREAD_COUNT,
    THREAD_TABLE_OFFSET,
    TRIAL,
)
from otel_nfprobe.target.leftover import closed_sessions, find_monitor, session_descriptors
from otel_nfprobe.target.target import Target

EXIT_ARMED = 0
EXIT_NONE = 1
STATES = {0: "new", 1: "ready", 2: "armed", 3: "silent"}
UNKNOWN = "unknown"
COUNTS = ("probes", "threads", "batches", "received", "transmitted", "empty_polls", "lost")
# Its probes use that descriptor to check that their monitor is alive, and become inactive without it.
CLOSED = "the target has closed its descriptor of the session's memory"


class StatusCommand:
    """Shows running sessions with their counts and losses. Exit status 0 if a session's probes are armed, else 1."""

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "pid", metavar="PID", type=parse_process, nargs="?", help="the target, or its name (default: all processes)"
        )
        parser.add_argument("--json", action="store_true", help="print the result as one JSON value")

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.pid is not None:
            Target(arguments.pid)
            pids = [arguments.pid]
        else:
            pids = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
        found: list[dict[str, Any]] = []
        for pid in pids:
            try:
                states = _states(pid)
                # Forked children often have closed the memory of their parent's session.
                found += [state for state in states if state["probes"] is not None or arguments.pid is not None]
            except (NfprobeError, OSError):  # of another user, or just ended
                if arguments.pid is not None:
                    raise
        armed = any(state["state"] == "armed" and state["monitor"] for state in found)
        if arguments.json:
            print_json(found)
        else:
            print("\n".join(map(_line, found)) if found else "no process has a session of nfprobe")
        return EXIT_ARMED if armed else EXIT_NONE


def _states(pid: int) -> list[dict[str, Any]]:
    descriptors = session_descriptors(pid)
    states = [state for number in descriptors if (state := _read(pid, pid, number)) is not None]
    for held in closed_sessions(pid):
        state = _read(pid, *held) if held else None
        if state is not None:
            states.append(state | {"closed": True})
        elif not states:
            states.append({"pid": pid, "state": UNKNOWN, **dict.fromkeys(COUNTS), "closed": True})
    if states:
        monitor = find_monitor(Target(pid))
        for state in states:
            state["monitor"] = monitor
    return states


def _read(pid: int, holder: int, descriptor: int) -> dict[str, Any] | None:
    """Returns the state of one session without locking it, read where it is open: in the target, or in its monitor."""
    fd = look_at_session_file(holder, descriptor)
    if fd is None:
        return None
    try:
        fixed = mmap.mmap(fd, FIXED_BYTES, prot=mmap.PROT_READ)
    except (OSError, ValueError):  # too short for a session
        return None
    finally:
        os.close(fd)
    start = ffi.from_buffer(fixed)
    header = ffi.cast("struct nfp_session_header *", start)
    if int(header.target_pid) != namespace_ids(Path(f"/proc/{pid}"))[-1]:
        return None  # a forked child has its parent's session
    probes = ffi.cast("struct nfp_probe *", start + PROBE_TABLE_OFFSET)
    threads = ffi.cast("struct nfp_thread_shared *", start + THREAD_TABLE_OFFSET)
    used = [threads[index] for index in range(min(int(header.threads), THREAD_COUNT)) if threads[index].tid]
    return {
        "pid": pid,
        "state": _state(header),
        "probes": sum(1 for index in range(min(int(header.probes), PROBE_COUNT)) if probes[index].armed),
        "threads": len(used),
        "batches": sum(int(thread.batches) for thread in used),
        "received": sum(int(thread.received_packets) for thread in used),
        "transmitted": sum(int(thread.transmitted_packets) for thread in used),
        "empty_polls": sum(int(thread.empty_polls) for thread in used),
        "lost": sum(int(thread.lost[loss]) for thread in used for loss in range(len(LOST_CLASSES))),
        "closed": False,
    }


def _state(header: Any) -> str:
    state = STATES.get(int(header.state), UNKNOWN)
    is_trial = state == "armed" and ffi.string(header.message, 16) == TRIAL.encode()
    return TRIAL if is_trial else state


def _line(state: dict[str, Any]) -> str:
    if state["probes"] is None:
        return f"{state['pid']}: {CLOSED}, and no monitor holds it; to check its code: nfprobe detach {state['pid']}"
    if state["monitor"]:
        who = f"monitor {state['monitor']}"
    elif state["probes"]:
        who = f"its monitor was killed: nfprobe detach {state['pid']}"
    else:
        who = "no monitor"
    return (
        f"{state['pid']}: {state['state']}, {state['probes']} probes, {state['threads']} threads, "
        f"{state['batches']:,} batches, {state['received']:,} packets received, "
        f"{state['lost']:,} records lost; {who}" + (f"; {CLOSED}" if state["closed"] else "")
    )
