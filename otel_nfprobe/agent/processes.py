# SPDX-License-Identifier: Apache-2.0
"""Processes: what of a running process a rule can speak of. Everything is read from /proc. Called by agent.py."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONTAINER = re.compile(r"[0-9a-f]{64}")
_UNIT = re.compile(r"[^/]+\.(?:service|scope)")
_START_TIME_FIELD = 22


@dataclass(frozen=True)
class Process:
    """One process.

    Attributes:
        start: when it was started, in the kernel's clock ticks: with the pid it is this process and no later one.
        name: its comm; executable: base name of its program.
        cgroup: path; unit: of systemd, or ""; container: its id of 64 digits, or "".
    """

    pid: int
    start: int
    name: str
    executable: str
    cgroup: str
    unit: str
    container: str

    @property
    def identity(self) -> tuple[int, int, str]:
        """What stays the same until it ends or runs another program; its name and cgroup may change."""
        return self.pid, self.start, self.executable


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
    except OSError:
        return None
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    units, containers = _UNIT.findall(cgroup), _CONTAINER.findall(cgroup)
    return Process(
        pid,
        int(fields[_START_TIME_FIELD - 3]),
        name,
        os.path.basename(executable),
        cgroup,
        units[-1] if units else "",
        containers[-1] if containers else "",
    )


def _find_cgroup(text: str) -> str:
    """Of the unified hierarchy, else of systemd's, else the longest one."""
    paths = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    for number, controllers, path in paths:
        if number == "0" or controllers == "name=systemd":
            return path
    return max((path for _, _, path in paths), key=len, default="")
