# SPDX-License-Identifier: Apache-2.0
"""A thread that waits in a system call does not see that it was stopped, and sees each signal that it handles."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.probes import inject as injection
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.target import Target, Thread
from tests.support.probed import Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PATIENCE_NS = 60_000_000_000
FORBIDDEN = ("EPERM", "ENOSYS")  # what a kernel or a container says that does not let anybody use io_uring


@pytest.fixture
def waiting(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    # Its semaphores and queues end with its namespace.
    talker = Talker(spawn("unshare", "--ipc", compile_target("waiting"), stdin=subprocess.PIPE))
    # A thread that has not had a processor yet is not in its call.
    assert wait_until(lambda: all_sleep(talker.pid)), talker.where()
    return talker


def all_sleep(pid: int) -> bool:
    """Whether each of its threads waits for something."""
    try:
        stats = [(task / "stat").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # one whose call is forbidden has just ended
        return False
    return all(stat.rpartition(")")[2].split()[0] == "S" for stat in stats)


def returned(talker: Talker) -> set[str]:
    """Which calls have come back, and with what."""
    found = {text for text in talker.ask("returned").split(";") if text}
    for text in sorted(found):
        if text.endswith(FORBIDDEN):
            print(f"not tested, this machine does not allow it: {text}")
    return {text for text in found if not text.endswith(FORBIDDEN)}


def stop_all(pid: int) -> None:
    """All threads at once, as when code is written that no thread may stand in."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    stop = ffi.new("struct nfp_stop *", {"pid": pid, "memory_fd": memory})
    assert lib.nfp_stop_and_change(stop, ffi.new("struct nfp_change[1]"), 0, ffi.NULL, PATIENCE_NS) == 0
    os.close(memory)
    assert stop.threads > 1


def inject_through(target: Target, thread: Thread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injection, "candidates", lambda _: [thread])
    injected = injection.inject(target, 1 << 20)
    assert injected.thread == thread.tid
    assert injected.session.leave()
    injected.session.close()


def test_a_stop_of_all_threads_ends_no_call(waiting: Talker) -> None:
    assert not returned(waiting)
    for _ in range(20):
        stop_all(waiting.pid)
    time.sleep(0.1)
    assert not returned(waiting)


def test_attach_and_detach_end_no_call(waiting: Talker, nfprobe: Any) -> None:
    words = ("--adapter", "none", "--functions", "libc.so*:malloc", "--for", "0.1s", "--export", "none")
    answer = nfprobe.run("attach", waiting.pid, *words)
    assert answer.returncode == 0, answer.stderr
    assert not returned(waiting)


def test_injection_ends_no_call(waiting: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through each thread in turn that is in a call which injection takes."""
    target = Target(waiting.pid)
    check_target(target)
    threads = [thread for thread in injection.candidates(target) if thread.tid != waiting.pid]
    assert len(threads) > 20
    for thread in threads:
        inject_through(target, thread, monkeypatch)
        assert not returned(waiting), thread.name
    assert {thread.name for thread in threads} >= {"epoll_wait", "epoll_pwait", "sigtimedwait", "recvfrom", "accept"}


def send_signals(pid: int, end: threading.Event) -> None:
    while not end.is_set():
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.0002)


@pytest.mark.parametrize("way", ["stop", "inject"])
def test_a_signal_at_the_moment_of_a_stop_ends_the_call(
    way: str, waiting: Talker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler runs only inside the call, which must end each time: a program may wait for just that."""
    target = Target(waiting.pid)
    check_target(target)
    thread = next(thread for thread in target.threads() if thread.name == "signals")
    end = threading.Event()
    sender = threading.Thread(target=send_signals, args=(waiting.pid, end))
    sender.start()
    try:
        for _ in range(300 if way == "stop" else 30):
            if way == "stop":
                stop_all(waiting.pid)
            else:
                inject_through(target, thread, monkeypatch)
    finally:
        end.set()
        sender.join()

    def counts() -> tuple[int, int]:
        handled, ended = waiting.ask("signals").split()
        return int(handled), int(ended)

    assert wait_until(lambda: counts()[0] == counts()[1]), counts()
    assert counts()[0] > 100
    assert not returned(waiting)
