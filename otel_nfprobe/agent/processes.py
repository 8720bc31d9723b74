# SPDX-License-Identifier: Apache-2.0
"""Processes: the properties of a running process that rules can match. Everything is read from /proc."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Names of container cgroups: the ID alone, or docker-ID.scope, cri-containerd-ID.scope, cri-o's crio-ID ...
_CONTAINER = re.compile(r"(?:[a-z-]+[-:])?([0-9a-f]{64})(?:\.scope)?")
_START_TIME_FIELD = 22
_USER_SLICE = "user.slice"


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        start: when it was started, in the kernel's clock ticks: with the pid it identifies the process.
        name: its comm; executable: base name of its program.
        path: of its program, as the process sees it.
        cgroup: path; unit: of the system's systemd, not of a user's manager, or ""; container: its 64-digit ID, or "".
        users: real, effective, saved and file system: a set-user-ID program has several.
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
        """Returns what stays the same until it ends or executes another program; its name and cgroup may change."""
        return self.pid, self.start, self.executable

    @property
    def shown_name(self) -> str:
        """Returns the name of its program for a log; the file's owner chooses that name."""
        return "".join(c if c.isprintable() else "?" for c in self.executable)


def find_processes() -> Iterator[Process]:
    """Returns all processes with a program; kernel threads have none."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = read_process(int(entry))
            if process is not None:
                yield process


def read_process(pid: int) -> Process | None:
    """Returns a process; None if it has ended, is a kernel thread, or may not be read."""
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
    """Returns the unit that the system's systemd manages there, or "".

    Below a unit, its own program names cgroups freely, and below user.slice the user does.
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
    """Returns the ID of the outermost container, or ""."""
    found = (_CONTAINER.fullmatch(part) for part in cgroup.split("/"))
    return next((match[1] for match in found if match), "")


def _find_users(status: str) -> frozenset[int]:
    line = next(line for line in status.splitlines() if line.startswith("Uid:"))
    return frozenset(map(int, line.split()[1:]))


def _find_cgroup(text: str) -> str:
    """Returns the path in the unified hierarchy, otherwise in systemd's, otherwise the longest one."""
    paths = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for number, controllers, path in paths:
        if number == "0" or controllers == "name=systemd":
            return path
    return max((path for _, _, path in paths), key=len, default="")
