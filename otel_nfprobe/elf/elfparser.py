# SPDX-License-Identifier: Apache-2.0
"""Has lief read ELF files in unprivileged processes (elfworker.py); their answers are as untrusted as the files.

    request: REQUEST and the descriptors of the file and of a socket for the answer      then, from the server: STATUS
    answer:  state, number of parts, bytes of each, the parts

The server is started for the first file. It forks a child for each request, which alone sees the file and the socket,
and reports how that child ended. So a file can harm only its own child. The server exits when idle for some seconds, or
with this process; it is killed when a child takes too long.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.elf.filecontent import Content

HEAD, SYMBOLS, RELOCATIONS, NAMES = b"h", b"s", b"r", b"n"
PARTS = {HEAD: 6, SYMBOLS: 8, RELOCATIONS: 5, NAMES: 1}
DONE, NO_ELF, NO_MEMORY = b"d", b"n", b"m"  # any other state: lief raised an exception
REQUEST, STATUS = struct.Struct("<sQQ"), struct.Struct("<i")
ANSWER_BYTES_MAX = 256 << 20
MEMORY_BYTES, MEMORY_PER_BYTE, MEMORY_BYTES_MAX = 256 << 20, 6, 4 << 30  # lief needs 2.5 bytes per byte of a file
CPU_SECONDS, BYTES_PER_CPU_SECOND = 20, 4 << 20  # lief takes a second for 200 MiB
NAMES_CPU_SECONDS = 4  # in addition to the above; a million names take one or two
PATIENCE_RATIO = 3  # seconds of wall time per second of processor time, for a loaded machine
START_PATIENCE_S = 60
END_PATIENCE_S = 5
SENSELESS = "its tables are inconsistent"
WORKER = Path(__file__).with_name("elfworker.py")
KEPT_VARIABLES = ("LD_LIBRARY_PATH",)  # the interpreter may need it; the others may hold passwords

Parts = list[memoryview] | None


class ParserError(Exception):
    """A file was not read; the text says why, and follows "FILE cannot be read: "."""


class _EndedIdleError(ParserError):
    """The server exited because it was idle."""


class ElfParser:
    """A server whose children read ELF files; restarted when it ends.

    Args:
        command: to start, without the arguments that elfworker.py describes.
        cpu_seconds: limit for any file; large ones may take more.
    """

    def __init__(self, command: Sequence[str] = (), cpu_seconds: float = CPU_SECONDS) -> None:
        self._command = [*(command or (sys.executable, "-I", "-S", str(WORKER)))]
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()  # another thread reads modules that are loaded later
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._owner = 0

    @property
    def pid(self) -> int | None:
        """The server's process ID; None if it is not running."""
        return None if self._process is None else self._process.pid

    def ask(self, question: bytes, content: Content) -> Parts:
        """Returns what lief reads of a file: the parts that elfworker.py describes; None if it is no file for lief.

        Args:
            question: HEAD, SYMBOLS or RELOCATIONS; or NAMES, for a content of C++ names separated by zero bytes.

        Raises:
            ParserError: the file could not be read.
            NfprobeError: the file is gone; or no process can be started.
        """
        descriptor = content.open()
        try:
            with self._lock:
                try:
                    return self._exchange(question, descriptor, content.size_bytes)
                except _EndedIdleError:  # before it received the question
                    return self._exchange(question, descriptor, content.size_bytes)
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Starts the server now, for a monitor that later drops the right to do so.

        Raises:
            NfprobeError: no process can be started.
        """
        with self._lock:
            self._connect()

    def end(self) -> None:
        """Ends the server and its child; the next question starts a new one."""
        with self._lock:
            self._end()

    def _exchange(self, question: bytes, file: int, size_bytes: int) -> Parts:
        seconds = (NAMES_CPU_SECONDS if question == NAMES else self._cpu_seconds) + size_bytes / BYTES_PER_CPU_SECOND
        memory_bytes = min(MEMORY_BYTES + MEMORY_PER_BYTE * size_bytes, MEMORY_BYTES_MAX)
        request = REQUEST.pack(question, memory_bytes, int(seconds))
        connection = self._connect()
        deadline_s = time.monotonic() + PATIENCE_RATIO * seconds
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs, suppress(ConnectionError):  # if the server has exited, reading fails below
                    connection.settimeout(None)
                    socket.send_fds(connection, [request], [file, theirs.fileno()])
                answer = _Answer(_Reader(ours, deadline_s), question)
            # Without its socket, a child with more to send ends.
            status = self._wait(connection, deadline_s, PATIENCE_RATIO * seconds)
        except BaseException:  # Ctrl-C, too: the late status must not be taken for the next child's
            self._end()
            raise
        if answer.failure:
            raise ParserError(answer.failure)
        if status:
            raise ParserError(_how_it_ended(status, seconds))
        if not answer.is_whole:
            raise ParserError(SENSELESS)
        if answer.state == NO_MEMORY:
            raise ParserError(f"reading it takes more than {memory_bytes >> 20} MiB of memory")
        if answer.state not in (DONE, NO_ELF):
            raise ParserError("its tables cannot be read")
        return answer.parts

    def _wait(self, connection: socket.socket, deadline_s: float, patience_s: float) -> int:
        """Returns the status of a child, which only the server knows."""
        try:
            return int(STATUS.unpack(_Reader(connection, deadline_s).take(STATUS.size))[0])
        except TimeoutError:
            raise ParserError(f"reading it takes longer than {patience_s:.0f} s") from None
        except OSError:
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_PATIENCE_S)
            if self._process.returncode == 0:
                raise _EndedIdleError("the process that reads ELF files exited while reading it") from None
            raise ParserError("the process that reads ELF files stopped responding") from None

    def _connect(self) -> socket.socket:
        if self._owner != os.getpid():  # a forked process has a copy of this object
            self._process = self._connection = None
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it was killed from outside, between two files
        return self._connection or self._start()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        paths = [path for path in sys.path if os.path.isabs(path)]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno()), os.pathsep.join(paths)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd="/",
                    env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ},
                    start_new_session=True,  # Ctrl-C must not reach it
                )
            except OSError as error:
                ours.close()
                raise _not_started(error.strerror or str(error)) from error
        self._connection, self._owner = ours, os.getpid()
        try:
            started = _Reader(ours, time.monotonic() + START_PATIENCE_S).take(1) == DONE
            reason = "it did not report that it is ready"
        except OSError as error:
            started, reason = False, str(error) or "it ended"
        if not started:
            self._end()
            raise _not_started(reason)
        return ours

    def _end(self) -> None:
        connection, process = self._connection, self._process
        self._connection = self._process = None
        if connection is not None:
            connection.close()
        if process is not None and self._owner == os.getpid():
            if process.returncode is None:  # its ID is its group's; its child ends with it in any case
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


class _Answer:
    """The answer of a child.

    Attributes:
        parts: if DONE.
        is_whole: the answer is complete.
        failure: why the answer is invalid, or "".
    """

    def __init__(self, reader: _Reader, question: bytes) -> None:
        self.state, self.parts, self.failure = b"", None, ""  # type: bytes, Parts, str
        self.is_whole = False
        try:
            self.state, count = bytes(reader.take(1)), _number(reader.take(8))
            if count != (PARTS[question] if self.state == DONE else 0):
                raise ParserError(SENSELESS)
            if self.state == DONE:
                self.parts = reader.take_parts(count)
            self.is_whole = True
        except ParserError as error:
            self.failure = str(error)
        except OSError:  # it exited, or takes too long
            pass


class _Reader:
    """Reads bytes from a socket until a deadline.

    Raises:
        TimeoutError: the deadline passed.
        ConnectionError: the peer closed the socket.
        ParserError: more bytes than any file has.
    """

    def __init__(self, connection: socket.socket, deadline_s: float) -> None:
        self._connection, self._deadline_s = connection, deadline_s

    def take(self, count: int) -> bytearray:
        content = bytearray()
        while len(content) < count:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            some = self._connection.recv(min(count - len(content), 1 << 20))
            if not some:
                raise ConnectionResetError("it ended")
            content += some
        return content

    def take_parts(self, count: int) -> list[memoryview]:
        sizes = struct.unpack(f"<{count}Q", self.take(8 * count))
        if sum(sizes) > ANSWER_BYTES_MAX:
            raise ParserError(f"its tables take more than {ANSWER_BYTES_MAX >> 20} MiB")
        return [memoryview(self.take(size)) for size in sizes]


def _number(content: bytearray) -> int:
    return int.from_bytes(content, "little")


def _how_it_ended(status: int, seconds: float) -> str:
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return f"reading it takes more than {seconds:.0f} s of processor time"
    if os.WIFSIGNALED(status):
        with suppress(ValueError):
            name = signal.Signals(os.WTERMSIG(status)).name
            return f"the process that reads ELF files was killed by {name} while reading it"
    return f"the process that reads ELF files ended with status {os.waitstatus_to_exitcode(status)} while reading it"


def _not_started(reason: str) -> NfprobeError:
    return NfprobeError(f"The process that reads ELF files cannot be started: {reason}.", "nfprobe doctor")


parser = ElfParser()  # shared by this process
atexit.register(lambda: parser.end())
