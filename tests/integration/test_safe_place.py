# SPDX-License-Identifier: Apache-2.0
"""Programs whose threads are hardly ever found at a place where the probe library can be loaded."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.probes.inject import inject
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.target import Target, has_ended
from tests.support.probed import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

LONG = pytest.mark.long
HANG_S = 9.9  # a thread that is lost is waited for for ten seconds: CALL_PATIENCE_NS in native/core/inject.c


def has_both_threads(pid: int) -> bool:
    return len(Target(pid).threads()) == 2


@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=LONG)])
def test_beside_a_thread_that_allocates(
    times: int, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    taken = []
    for turn in range(times):
        process = spawn(compile_target("allocating"))
        assert wait_until(lambda pid=process.pid: has_both_threads(pid))  # type: ignore[misc]
        time.sleep(0.05 + 0.01 * (turn % 11))
        target = Target(process.pid)
        check_target(target)
        start = time.monotonic()
        injected = inject(target, 1 << 20)
        taken.append(time.monotonic() - start)
        assert injected.thread != process.pid, "it allocates: it may hold the lock"
        assert injected.session.leave()
        injected.session.close()
        assert process.poll() is None
        process.kill()
        process.wait()
    taken.sort()
    print(f"{times} attaches: median {taken[times // 2] * 1e3:.1f} ms, longest {taken[-1]:.2f} s")
    assert taken[-1] < HANG_S


@LONG
def test_by_the_command(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], nfprobe: Any
) -> None:
    for turn in range(100):
        process = spawn(compile_target("allocating"))
        time.sleep(0.05 + 0.01 * (turn % 11))
        words = ("--adapter", "none", "--functions", "libc.so*:malloc", "--for", "0.1s", "--export", "none")
        answer = nfprobe.run("attach", process.pid, *words)
        assert answer.returncode == 0, answer.stderr
        assert process.poll() is None
        process.kill()
        process.wait()


def test_a_thread_that_seldom_makes_a_harmless_call(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    process = spawn(compile_target("allocating"), "rarely")
    assert wait_until(lambda: has_both_threads(process.pid))
    target = Target(process.pid)
    check_target(target)
    for _ in range(5):
        injected = inject(target, 1 << 20)
        assert injected.thread != process.pid
        assert injected.session.leave()
        injected.session.close()


def test_a_thread_that_does_not_come_is_let_go(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """When the time is over it mostly stands in a system call: its next stop is at the end of that call."""
    process = spawn(compile_target("allocating"))
    assert wait_until(lambda: has_both_threads(process.pid)), "it never began"
    tids = ffi.new("int32_t[]", [process.pid])
    request = ffi.new("struct nfp_inject *", {"pid": process.pid, "tids": tids, "tid_count": 1, "memory_fd": -1})
    boot = ffi.new("struct nfp_boot *")
    request.patience_ns = 5_000_000
    for _ in range(100):
        start = time.monotonic()
        assert lib.nfp_inject(request, boot) == -errno.EAGAIN
        assert (request.tid, request.tried) == (0, 1)
        assert time.monotonic() - start < HANG_S
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "TracerPid:\t0\n" in status
    assert not has_ended(process.pid)


def test_while_the_loader_reads_libraries(spawn: Callable[..., subprocess.Popen[str]], nfprobe: Any) -> None:
    """It blocks in read, where a running program could load the probe library: here no libc is relocated yet."""
    reading, writing = os.pipe()
    process = spawn("/usr/bin/sleep", "1000", stdin=reading, env={"LD_PRELOAD": "/proc/self/fd/0"})
    os.close(reading)
    assert wait_until(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("0 "))
    target = Target(process.pid)
    tids = ffi.new("int32_t[]", [process.pid])
    request = ffi.new("struct nfp_inject *", {"pid": process.pid, "tids": tids, "tid_count": 1})
    request.memory_fd = target.memory.descriptor
    request.patience_ns = 50_000_000
    assert lib.nfp_inject(request, ffi.new("struct nfp_boot *")) == -errno.EAGAIN
    answer = nfprobe.run("attach", process.pid, "--for", "0.1s", "--export", "none")
    assert answer.returncode == 3
    assert "has loaded no C library" in answer.stderr
    os.write(writing, b"no library")
    os.close(writing)
    assert wait_until(lambda: Path(f"/proc/{process.pid}/syscall").read_text().startswith("230 "))  # clock_nanosleep
    injected = inject(target, 1 << 20)
    assert injected.session.leave()
    injected.session.close()
    assert not has_ended(process.pid)
