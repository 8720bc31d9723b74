# SPDX-License-Identifier: Apache-2.0
"""A file of the probe library in the target's own root directory, for targets that see no /proc.

The target loads the library from a memory file, which takes /proc in its mount namespace. Without that the
library is written to a directory that the target can see, and removed again when it is loaded. Only directories count
in which nobody but root, this user and the target's own can put another file in its place.
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
    """A copy of the library that a target can open.

    Attributes:
        path: as the target sees it.
        directory: open descriptor of its directory.
        name: in that directory.
        mapped: by what it is known again where it is mapped.
    """

    path: str
    directory: int
    name: str
    mapped: MappedFile

    def remove(self) -> None:
        """Removes the file; what is loaded from it stays loaded."""
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self.directory)
        os.close(self.directory)


def sees_proc(target: Target) -> bool:
    """Whether /proc is mounted where the target looks for it."""
    return os.path.lexists(f"/proc/{target.pid}/root/proc/thread-self")


def has_place(target: Target) -> bool:
    """Whether the library can be brought to where the target can load it. Writes nothing."""
    if sees_proc(target):
        return True
    for _, directory in directories(target):
        os.close(directory)
        return True
    return False


def write_library(target: Target, content: bytes, name: str) -> LibraryFile:
    """Writes the library to the first directory that takes it.

    Args:
        content: the library.
        name: its file's name; something random is added to it.

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
    """The sentence that says so."""
    return (
        f"Process {target.pid} ({target.name}) sees no /proc and no directory from which a library can be loaded: "
        f"{', '.join(DIRECTORIES)} and its working directory are missing, read-only, mounted noexec, or other users"
        " can replace files there."
    )


def directories(target: Target, places: Sequence[str] = (*DIRECTORIES, WORKING_DIRECTORY)) -> Iterator[tuple[str, int]]:
    """Directories that may take a file: path as the target sees it, and an open descriptor for the caller."""
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
    """Users who may have the target run what they like anyway: root, also of its user namespace, this one, its own."""
    users = {0, os.geteuid(), *map(int, read_status(pid)["Uid"].split())}
    with open(f"/proc/{pid}/uid_map", encoding="ascii") as file:
        users.update(int(outside) for inside, outside, _ in map(str.split, file) if inside == "0")
    return frozenset(users)


def _open_directory(pid: int, path: str, owners: frozenset[int]) -> int:
    """Opens a directory below the target's root. A link in the path would lead into the monitor's own root.

    Raises:
        OSError: it is not there, or others can replace what is in it, or in one above it.
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
    """In a sticky directory only the owners of a file and of the directory can replace the file."""
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
        # The file system belongs to a user namespace that does not know this user: then as the target's user.
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
    """Makes files as the user that the target is; for the calling thread only."""
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
