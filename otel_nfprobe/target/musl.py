# SPDX-License-Identifier: Apache-2.0
"""The thread word in targets whose C library is musl (drawing in word_musl.c, in native/probe/arch).

A thread older than the probe library keeps its word in bytes that musl leaves unused for alignment. Every thread is
checked before the library is loaded; afterwards the word of each old thread is initialized.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.target.target import Target, read_task_status

MODULES_MAX = 4096
STATIC_BYTES_MAX = 1 << 20
WORD_BYTES = 8
PATIENCE_S = 10.0


@dataclass
class ThreadWords:
    """The thread words of all threads of a musl target.

    Attributes:
        floors: for each thread older than the library, by thread ID: the lowest address that it does not use.
        modules: number of modules with thread-local storage.
    """

    target: Target
    floors: dict[int, int] = field(default_factory=dict)
    modules: int = 0

    def look(self) -> None:
        """Checks every thread, before the library is loaded.

        Raises:
            RefusedError: a thread has no room for a word.
        """
        for tid, base in self._bases().items():
            try:
                self._check_thread(tid, base)
            except NfprobeError:
                if self._lives(tid):  # otherwise its memory is gone, or reused
                    raise

    def _check_thread(self, tid: int, base: int) -> None:
        table = self.target.read_word(base + 8)
        if not base - STATIC_BYTES_MAX < table < base:
            raise RefusedError(
                f"Thread {tid} of process {self.target.pid} is older than a library with thread-local storage "
                "that the program has loaded: musl leaves no room for the probe library's own in it.",
                f"nfprobe run -- {self.target.executable}",
            )
        self.modules = self.target.read_word(table)
        if self.modules > MODULES_MAX:
            raise RefusedError(
                f"Thread {tid} of process {self.target.pid} does not have the layout of a musl thread.",
                f"nfprobe doctor {self.target.pid}",
            )
        self.floors[tid] = table + 8 * (self.modules + 1) - base

    def fill(self, offset: int, first_value: int) -> None:
        """Initializes the word of each thread without one, after the library was loaded.

        Args:
            offset: of the word from the thread base.
            first_value: address of nfp_null_thread in the target.

        Raises:
            RefusedError: the word of a thread would not lie in unused bytes. No word was written.
        """
        empty = {tid: base for tid, base in self._bases().items() if self._is_empty(tid, base + offset)}
        if empty and not self.floors:
            raise RefusedError(
                f"A monitor was killed while it loaded the probe library into process {self.target.pid}; "
                "on musl that cannot be repaired in a running program.",
                f"nfprobe run -- {self.target.executable}",
            )
        common = max(self.floors.values(), default=0)  # for threads created between look() and the load
        for tid in empty:
            if offset % WORD_BYTES or offset < self.floors.get(tid, common):
                raise RefusedError(
                    f"Thread {tid} of process {self.target.pid} has no room for the probe library's storage: "
                    "the program loaded a library of its own at the same moment.",
                    f"nfprobe attach {self.target.pid}",
                )
        for base in empty.values():
            self.target.memory.write(base + offset, first_value.to_bytes(WORD_BYTES, "little"))

    def _is_empty(self, tid: int, address: int) -> bool:
        try:
            return self.target.read_word(address) == 0
        except NfprobeError:
            if self._lives(tid):
                raise
            return False

    def _lives(self, tid: int) -> bool:
        return read_task_status(self.target.pid, tid).get("State", "X")[:1] not in "ZX"

    def _bases(self) -> dict[int, int]:
        """Returns the thread base of each living thread, by thread ID. Stops one at a time, for microseconds."""
        bases = {thread.tid: self._base(thread.tid) for thread in self.target.threads()}
        return {tid: base for tid, base in bases.items() if base is not None}

    def _base(self, tid: int) -> int | None:
        """Returns the thread base of a thread; None if it has ended."""
        base = ffi.new("uint64_t *")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            result = lib.nfp_read_thread_base(tid, base)
            if result == 0:
                return int(base[0])
            if not self._lives(tid):
                return None
            if time.monotonic() > deadline:
                raise NfprobeError(
                    f"Thread {tid} of process {self.target.pid} cannot be inspected: {os.strerror(-result)}.",
                    f"nfprobe doctor {self.target.pid}",
                )
            time.sleep(0.002)  # an exiting thread can no longer be seized
