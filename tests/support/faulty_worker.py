# SPDX-License-Identifier: Apache-2.0
"""elfworker.py, with an accident when it is asked about a file that holds a mark.

python -I -S faulty_worker.py ACCIDENT MARK QUESTIONS SOCKET SYS-PATH

With the accident NAMED_BY_FILE a file says behind the mark which accident it has, at which questions. So one process
serves many tests: to load lief takes a second.
"""

from __future__ import annotations

import os
import select
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

ACCIDENT, MARK, QUESTIONS = sys.argv[1:4]
NAMED_BY_FILE = "named-by-file"
del sys.argv[1:4]
sys.path[:] = sys.argv[2].split(os.pathsep)

import resource  # noqa: E402

from otel_nfprobe.elf import elfworker  # noqa: E402


def die(_: bytes) -> NoReturn:
    os._exit(139)


def crash(_: bytes) -> NoReturn:
    import ctypes

    ctypes.string_at(8)
    raise AssertionError("not reached")


def loop(_: bytes) -> NoReturn:
    while True:
        pass


def hang(_: bytes) -> NoReturn:
    while True:
        select.poll().poll(60_000)


def eat(_: bytes) -> list[bytes]:
    kept = []
    while True:
        kept.append(bytearray(1 << 20))


def lie(_: bytes) -> list[bytes]:
    return [b"\xff" * 48] * {"h": 6, "s": 8, "r": 5}[QUESTIONS[0]]


def too_few(_: bytes) -> list[bytes]:
    return [b""]


def too_much(_: bytes) -> list[bytes]:
    return [bytes(60 << 20)] * 6


def raises(_: bytes) -> NoReturn:
    raise RuntimeError("a note has no end")


def take_over(_: bytes) -> NoReturn:
    """Says the same about all files from now on, and says it on every descriptor that there is."""

    def forged(_: bytes) -> list[bytes]:
        return [b""] * 6

    elfworker.READERS[b"h"] = forged
    answer = b"d" + struct.pack("<7Q", 6, *[0] * 6)
    for descriptor in range(64):
        with suppress(OSError):
            os.write(descriptor, answer + bytes(4))
            os.write(descriptor, answer + bytes(4))
    os._exit(3)


def stay(_: bytes) -> list[bytes]:
    """Says nothing of this file, and no more of all files from now on."""
    elfworker.READERS[b"h"] = lambda _: [b""] * 6
    return [b""] * 6


def escape(_: bytes) -> list[bytes]:
    """Tries what a file that has taken over the process would try; what works is told as sections."""
    attempts: dict[str, Callable[[], object]] = {
        "open": lambda: os.open("/etc/passwd", os.O_RDONLY),
        "list": lambda: os.listdir("/"),
        "kill": lambda: os.kill(os.getppid(), 0),
        "fork": os.fork,
        "group": os.setsid,
        "limit": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (9, 9)),
        "exec": lambda: os.execv("/bin/true", ["true"]),
        "link": lambda: os.readlink("/proc/self/exe"),
        "user": lambda: os.setuid(0),
        "pipe": os.pipe,
    }
    done = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        done.append(name)
    return [b"", bytes(16 * len(done)), "\0".join(done).encode(), b"", b"", b""]


def wrapped(question: bytes, reader: Callable[[bytes], list[bytes] | None]) -> Callable[[bytes], list[bytes] | None]:
    def read(content: bytes) -> list[bytes] | None:
        global ACCIDENT, QUESTIONS  # of this child
        at = content.rfind(MARK.encode())
        if at >= 0 and ACCIDENT == NAMED_BY_FILE:
            ACCIDENT, QUESTIONS = content[at + len(MARK) :].decode().split()
        if at >= 0 and question in QUESTIONS.encode():
            result: list[bytes] | None = globals()[ACCIDENT](content)
            return result
        return reader(content)

    return read


elfworker.READERS.update({question: wrapped(question, reader) for question, reader in elfworker.READERS.items()})
elfworker.main()
