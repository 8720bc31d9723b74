# SPDX-License-Identifier: Apache-2.0
"""Faults that are put into any network function from outside, and when: the log of each is written by what does it,
nothing of it comes from nfprobe. Times are ticks.

Each fault is a function of the target and of how long; it returns the intervals in which it was at work. What it cost
the target then is known in two ways: a task on the target's CPU has it as long as it says itself; of interrupts and
page faults the kernel's own trace says how long they took, inside of the interval.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

from otel_nfprobe.base.clock import sample_pair
from tests.support.culprit import Debugger
from tests.support.paced_nfs import PacedNf, prefer
from tests.support.wired_chain import is_sending

EVERY_S = 0.15  # between two faults, on average
LENGTH_S = 0.006
MAPPER_WAIT_S = 60.0
TIMERS = 12000  # that expire at once: some ms of one interrupt
PIDFD_OPEN, PROCESS_MADVISE, TIMERFD_CREATE, TIMERFD_SETTIME = 434, 440, 283, 286
MADV_PAGEOUT = 21
TFD_TIMER_ABSTIME = 1
CLONE_NEWNET = 0x40000000
PIECES = 1024  # most ranges of one process_madvise
Spans = list[tuple[int, int]]
Fault = Callable[[PacedNf, float, int], Spans]
_libc = ctypes.CDLL(None, use_errno=True)


def _times(seconds: float, seed: int) -> Iterator[None]:
    """Waits, and yields at each time that a fault is to begin."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    while True:
        time.sleep(EVERY_S * rng.uniform(0.5, 1.5))
        if time.monotonic() > end:
            return
        yield


# ---- tasks on the target's CPU -----------------------------------------------------------------------------------

HOG = """
import os, sys
from otel_nfprobe.base.clock import sample_pair
cpu, policy, gap_ns = int(sys.argv[1]), sys.argv[2], 20000
os.sched_setaffinity(0, {cpu})
open("/proc/self/comm", "w").write("the hog")
if policy == "fifo":
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
for line in sys.stdin:
    end = sample_pair().unix_ns + float(line) * 1e9
    first = last = sample_pair()
    spans = []
    while last.unix_ns < end:
        now = sample_pair()
        if now.unix_ns - last.unix_ns > gap_ns:  # it did not run meanwhile
            spans += [first.ticks, last.ticks]
            first = now
        last = now
    print(*spans, first.ticks, last.ticks, flush=True)
"""


def _take_cpu(policy: str, nf: PacedNf, seconds: float, seed: int) -> Spans:
    pipe, spans = subprocess.PIPE, []
    words = [sys.executable, "-c", HOG, str(nf.cpu), policy]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        prefer(process.pid)
        for length in (0.0, *(LENGTH_S for _ in _times(seconds, seed))):
            process.stdin.write(f"{length}\n")
            process.stdin.flush()
            found = [int(word) for word in process.stdout.readline().split()]
            spans += list(zip(found[::2], found[1::2], strict=True)) if length else []
        process.kill()
    return spans


take_turns = partial(_take_cpu, "other")
"""A task of the same priority wants the CPU: it and the target take turns."""
take_cpu = partial(_take_cpu, "fifo")
"""A task of a higher priority takes the CPU."""


# ---- interrupts ----------------------------------------------------------------------------------------------------


class _Timespecs(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("interval_s", "interval_ns", "value_s", "value_ns")]


def expire_timers(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """Thousands of timers of one CPU expire at the same time."""
    rng, at_ns, due = random.Random(seed), time.monotonic_ns() + 300_000_000, []
    while at_ns < time.monotonic_ns() + seconds * 1e9:
        due.append(at_ns)
        at_ns += round(EVERY_S * rng.uniform(0.5, 1.5) * 1e9)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    each = min(TIMERS, (hard - 256) // max(len(due), 1))
    descriptors: list[int] = []
    thread = threading.Thread(target=_arm, args=(nf.cpu, due, each, descriptors))
    thread.start()
    thread.join()
    time.sleep(max(0.0, (due[-1] - time.monotonic_ns()) / 1e9) + 0.02)
    for descriptor in descriptors:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return [_around(at, 50_000_000) for at in due]


def _arm(cpu: int, due: list[int], each: int, descriptors: list[int]) -> None:
    os.sched_setaffinity(threading.get_native_id(), {cpu})  # timers expire on the CPU that they were armed on
    for at_ns in due:
        value = _Timespecs(0, 0, at_ns // 10**9, at_ns % 10**9)
        for _ in range(each):
            descriptors.append(_libc.syscall(TIMERFD_CREATE, time.CLOCK_MONOTONIC, 0))
            assert _libc.syscall(TIMERFD_SETTIME, descriptors[-1], TFD_TIMER_ABSTIME, ctypes.byref(value), None) == 0


def _around(monotonic_ns: int, length_ns: int) -> tuple[int, int]:
    """From this time on, in ticks."""
    pair, now_ns = sample_pair(), time.monotonic_ns()
    rate = _ticks_per_ns()
    start = pair.ticks + round((monotonic_ns - now_ns) * rate)
    return start, start + round(length_ns * rate)


def _ticks_per_ns() -> float:
    if not _rate:
        first = sample_pair()
        time.sleep(0.2)
        last = sample_pair()
        _rate.append((last.ticks - first.ticks) / (last.unix_ns - first.unix_ns))
    return _rate[0]


_rate: list[float] = []

FLOOD = """
import os, socket, sys
from otel_nfprobe.base.clock import sample_pair
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.bind(("127.0.0.1", 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.connect(receiver.getsockname())
print("ready", flush=True)
for line in sys.stdin:
    start = sample_pair()
    while sample_pair().unix_ns - start.unix_ns < float(line) * 1e9:
        for _ in range(16):
            sender.send(b"")
    print(start.ticks, sample_pair().ticks, flush=True)
"""
STEER = 'ip link set lo up && echo {mask:x} > /sys/class/net/lo/queues/rx-0/rps_cpus && exec "$@"'


def receive_on_cpu(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """Packets of a loopback interface, which has its softirq on the target's CPU."""
    steer = f"mount -t sysfs none /sys && {STEER.format(mask=1 << nf.cpu)}"
    words = ["unshare", "--net", "--mount", "sh", "-c", steer, "sh", sys.executable, "-c", FLOOD]
    pipe, spans = subprocess.PIPE, []
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in _times(seconds, seed):
            process.stdin.write(f"{LENGTH_S}\n")
            process.stdin.flush()
            start, end = map(int, process.stdout.readline().split())
            spans.append((start, end))
        process.kill()
    return spans


# ---- the target's memory --------------------------------------------------------------------------------------------


class _Range(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_size_t)]


@contextmanager
def _opened(pid: int) -> Iterator[int]:
    descriptor = _libc.syscall(PIDFD_OPEN, pid, 0)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _advise(process: int, ranges: list[tuple[int, int]], advice: int) -> None:
    for first in range(0, len(ranges), PIECES):
        piece = ranges[first : first + PIECES]
        found = (_Range * len(piece))(*piece)
        if _libc.syscall(PROCESS_MADVISE, process, found, len(piece), advice, 0) < 0:
            raise OSError(ctypes.get_errno(), "process_madvise")


def _mappings(pid: int, wanted: Callable[[str, str], bool]) -> list[tuple[int, int]]:
    """Addresses and sizes of mappings, chosen by rights and path."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if wanted(words[1], words[5] if len(words) > 5 else ""):
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append((start, end - start))
    return found


def evict(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """Code that no other process has in memory goes: each page is read from its file again when it is needed."""
    code = _mappings(nf.pid, lambda rights, path: "x" in rights and path.startswith("/"))
    spans = []
    with _opened(nf.pid) as process:
        for _ in _times(seconds, seed):
            start = sample_pair().ticks
            _advise(process, code, MADV_PAGEOUT)
            spans.append((start, start + round(EVERY_S / 2 * 1e9 * _ticks_per_ns())))
    return spans


MAPPER = Path(__file__).resolve().parents[1] / "targets" / "mapper.c"


@contextmanager
def preloaded_mapper(program: str, cpu: int) -> Iterator[None]:
    """Programs of this name that start meanwhile have one more thread, for `map_memory`, on other CPUs than this."""
    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/mapper.so"
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-pthread", str(MAPPER), "-o", library], check=True)
        for name in ("commands", "spans"):
            os.mkfifo(f"{folder}/{name}")
        added = {"LD_PRELOAD": library, _MAPPER: folder, f"{_MAPPER}_PROGRAM": program, f"{_MAPPER}_CPU": str(cpu)}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                del os.environ[name]


_MAPPER = "NFPROBE_MAPPER"


def map_memory(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """A thread of the target maps and unmaps memory: each time the CPUs of the others are interrupted."""
    result, environment = [], Path(f"/proc/{nf.pid}/environ").read_text().split("\0")
    folder = Path(next(line for line in environment if line.startswith(f"{_MAPPER}=")).partition("=")[2])
    with _open_commands(folder) as writer, open(folder / "spans", encoding="ascii") as spans:
        for _ in _times(seconds, seed):
            print(round(LENGTH_S * 1e3), file=writer, flush=True)
            start, end = map(int, spans.readline().split())
            result.append((start, end))
    return result


def _open_commands(folder: Path) -> TextIO:
    """Returns where the target's mapper reads. One that is not there would never open its end."""
    deadline = time.monotonic() + MAPPER_WAIT_S
    while True:
        try:
            return open(os.open(folder / "commands", os.O_WRONLY | os.O_NONBLOCK), "w", encoding="ascii")
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


# ---- a debugger ---------------------------------------------------------------------------------------------------


def stop(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """A debugger holds the thread: while it sends, where it sends by a system call, else anywhere."""
    is_there = partial(is_sending, nf.tid) if nf.sends else lambda: True
    debugger = Debugger(nf.tid, is_there, LENGTH_S, EVERY_S, seed)
    debugger.start()
    time.sleep(seconds)
    debugger.end()
    assert not debugger.failure, debugger.failure
    return debugger.pauses + debugger.others


# ---- beside it ------------------------------------------------------------------------------------------------------

COPY = """
import time
first, second = bytearray(1 << 26), bytearray(1 << 26)
while True:
    first[:] = second
"""


def crowd_memory(nf: PacedNf, seconds: float, seed: int) -> Spans:
    """Another CPU copies memory all the time: everything is slower, nothing of the target is to blame."""
    other = min(os.sched_getaffinity(0))
    words = ["taskset", "-c", str(other), sys.executable, "-c", COPY]
    with subprocess.Popen(words) as process:
        start = sample_pair().ticks
        time.sleep(seconds)
        process.kill()
    return [(start, sample_pair().ticks)]
