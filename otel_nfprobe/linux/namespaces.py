# SPDX-License-Identifier: Apache-2.0
"""The namespaces of a target, and the IDs of its tasks in each of its PID namespaces."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

KINDS = ("pid", "mnt", "user", "net")
CLONE_NEWNET = 0x40000000
_Result = TypeVar("_Result")


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


def run_in_network(pid: int, call: Callable[[], _Result]) -> _Result:
    """Returns what a call returns in the network namespace of a process. Sockets that it opens stay there.

    Only a thread of its own enters the namespace, and ends then.

    Raises:
        OSError: the process has ended, or this user may not enter its namespace.
    """
    results: list[_Result] = []
    errors: list[OSError] = []

    def enter_and_call() -> None:
        try:
            _enter_network(pid)
            results.append(call())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=enter_and_call, name="nfprobe-netns")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _enter_network(pid: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(namespace).st_ino == os.stat("/proc/self/ns/net").st_ino:
            return
        if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    finally:
        os.close(namespace)
