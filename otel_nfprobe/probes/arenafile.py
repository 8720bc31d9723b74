# SPDX-License-Identifier: Apache-2.0
"""Arena files: an arena as an ELF file in the target's own root directory, so that profilers find its code.

perf and other profilers read names and unwind rows from the files that a process has mapped; a memory file has no path
that they could open. If the target sees no suitable directory, arenas are in the session's memory file. The file exists
while the target lives, as its code stays mapped; files left behind by ended targets are removed at the next attach.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.target.library_file import DIRECTORIES, directories
from otel_nfprobe.target.target import Target

PREFIX = "libnfprobe-arena-"  # modules with such names are never probed
PUNCH_HOLE = 0x3  # FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE
FILE_MODE = 0o644  # readable by other users' profilers


@dataclass
class ArenaFile:
    """One file.

    Attributes:
        path: in the target's mount namespace.
        directory: open descriptor of its directory.
        name: in that directory.
        file: its own open descriptor.
        size_bytes: its length.
    """

    path: str
    directory: int
    name: str
    file: int
    size_bytes: int

    def write(self, start: int, content: bytes) -> None:
        """Writes bytes with pwrite: the file is not mapped here, as a target that truncates it could crash the monitor.

        Raises:
            NfprobeError: there is no room left for them.
        """
        try:
            written = os.pwrite(self.file, content, start)
            reason = "there is no room"
        except OSError as error:
            written, reason = -1, error.strerror or str(error)
        if written != len(content):
            raise NfprobeError(f"Trampolines cannot be written to {self.path}: {reason}.")

    def remove(self) -> None:
        """Removes the file, which the target has not mapped."""
        with suppress(OSError):
            os.unlink(self.name, dir_fd=self.directory)
        self._close()

    def finish(self, used_bytes: int) -> None:
        """Releases the memory after the first `used_bytes`, in whole pages; the file keeps its length.

        A target that reads its own mappings would crash if the file were shorter than its mapping.
        """
        behind_bytes = self.size_bytes - used_bytes
        if behind_bytes:
            mode, start, length = ctypes.c_int(PUNCH_HOLE), ctypes.c_long(used_bytes), ctypes.c_long(behind_bytes)
            ctypes.CDLL(None).fallocate(self.file, mode, start, length)  # if unsupported, the memory is kept
        self._close()

    def _close(self) -> None:
        os.close(self.file)
        os.close(self.directory)


def make_file(target: Target, size_bytes: int) -> ArenaFile | None:
    """Creates a file with reserved memory; None if no directory of the target is suitable."""
    name = f"{PREFIX}{target.pid}-{secrets.token_hex(4)}.so"
    for path, directory in directories(target, DIRECTORIES):  # files stay there: never in the working directory
        _remove_stale(directory)
        try:
            file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0, dir_fd=directory)
        except OSError:
            os.close(directory)
            continue
        try:
            os.fchmod(file, FILE_MODE)
            # A target that executes from a full file system would crash.
            os.posix_fallocate(file, 0, size_bytes)
            return ArenaFile(f"{path}/{name}", directory, name, file, size_bytes)
        except OSError:
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)
            os.close(directory)
            os.close(file)
    return None


def _remove_stale(directory: int) -> None:
    """Removes files of targets that have ended."""
    with suppress(OSError):
        readable = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        try:
            for name in os.listdir(readable):
                pid = name.removeprefix(PREFIX).split("-")[0]
                if name.startswith(PREFIX) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                    os.unlink(name, dir_fd=directory)
        finally:
            os.close(readable)
