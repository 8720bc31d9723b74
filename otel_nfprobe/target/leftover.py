# SPDX-License-Identifier: Apache-2.0
"""Leftover: the session memory that a target still holds, whether its monitor is alive or was killed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.descriptors import look_at_session_file
from otel_nfprobe.shm.session import FLOCK, Session
from otel_nfprobe.target.target import Target, read_text

SESSION_PATH = "/memfd:nfprobe-session"  # path of mapped session memory in /proc
SESSIONS_MAX = 64  # maximum examined: a target may have any number of descriptors with this name


def session_descriptors(pid: int) -> list[int]:
    """Returns the target's file descriptor numbers whose name is that of session memory, the latest last.

    Raises:
        NfprobeError: this user may not inspect the process.
    """
    found = []
    try:
        entries = os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        raise NfprobeError(
            f"This user may not inspect process {pid}; that requires root or the process's user.",
            f"sudo nfprobe status {pid}",
        ) from None
    except OSError:
        return []
    for entry in entries:
        try:
            if os.readlink(f"/proc/{pid}/fd/{entry}").startswith(SESSION_PATH):
                found.append(int(entry))
        except OSError:
            continue
    return sorted(found)[-SESSIONS_MAX:]


def mapped_sessions(pid: int) -> set[int]:
    """Returns inodes of the session memory that a process has mapped; empty if it has ended or runs another program."""
    lines = (line.split(None, 5) for line in read_text(f"/proc/{pid}/maps").splitlines() if SESSION_PATH in line)
    return {int(fields[4]) for fields in lines if fields[-1].startswith(SESSION_PATH)}


def refuse_second(target: Target) -> None:
    """Refuses a second monitor for one target.

    Raises:
        NfprobeError: a monitor is attached; the sentence names it.
    """
    monitor = find_monitor(target)
    if monitor is not None:
        raise NfprobeError(
            f"Another nfprobe, process {monitor}, is attached to process {target.pid}.",
            f"nfprobe status {target.pid}",
        )


def sessions(target: Target) -> Iterator[Session]:
    """Yields the sessions in a target that no monitor holds, opened and locked; the caller closes them."""
    for descriptor in session_descriptors(target.pid):
        with suppress(NfprobeError):
            yield Session(target.pid, descriptor)


def open_leftover(target: Target) -> Session | None:
    """Returns the session of a killed monitor with armed probes, or the latest one, opened and locked."""
    last: Session | None = None
    for session in sessions(target):
        if last is not None:
            last.close()
        last = session
        if session.patches.claimed:
            return session
    return last


def find_monitor(target: Target) -> int | None:
    """Returns the process ID of the monitor that holds the lock of a session in the target, or None.

    The kernel does not report the owner of an open-file lock, so the holder is found by its open session file.
    """
    inode = find_held_session(target)
    return None if inode is None else _find_holder(inode, target.pid)


def find_held_session(target: Target) -> int | None:
    """Returns the inode of the target's session memory that a monitor has locked, or None.

    A target may have closed its descriptor: its mapped sessions are then searched among the open files of monitors.
    """
    seen = set()
    for descriptor in session_descriptors(target.pid):
        fd = look_at_session_file(target.pid, descriptor)
        if fd is None:
            continue
        try:
            inode = os.fstat(fd).st_ino
            if _is_locked(fd):
                return inode
        finally:
            os.close(fd)
        seen.add(inode)
    hidden = sorted(mapped_sessions(target.pid) - seen)[-SESSIONS_MAX:]
    return next((inode for inode in hidden if _find_holder(inode, target.pid) is not None), None)


def closed_sessions(pid: int) -> list[tuple[int, int] | None]:
    """The sessions that a process has mapped and of whose memory it has closed its descriptor.

    Returns:
        For each the monitor that holds it and its descriptor there, or None when no monitor does.
    """
    seen = set()
    for descriptor in session_descriptors(pid):
        with suppress(OSError):
            seen.add(os.stat(f"/proc/{pid}/fd/{descriptor}").st_ino)
    return [_held_by(inode, pid) for inode in sorted(mapped_sessions(pid) - seen)[-SESSIONS_MAX:]]


def _is_locked(fd: int) -> bool:
    """Returns whether a monitor has locked the session memory open at this descriptor."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return bool(FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _find_holder(inode: int, target: int) -> int | None:
    held = _held_by(inode, target)
    return None if held is None else held[0]


def _held_by(inode: int, target: int) -> tuple[int, int] | None:
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == target or int(entry) == os.getpid():
            continue
        with suppress(OSError):
            descriptor = _held_descriptor(int(entry), inode) if _is_monitor(int(entry)) else None
            if descriptor is not None:
                return int(entry), descriptor
    return None


def _is_monitor(pid: int) -> bool:
    # A forked child of the target has the file as well; only a monitor is a Python process that locks it.
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return b"nfprobe" in file.read()


def _held_descriptor(pid: int, inode: int) -> int | None:
    for entry in os.listdir(f"/proc/{pid}/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/{pid}/fd/{entry}").startswith(SESSION_PATH):
                continue
            fd = look_at_session_file(pid, int(entry))
            if fd is None:
                continue
            is_it = os.fstat(fd).st_ino == inode and _is_locked(fd)
            os.close(fd)
            if is_it:
                return int(entry)
    return None
