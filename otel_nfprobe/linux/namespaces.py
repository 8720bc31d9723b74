# SPDX-License-Identifier: Apache-2.0
"""The namespaces of a target, and the IDs of its tasks in each of its PID namespaces."""

from __future__ import annotations

import os
from pathlib import Path

KINDS = ("pid", "mnt", "user", "net")


def namespace_ids(folder: Path) -> list[int]:
    """Returns a task's IDs, from the reader's PID namespace to the task's own, the last.

    Args:
        folder: of the process or thread in /proc.

    Raises:
        OSError: it has ended.
    """
    for line in (folder / "status").read_text(errors="replace").splitlines():
        if line.startswith("NSpid:"):
            return [int(word) for word in line.split()[1:]]
    return [int(folder.name)]


def foreign_namespaces(pid: int) -> list[str]:
    """Returns the kinds of namespaces that a process does not share with this one; unreadable ones are left out."""
    found = []
    for kind in KINDS:
        try:
            own, its = os.readlink(f"/proc/self/ns/{kind}"), os.readlink(f"/proc/{pid}/ns/{kind}")
        except OSError:
            continue
        if own != its:
            found.append(kind)
    return found


def root_directory(pid: int) -> str:
    """Returns the process's root directory as seen by this process: "/" without chroot; "" if it cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/root")
    except OSError:
        return ""
