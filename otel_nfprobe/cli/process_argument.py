# SPDX-License-Identifier: Apache-2.0
"""The process that a command is about: its number, or a name that only one process has."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from otel_nfprobe.base.errors import UsageError

COMM_MAX = 15  # TASK_COMM_LEN without its end (include/linux/sched.h)
SHOWN_MAX = 9  # processes that are listed
COMMAND_MAX = 60  # characters of each one's command


def parse_process(text: str) -> int:
    """Returns the ID of a process.

    Args:
        text: the ID, or a name: of the process, of its program's file, or the first word of its command. Where several
            processes have it a person at a terminal is asked for one.

    Raises:
        UsageError: no process has the name, or several have it and nobody can be asked.
    """
    if text.lstrip("-").isdecimal():
        return int(text)
    found = find_processes(text)
    if not found:
        raise UsageError(f"No process is named {text}.", "ps -eo pid,comm,args")
    if len(found) == 1:
        return found[0][0]
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return _ask(text, found)
    shown = [f"{pid} ({command[:COMMAND_MAX]})" for pid, command in found[:SHOWN_MAX]]
    more = f" and {len(found) - SHOWN_MAX} more" if len(found) > SHOWN_MAX else ""
    sentence = f"{len(found)} processes are named {text}: {', '.join(shown)}{more}. Give the ID of one."
    raise UsageError(sentence, f"ps -fp {','.join(str(pid) for pid, _ in found)}")


def find_processes(name: str) -> list[tuple[int, str]]:
    """Returns the processes of that name, by their IDs: each one's ID and command. This one is not among them."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        words = _command_of(int(entry))
        if words and name in _names_of(int(entry), words, name):
            found.append((int(entry), " ".join(words)))
    return sorted(found)


def _command_of(pid: int) -> list[str]:
    """Returns its words; empty of a kernel thread, a zombie, and one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _names_of(pid: int, words: list[str], name: str) -> set[str]:
    names = {os.path.basename(words[0])}
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
        names |= {comm} if len(name) <= COMM_MAX else set()
        names.add(os.path.basename(os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")))
    except OSError:  # gone, or another user's program
        pass
    return names - {""}


def _ask(name: str, found: list[tuple[int, str]]) -> int:
    pids = {str(pid): pid for pid, _ in found}
    for pid, command in found:
        print(f"{pid:>8}  {command[:COMMAND_MAX]}", file=sys.stderr)
    while True:
        print(f"{len(found)} processes are named {name}. Which one, by its ID? ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise UsageError(f"{len(found)} processes are named {name}, and none was chosen.", f"pgrep -a {name}")
        if answer.strip() in pids:
            return pids[answer.strip()]
