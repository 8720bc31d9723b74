# SPDX-License-Identifier: Apache-2.0
"""Launch: a program started by the monitor and held before its first instruction.

The dynamic linker has loaded the program's libraries and has run their constructors; the program's own code has not
run. While held, it looks like any process whose main thread is blocked in a harmless system call, so it is probed like
a running one. It dies with the monitor until it is released (native/core/launch.h).
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import EndedError, NfprobeError, RefusedError, UsageError
from otel_nfprobe.elf.elf import ElfImage, read_image
from otel_nfprobe.linux.memory import has_memory
from otel_nfprobe.probes.inject import syscall_address
from otel_nfprobe.target.target import Target

AT_ENTRY, AT_SECURE = 9, 23
CAPABILITIES = "security.capability"  # extended attribute of a file that grants capabilities on exec


class Launch:
    """One program, from its start to its end. Leaving the `with` kills a program that was never released.

    Args:
        command: the program and its arguments.

    Attributes:
        pid: of the program.
        path: of the program's file, or of the script.
        released: it runs, or has run.

    Raises:
        UsageError: there is no such program.
        RefusedError: it would run with other privileges than ours.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.path = find_program(command[0])
        _refuse_privileges(self.path)
        self._words = [ffi.new("char[]", os.fsencode(word)) for word in command]
        self._variables = [ffi.new("char[]", name + b"=" + value) for name, value in os.environb.items()]
        self._path = ffi.new("char[]", os.fsencode(self.path))
        self._arguments = ffi.new("char *[]", [*self._words, ffi.NULL])
        self._environment = ffi.new("char *[]", [*self._variables, ffi.NULL])
        self._launch: Any = ffi.new("struct nfp_launch *")
        self._launch.path = self._path
        self._launch.arguments = self._arguments
        self._launch.environment = self._environment
        self._status: int | None = None
        self._target: Target | None = None
        self.released = False

    @property
    def pid(self) -> int:
        """Process ID; 0 before the start."""
        return int(self._launch.pid)

    def __enter__(self) -> Launch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.pid > 0 and not self.released and not self.is_replaced and not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()
        lib.nfp_forward_end()

    # ---- start and release ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the program and holds it at its entry point.

        Raises:
            UsageError: it cannot be executed.
            RefusedError: it cannot be probed. None of its code has run.
            EndedError: it ended before it reached its entry point.
        """
        error = -lib.nfp_launch_start(self._launch)
        if error:
            self._launch.pid = self._launch.pid if self._launch.ended else 0
            raise self._ended() if error == errno.ECHILD else _not_started(self.path, error)
        while True:
            _refuse_program(self.path, self.pid)
            self._launch.entry = _read_auxiliary(self.pid)[AT_ENTRY]
            error = -lib.nfp_launch_to_entry(self._launch)
            if error != errno.EAGAIN:
                break
        self._check(error, "brought to its entry point")
        self._target = Target(self.pid)  # keeps the descriptor of its memory
        self._launch.memory_fd = self._target.memory.descriptor
        self._launch.syscall_address = syscall_address(self._target)
        self._check(-lib.nfp_launch_hold(self._launch), "held")

    def release(self) -> None:
        """Lets the program run from its first instruction.

        Raises:
            EndedError: it was killed in the meantime.
        """
        error = -lib.nfp_launch_release(self._launch)
        if not self.is_replaced:
            self._check(error, "released")
        self.released = True

    @property
    def is_replaced(self) -> bool:
        """Returns whether a thread created by a library's constructor has started another program: that is already
        running.
        """
        if self._target is None or not self._target.memory.is_gone:
            return False
        return not self.has_ended() and has_memory(self.pid)

    def _check(self, error: int, what: str) -> None:
        if not error:
            return
        if error == errno.ECHILD or self.has_ended():
            raise self._ended()
        raise NfprobeError(f"{self.path} could not be {what}: {os.strerror(error)}; it was not run.", "nfprobe doctor")

    def _ended(self) -> EndedError:
        if self._launch.ended:
            self._status = int(self._launch.status)
        return EndedError(f"{self.path} ended before its first instruction.")

    # ---- its end -------------------------------------------------------------------------------------------

    def has_ended(self) -> bool:
        """Returns whether the program has ended; False if it was never started."""
        if self._status is None and self.pid > 0:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def wait(self) -> int:
        """Waits for the program's end. Returns its exit status; -N when signal N killed it."""
        if self._status is None:
            _, self._status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(self._status)


def find_program(name: str) -> str:
    """Returns the path of a program as a shell finds it.

    Raises:
        UsageError: there is none, or this user may not execute it.
    """
    path = name if "/" in name else shutil.which(name)
    if path is None:
        raise UsageError(f"There is no program {name!r} in PATH.", "echo $PATH")
    if not os.path.exists(path):
        raise UsageError(f"There is no program {name}.", f"ls {os.path.dirname(path)}")
    if os.path.isdir(path):
        raise UsageError(f"{name} is a directory.", f"ls {name}")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{name} may not be executed by this user.", f"ls -l {name}")
    return path


def _refuse_privileges(path: str) -> None:
    """Refuses to run a program whose file grants privileges: when traced it would run without them."""
    status = os.stat(path)
    user = status.st_mode & stat.S_ISUID and status.st_uid != os.geteuid()
    group = status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP and status.st_gid != os.getegid()
    has_rights = False
    if os.geteuid():
        with suppress(OSError):
            has_rights = CAPABILITIES in os.listxattr(path)
    if user or group or has_rights:
        what = "set-user-id" if user else "set-group-id" if group else "given capabilities by its file"
        raise RefusedError(
            f"{path} is {what}: it changes its privileges, and then only root may inspect it.", "sudo -i"
        )


def _refuse_program(path: str, pid: int) -> None:
    """Checks the program at its exec: the kernel has resolved the interpreter of a script."""
    try:
        executable = os.readlink(f"/proc/{pid}/exe")
        with open(f"/proc/{pid}/exe", "rb") as file:
            image: ElfImage = read_image(file, executable)
    except OSError as error:
        raise RefusedError(f"{path} cannot be read: {error.strerror}; it was not run.", f"ls -l {path}") from error
    except RefusedError as refusal:
        sentence = f"{path} cannot be probed and was not run: {refusal.sentence}"
        raise RefusedError(sentence, refusal.next_command or f"file {path}") from refusal
    reason = ""
    if image.is_go:
        reason = "is a Go program; Go moves stacks and checks return addresses: probes would break it"
    elif not image.has_interpreter:
        reason = "is statically linked; a library cannot be loaded into it"
    elif _read_auxiliary(pid).get(AT_SECURE):
        reason = "changes its privileges on exec"
    if reason:
        raise RefusedError(f"{executable} {reason}. It was not run.", f"nfprobe functions {executable}")


def _not_started(path: str, error: int) -> NfprobeError:
    if error == errno.ENOENT:
        return UsageError(f"{path} names an interpreter that does not exist.", f"file {path}")
    if error == errno.ENOEXEC:
        return UsageError(f"{path} is neither a program nor a script that begins with #!.", f"file {path}")
    if error in (errno.EACCES, errno.E2BIG, errno.ETXTBSY, errno.ELOOP, errno.EISDIR):
        return UsageError(f"{path} cannot be executed: {os.strerror(error)}.", f"ls -l {path}")
    return NfprobeError(f"{path} cannot be started under nfprobe: {os.strerror(error)}.", "nfprobe doctor")


def _read_auxiliary(pid: int) -> dict[int, int]:
    """Returns the auxiliary vector of the program: AT_ constants and values.

    Raises:
        EndedError: the process has ended.
    """
    try:
        with open(f"/proc/{pid}/auxv", "rb") as file:
            content = file.read()
    except OSError as error:
        raise EndedError.of(pid) from error
    pairs = struct.iter_unpack("<QQ", content[: len(content) // 16 * 16])
    found = {kind: value for kind, value in pairs if kind in (AT_ENTRY, AT_SECURE)}
    if AT_ENTRY not in found:
        raise EndedError.of(pid)
    return found
