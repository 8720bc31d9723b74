# SPDX-License-Identifier: Apache-2.0
"""Which threads of a target read which of its descriptors, by the system calls in which they were seen.

A thread that waits is in a system call, whose number and arguments the kernel tells (/proc/PID/task/TID/syscall): a
receive call names its descriptor, epoll_wait an epoll whose descriptors /proc/PID/fdinfo lists, poll an array in the
target's memory. Nothing is concluded from a thread that runs. What the target's memory holds is checked and bounded.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress

from otel_nfprobe.arch.architecture import of_host
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.lateregex import compile_late
from otel_nfprobe.target.target import Target

THREADS_MAX = 64  # looked at, of one target
POLLED_MAX = 1024  # descriptors of one poll
READING = ("read", "readv", "recvfrom", "recvmsg", "recvmmsg")
POLLING = ("poll", "ppoll")
EPOLLING = ("epoll_wait", "epoll_pwait", "epoll_pwait2")
_POLLED = struct.Struct("<ihh")  # struct pollfd
_EVENT_READABLE = 1  # POLLIN
_TARGET = compile_late(r"^tfd:\s*(\d+)", re.MULTILINE)


class QueueReaders:
    """Remembers which threads were seen to read each descriptor."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pid = target.pid
        self._seen: dict[int, set[int]] = {}  # by descriptor
        numbers = of_host().system_calls
        self._reading = {numbers[name] for name in READING if name in numbers}
        self._polling = {numbers[name] for name in POLLING if name in numbers}
        self._epolling = {numbers[name] for name in EPOLLING if name in numbers}

    def look(self) -> None:
        """Notes what the target's threads wait for at this moment."""
        try:
            tids = os.listdir(f"/proc/{self._pid}/task")[:THREADS_MAX]
        except OSError:
            return
        for tid in map(int, tids):
            for descriptor in self._find_descriptors(tid):
                self._seen.setdefault(descriptor, set()).add(tid)

    def keep(self, descriptors: set[int]) -> None:
        """Forgets all other descriptors, which the target has closed."""
        self._seen = {number: tids for number, tids in self._seen.items() if number in descriptors}

    def of(self, descriptors: Iterable[int]) -> set[int]:
        """Returns the threads that were seen to read any of these descriptors."""
        return set().union(*(self._seen.get(number, set()) for number in descriptors))

    def _find_descriptors(self, tid: int) -> Iterator[int]:
        with suppress(OSError, ValueError, IndexError, NfprobeError):
            with open(f"/proc/{self._pid}/task/{tid}/syscall", encoding="ascii") as file:
                words = file.read(512).split()
            number, first, second = int(words[0]), int(words[1], 16), int(words[2], 16)
            if number in self._reading:
                yield first & 0xFFFFFFFF
            elif number in self._epolling:
                yield from self._list_watched(first & 0xFFFFFFFF)
            elif number in self._polling:
                yield from self._list_polled(first, second)

    def _list_watched(self, epoll: int) -> Iterator[int]:
        with open(f"/proc/{self._pid}/fdinfo/{epoll}", encoding="ascii", errors="replace") as file:
            yield from (int(word) for word in _TARGET.findall(file.read(1 << 16)))

    def _list_polled(self, address: int, count: int) -> Iterator[int]:
        content = self._target.read(address, _POLLED.size * min(count, POLLED_MAX))
        for descriptor, wanted, _ in _POLLED.iter_unpack(content):
            if descriptor >= 0 and wanted & _EVENT_READABLE:
                yield descriptor
