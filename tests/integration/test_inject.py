# SPDX-License-Identifier: Apache-2.0
"""Injection a hundred times into targets where a careless one deadlocks, and into one without a blocked thread."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.probes.inject import inject
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.linkmap import LinkMap
from otel_nfprobe.target.target import Target, read_status
from tests.support.probed import Talker, cpu_ticks, wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.shared]

TIMES = [25, pytest.param(100, marks=pytest.mark.long)]
HANG_S = 60.0  # more than the product waits for anything


def inject_and_leave(pid: int) -> tuple[float, int]:
    """Seconds until the session was there, and how long the chosen thread was stopped."""
    target = Target(pid)
    check_target(target)
    start = time.monotonic()
    injected = inject(target, 1 << 20)
    seconds = time.monotonic() - start
    assert injected.session.leave()
    injected.session.close()
    return seconds, injected.stopped_ns


def assert_runs_on(pid: int) -> None:
    before = cpu_ticks(pid)
    assert wait_until(lambda: cpu_ticks(pid) != before), "the target hangs"


def forwards_on(testpmd: Testpmd, packets: int) -> bool:
    """Whether more than so many packets are transmitted, soon."""
    return wait_until(lambda: testpmd.telemetry()[1] > packets)


def check_times(taken: list[tuple[float, int]]) -> None:
    stopped = sorted(stopped_ns for _, stopped_ns in taken)
    print(f"stopped: median {stopped[len(stopped) // 2] / 1e3:.0f} us, longest {stopped[-1] / 1e3:.0f} us")
    assert max(seconds for seconds, _ in taken) < HANG_S, "as good as a hang"


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", ["malloc_storm", "busy_epoll"])
def test_fresh_targets(
    name: str, times: int, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    binary = compile_target(name)
    taken = []
    for _ in range(times):
        process = spawn(binary)
        taken.append(inject_and_leave(process.pid))
        assert process.poll() is None
        assert_runs_on(process.pid)
        process.kill()
        process.wait()
    check_times(taken)


def test_a_program_that_is_still_being_linked(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Its C library is mapped, but must not be called yet. The linker is held by what it tells and nobody reads."""
    tells, told = os.pipe()
    fcntl.fcntl(told, fcntl.F_SETPIPE_SZ, 4096)
    process = spawn("/bin/sleep", "60", env={**os.environ, "LD_DEBUG": "bindings"}, stderr=told)
    os.close(told)
    target = Target(process.pid)
    assert wait_until(lambda: "libc.so" in Path(f"/proc/{process.pid}/maps").read_text())
    assert not LinkMap(target).has_started()

    let_go = threading.Event()

    def read_on() -> None:
        let_go.set()
        with open(tells, "rb") as file:
            while file.read(4096):
                pass

    reader = threading.Timer(0.3, read_on)
    reader.start()
    check_target(target)
    assert let_go.is_set()
    assert LinkMap(target).has_started()
    inject_and_leave(process.pid)
    assert process.poll() is None
    process.kill()
    reader.join()


def test_a_thread_that_is_seldom_blocked(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """The other one never makes a system call: it must not be waited for alone."""
    process = spawn(compile_target("spinner_and_sleeper"))
    check_times([inject_and_leave(process.pid) for _ in range(15)])
    assert_runs_on(process.pid)


def test_a_thread_that_waits_for_one_that_makes_no_call(
    vpp_program: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """The double's main thread waits for its worker nearly all the time, and makes its harmless calls in between."""
    double, ending, answers = Talker(spawn(vpp_program, stdin=subprocess.PIPE)), threading.Event(), [""]

    def feed() -> None:
        while not ending.is_set():
            answers.append(double.ask("1000000"))

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        check_times([inject_and_leave(double.pid) for _ in range(3)])
        count = len(answers)
        assert wait_until(lambda: len(answers) > count + 1)
    finally:
        ending.set()
        feeder.join()


@pytest.mark.parametrize("times", TIMES)
def test_again_and_again_into_testpmd(
    times: int, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    taken = []
    for _ in range(times):
        packets = testpmd.telemetry()[1]
        taken.append(inject_and_leave(testpmd.pid))
        testpmd.drain_output()
        assert forwards_on(testpmd, packets)
    check_times(taken)


@pytest.mark.parametrize("kind", ["epoll", "poll", "sleep"])
def test_the_chosen_thread_notices_nothing(
    kind: str, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """Registers, vector state, signal mask, result and length of the system call it was stopped in."""
    process = spawn(compile_target("blocked_registers"), kind, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(20):
        inject_and_leave(process.pid)
    process.stdin.close()  # ends it
    assert process.wait(120) == 0, process.stdout.read()
    assert process.stdout.read() == "equal\n"


def test_trap_handler_stays(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """The bootstrap ends in an int3: the kernel takes the handler of a program that blocks SIGTRAP there."""
    talker = Talker(spawn(compile_target("patching"), stdin=subprocess.PIPE))
    assert talker.ask("handler") == "installed"
    inject_and_leave(talker.pid)
    assert talker.ask("handled") == "mine"


@pytest.mark.parametrize("blocked", [0, 1])
def test_ignored_trap_stays_ignored(
    blocked: int, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """The kernel forgets that SIGTRAP is ignored when a thread is stepped: the next one would end the program."""
    process = spawn(compile_target("patching"), stdin=subprocess.PIPE)
    talker = Talker(process)
    assert talker.ask("ignore") == talker.ask(f"block {blocked}") == "done"
    masks = [read_status(talker.pid)[name] for name in ("SigIgn", "SigBlk")]
    for _ in range(3):
        inject_and_leave(talker.pid)
        assert [read_status(talker.pid)[name] for name in ("SigIgn", "SigBlk")] == masks
    os.kill(talker.pid, signal.SIGTRAP)
    assert talker.ask("block 0") == "done"
    assert process.poll() is None
