# SPDX-License-Identifier: Apache-2.0
"""Memory of one program, read and written through one descriptor of /proc/PID/mem.

The kernel binds the descriptor to the memory that the process has when it is opened: once the process has started
another program (exec), nothing more is read, and nothing is written into the other program. So it is opened first:
whatever is inspected later belongs to the same program or cannot be read. native/core uses the descriptor as well
(native/core/address_space.h).
"""

from __future__ import annotations

import errno
import os
import weakref

from otel_nfprobe.base.errors import EndedError, NfprobeError

GONE = (errno.ESRCH, errno.ENOENT)  # errors when opening the memory of an ended process
UNMAPPED_ADDRESS = 0  # reading it fails in living memory


class Memory:
    """The memory that a process has now."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._refusal: OSError | None = None
        self._descriptor = -1
        for mode in (os.O_RDWR, os.O_RDONLY):  # the second where /proc is mounted read-only
            try:
                self._descriptor = os.open(f"/proc/{pid}/mem", mode | os.O_CLOEXEC)
            except OSError as error:
                self._refusal = self._refusal or error
                continue
            weakref.finalize(self, os.close, self._descriptor)
            break

    @property
    def descriptor(self) -> int:
        """The open file.

        Raises:
            OSError: this user may not open it, or the process had already ended.
        """
        if self._descriptor < 0:
            assert self._refusal is not None
            raise OSError(self._refusal.errno, self._refusal.strerror)
        return self._descriptor

    @property
    def is_gone(self) -> bool:
        """Returns whether the program has ended, or the process has started another one."""
        return self._descriptor < 0 or _reads_nothing(self._descriptor)

    def read(self, address: int, size: int) -> bytes:
        """Reads `size` bytes at an address.

        Raises:
            EndedError: the program has ended.
            NfprobeError: nothing is mapped there, or this user may not read it.
        """
        try:
            content = os.pread(self.descriptor, size, address)
        except (OSError, OverflowError) as error:
            raise self._refused(error, address, "read") from error
        self._check(len(content), size, address, "read")
        return content

    def write(self, address: int, content: bytes) -> None:
        """Writes data. Code is changed by patch.py.

        Raises:
            EndedError: the program has ended.
            NfprobeError: nothing is mapped there, or this user may not write it.
        """
        try:
            written = os.pwrite(self.descriptor, content, address)
        except (OSError, OverflowError) as error:
            raise self._refused(error, address, "written") from error
        self._check(written, len(content), address, "written")

    def _refused(self, error: OSError | OverflowError, address: int, what: str) -> NfprobeError:
        if isinstance(error, OSError) and error.errno in GONE:
            return EndedError.of(self._pid)
        reason = error.strerror if isinstance(error, OSError) else "no such address"
        return self._error(f"at {address:#x} cannot be {what}: {reason}")

    def _check(self, done: int, wanted: int, address: int, what: str) -> None:
        if done == wanted:
            return
        if not done:  # living memory returns an error where nothing is mapped
            raise EndedError(
                f"Process {self._pid} has ended, or has started another program (exec).", f"nfprobe doctor {self._pid}"
            )
        raise self._error(f"at {address:#x}: only {done} of {wanted} bytes can be {what}")

    def _error(self, what: str) -> NfprobeError:
        return NfprobeError(f"Memory of process {self._pid} {what}.", f"nfprobe doctor {self._pid}")


def has_memory(pid: int) -> bool:
    """Returns whether a process runs any program; True if this user may not check."""
    try:
        fresh = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return error.errno not in GONE
    try:
        return not _reads_nothing(fresh)  # as for a process about to end
    finally:
        os.close(fresh)


def _reads_nothing(descriptor: int) -> bool:
    try:
        return os.pread(descriptor, 1, UNMAPPED_ADDRESS) == b""
    except OSError:
        return False
