# SPDX-License-Identifier: Apache-2.0
"""Library file: the probe library in the target's own root directory, for targets without /proc.

The target loads the library from a memory file, which requires /proc in its mount namespace. Without /proc the library
is written to a directory visible to the target, and removed once loaded. Only directories are used in which nobody but
root, this user and the target's user can replace the file.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.mappedfile import MappedFile
from otel_nfprobe.target.target import Target, read_status

DIRECTORIES = ("/dev/shm", "/tmp", "/run", "/var/tmp")
WORKING_DIRECTORY = "."
FILE_MODE = 0o555


@dataclass(frozen=True, slots=True)
class LibraryFile:
    """A copy of the library that the target can open.

    Attributes:
        path: in the target's mount namespace.
        directory: open descriptor of its directory.
        name: in that directory.
        mapped: identifies the file among mappings.
    """

    path: str
    directory: int
    name: str
    mapped: MappedFile

    def remove(self) -> None:
        """Removes the file; mappings of it stay loaded."""
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self.directory)
        os.close(self.directory)


def sees_proc(target: Target) -> bool:
    """Returns whether /proc is mounted in the target's mount namespace."""
    return os.path.lexists(f"/proc/{target.pid}/root/proc/thread-self")


def has_place(target: Target) -> bool:
    """Returns whether the target can load the library from some directory. Writes nothing."""
    if sees_proc(target):
        return True
    for _, directory in directories(target):
        os.close(directory)
        return True
    return False


def write_library(target: Target, content: bytes, name: str) -> LibraryFile:
    """Writes the library to the first suitable directory.

    Args:
        content: the library.
        name: its file name, to which a random suffix is added.

    Raises:
        NfprobeError: there is no such directory.
    """
    stem, _, suffix = name.rpartition(".")
    name = f"{stem}-{secrets.token_hex(4)}.{suffix}"
    for path, directory in directories(target):
        mapped = _write(target, directory, name, content)
        if mapped is not None:
            return LibraryFile(f"{path}/{name}", directory, name, mapped)
        os.close(directory)
    raise NfprobeError(no_place(target), f"nfprobe doctor {target.pid}")


def no_place(target: Target) -> str:
    """Returns the sentence for a missing directory."""
    return (
        f"Process {target.pid} ({target.name}) sees no /proc and no directory from which a library can be loaded: "
        f"{', '.join(DIRECTORIES)} and its working directory are missing, read-only, mounted noexec, or other users"
        " can replace files there."
    )


def directories(target: Target, places: Sequence[str] = (*DIRECTORIES, WORKING_DIRECTORY)) -> Iterator[tuple[str, int]]:
    """Yields candidate directories: path in the target's mount namespace, and an open descriptor for the caller."""
    try:
        owners = _find_owners(target.pid)
    except (OSError, KeyError):
        return  # it has ended
    for path in places:
        try:
            directory = _open_directory(target.pid, path, owners)
        except OSError:
            continue
        flags = os.fstatvfs(directory).f_flag
        if not flags & (os.ST_RDONLY | os.ST_NOEXEC) and _may_write(directory):
            yield path, directory
        else:
            os.close(directory)


def _may_write(directory: int) -> bool:
    return os.access(f"/proc/self/fd/{directory}", os.W_OK | os.X_OK, effective_ids=True)


def _find_owners(pid: int) -> frozenset[int]:
    """Returns the users who control the target anyway: root, also of its user namespace, this user and the target's
    user.
    """
    users = {0, os.geteuid(), *map(int, read_status(pid)["Uid"].split())}
    with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
        users.update(int(outside) for inside, outside, _ in map(str.split, file) if inside == "0")
    return frozenset(users)


def _open_directory(pid: int, path: str, owners: frozenset[int]) -> int:
    """Opens a directory below the target's root. A symbolic link in the path would lead into the monitor's own root.

    Raises:
        OSError: it does not exist, or others can replace entries in it or in one of its parents.
    """
    start = f"/proc/{pid}/cwd" if path == WORKING_DIRECTORY else f"/proc/{pid}/root"
    directory = os.open(start, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _check_owner(directory, owners)
        for part in filter(None, path.strip("./").split("/")):
            above = directory
            try:
                directory = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            except OSError:
                directory = -1
                raise
            finally:
                os.close(above)
            _check_owner(directory, owners)
    except OSError:
        if directory >= 0:
            os.close(directory)
        raise
    return directory


def _check_owner(directory: int, owners: frozenset[int]) -> None:
    """Checks the owner; in a sticky directory only the owners of a file and of the directory can replace the file."""
    status = os.fstat(directory)
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in owners or others_write:
        raise PermissionError(errno.EPERM, "others can replace files there")


def _write(target: Target, directory: int, name: str, content: bytes) -> MappedFile | None:
    try:
        file = _create(directory, name)
    except OSError as error:
        if error.errno != errno.EOVERFLOW:
            return None
        # The file system belongs to a user namespace that does not map this user: retry as the target's user.
        try:
            with _file_user(target.pid):
                file = _create(directory, name)
        except OSError:
            return None
    try:
        with os.fdopen(file, "wb") as stream:
            os.fchmod(stream.fileno(), FILE_MODE)
            stream.write(content)
            stream.flush()
            return MappedFile.of(stream.fileno())
    except (OSError, ValueError):
        with suppress(OSError):
            os.unlink(name, dir_fd=directory)
        return None


def _create(directory: int, name: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o700, dir_fd=directory)


@contextmanager
def _file_user(pid: int) -> Iterator[None]:
    """Creates files as the target's user; for the calling thread only."""
    libc = ctypes.CDLL(None)
    status = read_status(pid)
    own_user, own_group = os.geteuid(), os.getegid()
    libc.setfsgid(int(status["Gid"].split()[3]))
    libc.setfsuid(int(status["Uid"].split()[3]))
    try:
        yield
    finally:
        libc.setfsuid(own_user)
        libc.setfsgid(own_group)
