# SPDX-License-Identifier: Apache-2.0
"""Talks to a helper thread that says anything on the boot page: each case must end in a session or in a sentence.

    python boot_child.py FIRST LAST [SECONDS]

The target is this process itself: a thread of it changes the page, which names descriptors of every kind, while it is
read. Prints the seed before each case. Stops after SECONDS.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import resource
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.descriptors import ADD_SEALS, KEPT_SIZE, SESSION_NAME
from otel_nfprobe.probes import inject
from otel_nfprobe.shm.session import MAGIC, RING_BYTES_MIN, RING_OFFSET, THREAD_COUNT, VERSION
from otel_nfprobe.target.target import Target

STAGES = range(-1, 9)
LIKELY_STAGES = (
    lib.NFP_BOOT_WANTS_LIBRARY,
    lib.NFP_BOOT_FAILED,
    lib.NFP_BOOT_SESSION_READY,
    lib.NFP_BOOT_NONE,
)
BAIT = b"root's own\n" * 100
MEMORY_BYTES = 4 << 30
PATIENCE_S = 0.15
PAGE_BYTES = ffi.sizeof("struct nfp_boot")


def memory_file(name: str, size: int, seals: int) -> int:
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


def session_file(chance: random.Random) -> int:
    """One that is right, or nearly."""
    ring_bytes = chance.choice((RING_BYTES_MIN, RING_BYTES_MIN, RING_BYTES_MIN - 4096))
    total = RING_OFFSET + THREAD_COUNT * ring_bytes + chance.choice((0, 0, 0, 1, 4096))
    fd = memory_file(SESSION_NAME, total, 0)
    header = ffi.new("struct nfp_session_header *")
    header.magic, header.version, header.total_bytes = MAGIC, VERSION + chance.choice((0, 0, 0, 1)), total
    header.ring_bytes = header.ring_stride = ring_bytes
    header.probes = chance.choice((0, 1, 0xFFFFFFFF))
    os.pwrite(fd, bytes(ffi.buffer(header)), 0)
    fcntl.fcntl(fd, ADD_SEALS, chance.choice((KEPT_SIZE, KEPT_SIZE, KEPT_SIZE, 0x2, 0x1)))
    return fd


class Helper:
    """A target's page and descriptors, and the thread that writes the page."""

    def __init__(self, seed: int, bait: int) -> None:
        self._chance = chance = random.Random(seed)
        self.page = ctypes.create_string_buffer(PAGE_BYTES)
        pipes, pair = os.pipe(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.own = [*pipes, *(end.detach() for end in pair), os.open("/dev/null", os.O_RDWR), os.open("/", os.O_PATH)]
        self.own += [memory_file(inject.library_name(), chance.choice((0, 0, 0, 5)), 0) for _ in range(3)]
        self.own += [memory_file("other", 0, 0), session_file(chance), session_file(chance)]
        self._numbers = [*self.own, bait, -1, 1 << 30, 0x7FFFFFFF, -(1 << 31)]
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._sure = chance.random() < 0.5  # it goes on to a session that may be right

    def _put(self, field: str, content: bytes) -> None:
        start = ffi.offsetof("struct nfp_boot", field)
        ctypes.memmove(ctypes.addressof(self.page) + start, content, len(content))

    def _write(self) -> None:
        chance = self._chance
        while not self._ends.wait(chance.choice((0.0, 0.001, 0.01))):
            for field in ("library_fd", "session_fd"):
                number = self.own[-1] if self._sure and field == "session_fd" else chance.choice(self._numbers)
                self._put(field, number.to_bytes(4, "little", signed=True))
            if chance.random() < 0.2:
                self._put("message", chance.randbytes(512))
            stage = chance.choice(STAGES if chance.random() < 0.1 else LIKELY_STAGES[2 * self._sure :])
            self._put("stage", stage.to_bytes(4, "little", signed=True))

    def __enter__(self) -> Helper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for fd in self.own:
            os.close(fd)


def check_sentence(error: NfprobeError) -> None:
    assert error.sentence.endswith("."), error.sentence


def converse(target: Target, seed: int, bait: int) -> str:
    """What became of one conversation."""
    with Helper(seed, bait) as helper:
        request = SimpleNamespace(data_address=ctypes.addressof(helper.page))
        known = seed % 2  # the address of a library that was loaded before, or none: then what is loaded is checked
        try:
            session = inject._converse(target, cast(Any, request), known)
        except NfprobeError as error:
            check_sentence(error)
            return "refused"
        session.close()
        return "session"


def run_case(target: Target, seed: int, bait: int) -> str:
    before = len(os.listdir("/proc/self/fd"))
    ended = converse(target, seed, bait)
    assert len(os.listdir("/proc/self/fd")) <= before
    assert os.pread(bait, 2 * len(BAIT), 0) == BAIT
    return ended


def main(first: int, last: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    inject.STAGE_PATIENCE_S = PATIENCE_S
    bait = memory_file("bait", 0, 0)  # any file of root's that is open for writing
    os.write(bait, BAIT)
    target, ends = Target(os.getpid()), Counter[str]()
    converse(target, 0, bait)  # opens what is kept
    started = time.monotonic()
    for seed in range(first, last):
        if time.monotonic() - started > seconds:
            break
        print("case", seed, flush=True)
        try:
            ends[run_case(target, seed, bait)] += 1
        except Exception:
            print("finding", seed, traceback.format_exc().replace("\n", " | "), flush=True)
    print("end", dict(ends), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 1e9)
