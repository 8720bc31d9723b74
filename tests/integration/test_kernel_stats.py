# SPDX-License-Identifier: Apache-2.0
"""`nfprobe stats PID kernel:FUNCTION`: programs that count their own system calls, and the kernel's refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.kernel.kernelprobe import FENTRY, TRACEPOINTS, KernelProbe, find_whose
from tests.support.firewall import fails
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

THREADS, CALLS = 4, 2500
# Answers each line: so many threads have called getppid, and written one byte, so many times.
PROGRAM = f"""
import os, sys, threading
null = os.open("/dev/null", os.O_WRONLY)
def work():
    for _ in range({CALLS}):
        os.getppid()
        os.write(null, b"x")
print("ready", flush=True)
while os.read(0, 100):
    threads = [threading.Thread(target=work) for _ in range({THREADS})]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print("done", flush=True)
"""


def find_strategy() -> str:
    """What this kernel allows to this user; skips where it is nothing."""
    try:
        probe = KernelProbe("sys_getppid", find_whose(os.getpid()), 1 << 16)
    except NfprobeError as error:
        pytest.skip(error.sentence)
    probe.close()
    return probe.strategy


def begin(nfprobe: Any, *words: object) -> subprocess.Popen[str]:
    monitor: subprocess.Popen[str] = nfprobe.start("stats", *words, "--for", "300s", "--json")
    assert monitor.stderr is not None
    while "is measured in" not in (line := monitor.stderr.readline()):
        assert line, "nfprobe has ended"
    return monitor


def check(found: dict[str, Any], calls: int) -> None:
    assert found["count"] + found["warm_up"] == calls
    assert sum(count for _, count in found["histogram"]) == found["count"]
    assert found["lost"] == {"call": 0, "missed": 0}
    assert found["open"] == 0
    ordered = ["min_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "max_ns"]
    assert [found[name] for name in ordered] == sorted(found[name] for name in ordered)


def test_every_system_call_of_one_process(nfprobe: Any, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    strategy = find_strategy()
    mine, other = (Talker(spawn(sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE)) for _ in range(2))
    monitor = begin(nfprobe, mine.pid, "kernel:sys_getppid")
    other.say("go")
    assert mine.ask("go") == "done"
    assert other.hear() == "done"
    found = nfprobe.end(monitor)
    check(found, THREADS * CALLS)
    assert found["warm_up"] == THREADS * 64
    assert found["strategy"] == strategy
    assert 0 < found["probe_ns"]["inside"] <= found["probe_ns"]["whole"]


def test_a_process_in_another_pid_namespace(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    find_strategy()
    outside = spawn("unshare", "-p", "-f", sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE)
    assert outside.stdout is not None
    assert outside.stdin is not None
    assert outside.stdout.readline() == "ready\n"
    pid = int(Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()[0])
    assert find_whose(pid).pid == 1
    probe = KernelProbe("sys_getppid", find_whose(pid), 1 << 20)
    outside.stdin.write("go\n")
    outside.stdin.flush()
    assert outside.stdout.readline() == "done\n"
    counts, rows = probe.counts(), probe.take()
    probe.close()
    os.kill(pid, signal.SIGKILL)
    assert counts == {"entered": THREADS * CALLS, "left": THREADS * CALLS, "lost": 0, "missed": 0}
    assert len(rows) == THREADS * CALLS


def test_every_call_of_a_function(nfprobe: Any, spawn: Callable[..., subprocess.Popen[str]]) -> None:
    if find_strategy() != FENTRY:
        pytest.skip("this kernel runs no programs at its functions")
    talker = Talker(spawn(sys.executable, "-c", PROGRAM, stdin=subprocess.PIPE))
    monitor = begin(nfprobe, talker.pid, "kernel:vfs_write")
    assert talker.ask("go") == "done"
    check(nfprobe.end(monitor), THREADS * CALLS + 1)  # the answer is written, too


def test_sleeps_of_a_known_length(
    nfprobe: Any, spawn: Callable[..., subprocess.Popen[str]], compile_target: Callable[..., Path]
) -> None:
    find_strategy()
    talker = Talker(spawn(compile_target("napping"), stdin=subprocess.PIPE))
    monitor = begin(nfprobe, talker.pid, "kernel:__x64_sys_clock_nanosleep")
    assert talker.ask("naps 1000") == str(100 * 2000)
    found = nfprobe.end(monitor)
    check(found, 100)
    assert found["min_ns"] >= 2e6 - found["probe_ns"]["inside"]  # kernels never wake too early


def test_all_processes_and_text(nfprobe: Any) -> None:
    find_strategy()
    done = nfprobe.run("stats", "all", "kernel:sys_clock_nanosleep", "--for", "0.1s")
    assert done.returncode == 0, done.stderr
    assert "kernel:sys_clock_nanosleep:" in done.stdout
    assert "the kernel's programs at entry and exit cost" in done.stdout


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["kernel:no_such_function_anywhere"], 2, "no function"),
        (["kernel:vfs_write", "--counters", "cycles"], 2, "of the program, not of the kernel"),
        (["kernel:vfs_write", "--ring-size", "3KiB"], 2, "power of two"),
    ],
)
def test_what_cannot_be_measured(
    capfd: pytest.CaptureFixture[str], words: list[str], status: int, sentence: str
) -> None:
    find_strategy()
    fails(capfd, status, "stats", os.getpid(), *words, said=sentence)
    fails(capfd, 2, "stats", "all", "some:function", said="Only kernel functions")


def test_a_kernel_that_is_locked_down(capfd: pytest.CaptureFixture[str]) -> None:
    if find_strategy() != TRACEPOINTS:
        pytest.skip("this kernel runs programs at its functions")
    with pytest.raises(NfprobeError) as refused:
        KernelProbe("vfs_write", find_whose(os.getpid()), 1 << 16)
    words = "stats", os.getpid(), "kernel:vfs_write", "--for", "0.1s"
    fails(capfd, refused.value.exit_status, *words, said="cannot be")
