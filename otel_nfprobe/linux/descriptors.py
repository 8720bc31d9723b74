# SPDX-License-Identifier: Apache-2.0
"""Descriptors of a target: taken once, judged by what the kernel says of them, and only then used.

Their numbers come out of the target's memory, so a number may stand for anything: a file of root's that the target may
only read, a device, a pipe. What is taken is the target's own open file with the target's own rights (pidfd_getfd), and
it must be a memory file: it is written where the library goes, and mapped where a session is, and what is mapped must
have the seals that keep its size, else the target could end the monitor by truncating it. Nothing here waits.
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
READ_WRITE = os.O_RDWR | 0o100000  # and the kernel's O_LARGEFILE: what memfd_create gives
LINK = "/memfd:{} (deleted)"
SESSION_NAME = "nfprobe-session"
NO_PIDFD_GETFD = (
    "The kernel gives nfprobe no file descriptors of other processes: it is older than Linux 5.6, "
    "or a seccomp filter on nfprobe forbids pidfd_getfd."
)
REASONS = {
    errno.EBADF: "there is no such descriptor",
    errno.EMEDIUMTYPE: "it is something else",
    errno.ENOSYS: "this kernel has no pidfd_getfd (Linux 5.6)",
}


def can_take() -> bool:
    """Whether the kernel gives this process descriptors of others."""
    return bool(lib.nfp_descriptor_take(os.getpid(), (1 << 31) - 1, lib.NFP_DESCRIPTOR_MEMORY) == -errno.EBADF)


def fill_library(pid: int, number: int, name: str, content: bytes) -> MappedFile:
    """Writes the library to the empty memory file that a target has made for it, and seals it.

    Args:
        number: of the target's descriptor.
        name: of the memory file.

    Returns:
        By what the file is known again where it is mapped.

    Raises:
        NfprobeError: the descriptor is anything else, or the target writes to the file itself.
    """
    subject = f"Descriptor {number} of process {pid} is not the memory file for the probe library"
    with _taken(pid, number, subject) as fd:
        _judge(fd, name, seals=0)
        if os.fstat(fd).st_size != 0:
            raise _UnfitError("it is not empty")
        written = 0
        while written < len(content):
            written += os.pwrite(fd, content[written:], written)
        fcntl.fcntl(fd, ADD_SEALS, KEPT_SIZE | SEAL_WRITE)  # refused where somebody has mapped it for writing
        # What stands there now stays: whoever wrote meanwhile, did so before.
        if os.fstat(fd).st_size != len(content) or os.pread(fd, len(content), 0) != content:
            raise _UnfitError("its content has been changed")
        return MappedFile.of(fd)


def open_session_file(pid: int, number: int) -> int:
    """A target's session memory file, opened anew: a lock belongs to an open file, and each side needs its own.

    The caller closes the descriptor. The file's size cannot change any more.

    Raises:
        NfprobeError: the descriptor is anything else, or the target has closed it.
    """
    with _taken(pid, number, f"The session of process {pid} cannot be opened: descriptor {number}") as fd:
        _judge_session(fd)
        # By this process's own table: it leads to the file that was judged, whatever the target does.
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def look_at_session_file(pid: int, number: int) -> int | None:
    """The same for reading only, which takes no more rights than to look into the process; None: it is no session."""
    try:
        place = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)  # opens nothing, and waits for nobody
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
    """The socket that leads to a target's helper thread; the caller closes it.

    Raises:
        NfprobeError: the descriptor is anything else.
    """
    fd = int(lib.nfp_descriptor_take(pid, number, lib.NFP_DESCRIPTOR_CHANNEL))
    if fd < 0:
        raise NfprobeError(f"Descriptor {number} of process {pid} is not its helper's socket: {_reason(-fd)}.")
    return fd


class _UnfitError(Exception):
    """Why a descriptor is not what it must be."""


@contextmanager
def _taken(pid: int, number: int, subject: str) -> Iterator[int]:
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
    """Whether it is a memory file of this name and with these seals, open in this way. Raises _UnfitError, OSError."""
    if fcntl.fcntl(fd, fcntl.F_GETFL) != flags:
        raise _UnfitError("it is not open for reading and writing")
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink or status.st_dev != _memory_files()[0]:
        raise _UnfitError("it is no memory file")
    if os.readlink(f"/proc/self/fd/{fd}") != LINK.format(name):
        raise _UnfitError("it has another name")
    if fcntl.fcntl(fd, GET_SEALS) & ~SEAL_EXEC != seals:  # that one is about execve, where vm.memfd_noexec is 1
        raise _UnfitError("it has other seals")


@lru_cache(maxsize=1)
def _memory_files() -> tuple[int, int]:
    """Device and mount of every memory file: the kernel's own tmpfs, which nobody can mount."""
    own = os.memfd_create("nfprobe", os.MFD_CLOEXEC)
    try:
        return os.fstat(own).st_dev, _mount_of(own)
    finally:
        os.close(own)


def _mount_of(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
