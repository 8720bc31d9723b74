# SPDX-License-Identifier: Apache-2.0
"""Asks processes without rights (elfworker.py) what lief reads of ELF files; their answers are as hostile as the files.

    request: REQUEST and the descriptors of the file and of a socket for the answer      then, from the server: STATUS
    answer:  state, number of parts, bytes of each, the parts

A server is started when the first file is to be read. It forks a child for each request, which alone sees the file and
the socket, and says how that child ended. So what one file does to a child is no other file's concern. The server ends
when nothing was asked for some seconds, or with this process; it is ended when a child takes too long.
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
DONE, NO_ELF, NO_MEMORY = b"d", b"n", b"m"  # any other state: lief has raised something
REQUEST, STATUS = struct.Struct("<sQQ"), struct.Struct("<i")
ANSWER_BYTES_MAX = 256 << 20
MEMORY_BYTES, MEMORY_PER_BYTE, MEMORY_BYTES_MAX = 256 << 20, 6, 4 << 30  # lief takes 2.5 bytes per byte of a file
CPU_SECONDS, BYTES_PER_CPU_SECOND = 20, 4 << 20  # lief takes a second for 200 MiB
NAMES_CPU_SECONDS = 4  # beside the above; a million names take one or two
PATIENCE_RATIO = 3  # seconds for one of processor time: others may need the machine, too
START_PATIENCE_S = 60
END_PATIENCE_S = 5
SENSELESS = "what was read of it makes no sense"
WORKER = Path(__file__).with_name("elfworker.py")
KEPT_VARIABLES = ("LD_LIBRARY_PATH",)  # the interpreter may need it; the others may hold passwords

Parts = list[memoryview] | None


class ParserError(Exception):
    """A file was not read; the text says why, and follows "FILE cannot be read: "."""


class _EndedIdleError(ParserError):
    """The server has ended by itself."""


class ElfParser:
    """One server whose children read ELF files, and the next one where it ends.

    Args:
        command: what is started, without the arguments that elfworker.py describes.
        cpu_seconds: that any file may take; large ones may take more.
    """

    def __init__(self, command: Sequence[str] = (), cpu_seconds: float = CPU_SECONDS) -> None:
        self._command = [*(command or (sys.executable, "-I", "-S", str(WORKER)))]
        self._cpu_seconds = cpu_seconds
        self._lock = threading.Lock()  # modules that are loaded later are looked at by another thread
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._owner = 0

    @property
    def pid(self) -> int | None:
        """The server's; None when there is none."""
        return None if self._process is None else self._process.pid

    def ask(self, question: bytes, content: Content) -> Parts:
        """What lief reads of a file: the parts that elfworker.py describes; None when it is none for lief.

        Args:
            question: HEAD, SYMBOLS or RELOCATIONS; or NAMES, for a content of C++ names with zero bytes between them.

        Raises:
            ParserError: it was not read.
            NfprobeError: the file is gone; or no process can be started.
        """
        descriptor = content.open()
        try:
            with self._lock:
                try:
                    return self._exchange(question, descriptor, content.size_bytes)
                except _EndedIdleError:  # before it saw the question
                    return self._exchange(question, descriptor, content.size_bytes)
        finally:
            os.close(descriptor)

    def start(self) -> None:
        """Starts the server now, for a monitor that gives up the right to do so later.

        Raises:
            NfprobeError: no process can be started.
        """
        with self._lock:
            self._connect()

    def end(self) -> None:
        """Ends the server and its child; the next question starts another one."""
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
                with theirs, suppress(ConnectionError):  # a server that is not there any more says nothing below
                    connection.settimeout(None)
                    socket.send_fds(connection, [request], [file, theirs.fileno()])
                answer = _Answer(_Reader(ours, deadline_s), question)
            # Without its socket a child that has more to say ends.
            status = self._wait(connection, deadline_s, PATIENCE_RATIO * seconds)
        except BaseException:  # of Ctrl-C, too: the status that comes later is not that of the next child
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
        """How a child ended, which only the server says."""
        try:
            return int(STATUS.unpack(_Reader(connection, deadline_s).take(STATUS.size))[0])
        except TimeoutError:
            raise ParserError(f"reading it takes longer than {patience_s:.0f} s") from None
        except OSError:
            assert self._process is not None
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_PATIENCE_S)
            if self._process.returncode == 0:
                raise _EndedIdleError("the process that reads ELF files ended when it read it") from None
            raise ParserError("the process that reads ELF files does not answer any more") from None

    def _connect(self) -> socket.socket:
        if self._owner != os.getpid():  # a forked process has a copy of this object
            self._process = self._connection = None
        if self._process is not None and self._process.poll() is not None:
            self._end()  # somebody else has ended it, between two files
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
                    start_new_session=True,  # Ctrl-C is not for it
                )
            except OSError as error:
                ours.close()
                raise _not_started(error.strerror or str(error)) from error
        self._connection, self._owner = ours, os.getpid()
        try:
            started = _Reader(ours, time.monotonic() + START_PATIENCE_S).take(1) == DONE
            reason = "it does not say that it is ready"
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
            if process.returncode is None:  # its number is its group's; its child ends with it in any case
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


class _Answer:
    """What a child says.

    Attributes:
        parts: of DONE.
        is_whole: whether it has said all of it.
        failure: why that makes no sense, "" when it does.
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
        except OSError:  # it has ended; or takes too long
            pass


class _Reader:
    """Takes bytes from a socket until a time.

    Raises:
        TimeoutError: they have not come by then.
        ConnectionError: nobody is there any more.
        ParserError: there are more than any file has.
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
            return f"the process that reads ELF files was ended by {name} when it read it"
    return f"the process that reads ELF files ended with status {os.waitstatus_to_exitcode(status)} when it read it"


def _not_started(reason: str) -> NfprobeError:
    return NfprobeError(f"The process that reads ELF files cannot be started: {reason}.", "nfprobe doctor")


parser = ElfParser()  # of this process
atexit.register(lambda: parser.end())
