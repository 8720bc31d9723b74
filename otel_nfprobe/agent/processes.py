# SPDX-License-Identifier: Apache-2.0
"""Processes: what of a running process a rule can speak of. Everything is read from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# As container runtimes name cgroups: the id alone, or docker-ID.scope, cri-containerd-ID.scope, cri-o's crio-ID ...
_CONTAINER = re.compile(r"(?:[a-z-]+[-:])?([0-9a-f]{64})(?:\.scope)?")
_START_TIME_FIELD = 22
_USER_SLICE = "user.slice"


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        start: when it was started, in the kernel's clock ticks: with the pid it is this process and no later one.
        name: its comm; executable: base name of its program.
        path: of its program, as the process sees it.
        cgroup: path; unit: of systemd's own, not of a user's manager, or ""; container: its id of 64 digits, or "".
        users: real, effective, saved and for files: a set-user-id program has several.
    """

    pid: int
    start: int
    name: str
    executable: str
    cgroup: str
    unit: str
    container: str
    path: str = ""
    users: frozenset[int] = frozenset({0})

    @property
    def identity(self) -> tuple[int, int, str]:
        """What stays the same until it ends or runs another program; its name and cgroup may change."""
        return self.pid, self.start, self.executable

    @property
    def shown_name(self) -> str:
        """Of its program, for a log: the file's owner has chosen it."""
        return "".join(c if c.isprintable() else "?" for c in self.executable)


def find_processes() -> Iterator[Process]:
    """All processes with a program; kernel threads have none."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                yield process


def read_process(pid: int) -> Process | None:
    """None when it has ended, is a kernel thread, or must not be looked at."""
    folder = Path("/proc") / str(pid)
    try:
        name, _, rest = (folder / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
        executable = os.readlink(folder / "exe").removesuffix(" (deleted)")
        cgroup = _find_cgroup((folder / "cgroup").read_text(errors="replace"))
        users = _find_users((folder / "status").read_text(errors="replace"))
    except OSError:
        return None
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return Process(
        pid,
        int(fields[_START_TIME_FIELD - 3]),
        name,
        os.path.basename(executable),
        cgroup,
        find_unit(cgroup),
        find_container(cgroup),
        executable,
        users,
    )


def find_unit(cgroup: str) -> str:
    """The unit that the system's systemd keeps there, or "".

    Below a unit its own program names cgroups as it likes, and below user.slice the user does.
    """
    for part in cgroup.split("/"):
        if part == _USER_SLICE:
            return ""
        if part.endswith((".service", ".scope")):
            return part
        if part not in ("", "..") and not part.endswith(".slice"):
            return ""
    return ""


def find_container(cgroup: str) -> str:
    """The id of the outermost container, or ""."""
    found = (_CONTAINER.fullmatch(part) for part in cgroup.split("/"))
    return next((match[1] for match in found if match), "")


def _find_users(status: str) -> frozenset[int]:
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return frozenset(map(int, line.split()[1:]))


def _find_cgroup(text: str) -> str:
    """Of the unified hierarchy, else of systemd's, else the longest one."""
    paths = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for number, controllers, path in paths:
        if number == "0" or controllers == "name=systemd":
            return path
    return max((path for _, _, path in paths), key=len, default="")
