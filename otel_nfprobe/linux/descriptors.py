# SPDX-License-Identifier: Apache-2.0
"""Descriptors of a target: duplicated once, validated by what the kernel reports of them, and only then used.

Their numbers come from the target's memory, so a number may refer to anything: a root-owned file that the target may
only read, a device, a pipe. The duplicate is the target's own open file with the target's own permissions
(pidfd_getfd), and it must be a memory file: it is written for the library, and mapped for a session; a mapped one must
have the seals that fix its size, otherwise the target could crash the monitor by truncating it. Nothing here blocks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.mappedfile import MappedFile

GET_SEALS, ADD_SEALS = 1034, 1033  # F_GET_SEALS, F_ADD_SEALS
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_WRITE, SEAL_EXEC = 1, 2, 4, 8, 0x20
KEPT_SIZE = SEAL_SEAL | SEAL_SHRINK | SEAL_GROW
READ_WRITE = os.O_RDWR | 0o100000  # and the kernel's O_LARGEFILE: flags of a memfd
LINK = "/memfd:{} (deleted)"
SESSION_NAME = "nfprobe-session"
NO_PIDFD_GETFD = (
    "The kernel does not let nfprobe duplicate file descriptors of other processes: it is older than Linux 5.6, "
    "or a seccomp filter on nfprobe forbids pidfd_getfd."
)
REASONS = {
    errno.EBADF: "there is no such descriptor",
    errno.EMEDIUMTYPE: "it is of another type",
    errno.ENOSYS: "this kernel has no pidfd_getfd (Linux 5.6)",
}


def can_take() -> bool:
    """Returns whether the kernel lets this process duplicate descriptors of others."""
    return bool(lib.nfp_descriptor_take(os.getpid(), (1 << 31) - 1, lib.NFP_DESCRIPTOR_MEMORY) == -errno.EBADF)


def fill_library(pid: int, number: int, name: str, content: bytes) -> MappedFile:
    """Writes the library to the empty memory file that a target has created for it, and seals it.

    Args:
        number: of the target's descriptor.
        name: of the memory file.

    Returns:
        identifies the file among mappings.

    Raises:
        NfprobeError: the descriptor is anything else, or the target writes to the file itself.
    """
    subject = f"Descriptor {number} of process {pid} is not the memory file for the probe library"
    with _duplicated(pid, number, subject) as fd:
        _judge(fd, name, seals=0)
        if os.fstat(fd).st_size != 0:
            raise _UnfitError("it is not empty")
        written = 0
        while written < len(content):
            written += os.pwrite(fd, content[written:], written)
        fcntl.fcntl(fd, ADD_SEALS, KEPT_SIZE | SEAL_WRITE)  # fails if anybody has mapped it for writing
        # The content is final now: concurrent writes came before the seal.
        if os.fstat(fd).st_size != len(content) or os.pread(fd, len(content), 0) != content:
            raise _UnfitError("its content was changed")
        return MappedFile.of(fd)


def open_session_file(pid: int, number: int) -> int:
    """Opens a target's session memory file again: a lock belongs to an open file, and each side needs its own.

    The caller closes the descriptor. The file's size can no longer change.

    Raises:
        NfprobeError: the descriptor is anything else, or the target has closed it.
    """
    with _duplicated(pid, number, f"The session of process {pid} cannot be opened: descriptor {number}") as fd:
        _judge_session(fd)
        # Through this process's own table: it refers to the validated file, whatever the target does.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def look_at_session_file(pid: int, number: int) -> int | None:
    """Opens it read-only, which only requires permission to inspect the process; None: it is not a session."""
    try:
        place = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)  # neither opens the file nor blocks
    except OSError:
        return None
    try:
        if _mount_of(place) != _memory_files()[1]:
            return None
        fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)
    try:
        _judge_session(fd, os.O_RDONLY | 0o100000)
    except (OSError, _UnfitError):
        os.close(fd)
        return None
    return fd


def take_channel(pid: int, number: int) -> int:
    """Returns the socket to a target's helper thread; the caller closes it.

    Raises:
        NfprobeError: the descriptor is anything else.
    """
    fd = int(lib.nfp_descriptor_take(pid, number, lib.NFP_DESCRIPTOR_CHANNEL))
    if fd < 0:
        raise NfprobeError(f"Descriptor {number} of process {pid} is not its helper's socket: {_reason(-fd)}.")
    return fd


class _UnfitError(Exception):
    """Why a descriptor is not the expected file."""


@contextmanager
def _duplicated(pid: int, number: int, subject: str) -> Iterator[int]:
    fd = int(lib.nfp_descriptor_take(pid, number, lib.NFP_DESCRIPTOR_MEMORY))
    if fd < 0:
        raise NfprobeError(f"{subject}: {_reason(-fd)}.", f"nfprobe doctor {pid}")
    try:
        yield fd
    except (OSError, _UnfitError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise NfprobeError(f"{subject}: {reason}.", f"nfprobe doctor {pid}") from error
    finally:
        os.close(fd)


def _reason(number: int) -> str:
    return REASONS.get(number) or os.strerror(number)


def _judge_session(fd: int, flags: int = READ_WRITE) -> None:
    _judge(fd, SESSION_NAME, KEPT_SIZE, flags)


def _judge(fd: int, name: str, seals: int, flags: int = READ_WRITE) -> None:
    """Checks for a memory file with this name, these seals and this open mode. Raises _UnfitError, OSError."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) != flags:
        raise _UnfitError("it is not open for reading and writing")
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink or status.st_dev != _memory_files()[0]:
        raise _UnfitError("it is not a memory file")
    if os.readlink(f"/proc/self/fd/{fd}") != LINK.format(name):
        raise _UnfitError("it has another name")
    if (
        fcntl.fcntl(fd, GET_SEALS) & ~SEAL_EXEC != seals
    ):  # SEAL_EXEC concerns execve and is set where vm.memfd_noexec is 1
        raise _UnfitError("it has other seals")


@lru_cache(maxsize=1)
def _memory_files() -> tuple[int, int]:
    """Returns device and mount of every memory file: the kernel's own tmpfs, which nobody can mount."""
    own = os.memfd_create("nfprobe", os.MFD_CLOEXEC)
    try:
        return os.fstat(own).st_dev, _mount_of(own)
    finally:
        os.close(own)


def _mount_of(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
