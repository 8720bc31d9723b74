# SPDX-License-Identifier: Apache-2.0
"""Output files, opened so that no other user can redirect the output.

In a directory that others can write, a link or file created beforehand could make root overwrite the link's target, or
reveal the output to the file's owner. So a path is resolved name by name: links are followed only where only this user
and root can change them, and an existing file must belong to this user (or root) and have one name. Files are created
with mode 0600.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

LINKS_MAX = 40
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


def open_output(path: str, blocking: bool = True) -> int:
    """Returns a descriptor for writing; a regular file is truncated.

    Args:
        path: a file, existing or not, a device, or a pipe.
        blocking: wait for the reader of a pipe, and for space in it.

    Raises:
        OSError: it cannot be created, or is not trusted; strerror gives the reason.
    """
    directory = os.open("/" if path.startswith("/") else ".", _DIRECTORY)
    parts = _split(path)
    links = 0
    try:
        while len(parts) > 1 or _is_link(parts, directory):
            part = parts.pop()
            if not _is_link([part], directory):
                directory = _enter(directory, part, os.O_NOFOLLOW)
                continue
            links += 1
            if links > LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            _check_link(part, directory)
            if not _is_of_kernel(directory):
                target = os.readlink(part, dir_fd=directory)
                parts += _split(target)
                if target.startswith("/"):
                    directory = _enter(directory, "/", 0)
            elif parts:
                directory = _enter(directory, part, 0)
            else:  # such as /proc/self/fd/1: a file this process already has open
                return _open(f"/proc/self/fd/{directory}/{part}", blocking)
        return _open_last(parts[0] if parts else ".", directory, blocking)
    finally:
        os.close(directory)


def _split(path: str) -> list[str]:
    """Returns the names of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _is_link(parts: list[str], directory: int) -> bool:
    with suppress(FileNotFoundError):
        return bool(parts) and stat.S_ISLNK(os.lstat(parts[-1], dir_fd=directory).st_mode)
    return False


def _enter(directory: int, part: str, flags: int) -> int:
    inner = os.open(part, _DIRECTORY | flags, dir_fd=directory)
    os.close(directory)
    return inner


def _is_trusted(status: os.stat_result) -> bool:
    return status.st_uid in (0, os.geteuid())


def _is_of_kernel(directory: int) -> bool:
    """Returns whether links in it lead to open files rather than names."""
    return os.fstat(directory).st_dev == os.stat("/proc").st_dev


def _check_link(part: str, directory: int) -> None:
    around = os.fstat(directory)
    is_ours = _is_trusted(os.lstat(part, dir_fd=directory)) and _is_trusted(around)
    if not is_ours or around.st_mode & _OTHERS_WRITE:
        raise OSError(errno.ELOOP, f"{part!r} is a symbolic link that another user may have made")


def _open_last(part: str, directory: int, blocking: bool) -> int:
    with suppress(FileExistsError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(part, flags, 0o600, dir_fd=directory)
    # Checked before opening: opening a pipe blocks, and opening some devices has side effects.
    found = os.open(part, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        _check_file(os.fstat(found))
        return _open(f"/proc/self/fd/{found}", blocking)
    finally:
        os.close(found)


def _check_file(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(status.st_mode):  # it was replaced by a link
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not _is_trusted(status) and not stat.S_ISCHR(status.st_mode):  # only root can create devices
        raise OSError(errno.EPERM, "it is there already and belongs to another user")
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        raise OSError(errno.EPERM, "it is there already and has another name, too")


def _open(path: str, blocking: bool) -> int:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY | (0 if blocking else os.O_NONBLOCK))
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.fchmod(file, 0o600)  # an existing file may have another mode
    except OSError:
        os.close(file)
        raise
    return file
