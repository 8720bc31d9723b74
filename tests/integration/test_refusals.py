# SPDX-License-Identifier: Apache-2.0
"""Processes that cannot be probed: a clear sentence, the right status, the next command, nothing touched."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.target import Target
from tests.support.probed import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Spawn = Callable[..., "subprocess.Popen[str]"]
NOBODY = 65534

PAUSE_C = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
STRICT_C = """
#include <sys/prctl.h>
#include <unistd.h>
int main(void) { char byte; prctl(PR_SET_SECCOMP, 1, 0, 0, 0); while (read(0, &byte, 1) >= 0) ; }
"""
FILTER_C = """
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void)
{
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {1, &allow};
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
	for (;;) pause();
}
"""
PAUSE_32 = ".globl _start\n_start: mov $29,%eax\nint $0x80\njmp _start\n"
PAUSE_64 = ".globl _start\n_start: mov $34,%eax\nsyscall\njmp _start\n"
GO = 'package main\n\nimport "time"\n\nfunc main() { time.Sleep(time.Hour) }\n'
TRACER = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
assert libc.ptrace(0x4206, int(sys.argv[1]), None, None) == 0  # PTRACE_SEIZE
print("ready", flush=True)
time.sleep(600)
"""


def _build(folder: Path, source: str, *flags: str, suffix: str = ".c") -> Path:
    path = folder / f"program{suffix}"
    path.write_text(source)
    output = folder / "program"
    subprocess.run(["gcc", "-O1", "-o", str(output), str(path), *flags], check=True)
    return output


def _settle(pid: int, program: str, state: str = "S") -> None:
    """Waits until the process runs this program and sleeps, or is in another state."""
    deadline = time.monotonic() + 60
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        if os.readlink(f"/proc/{pid}/exe").endswith(program) and f"State:\t{state}" in status:
            return
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_idle(pid: int) -> bool:
    """Whether no thread begins, ends or runs for a while."""

    def look() -> list[str]:
        wanted = ("State:", "Pid:", "voluntary", "nonvoluntary")
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir())
        lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
        return [line for line in lines if line.startswith(wanted)]

    try:
        before = look()
        time.sleep(0.2)
        after = look()
    except OSError:  # a thread has ended
        return False
    return before == after and all("S (" in line for line in before if line.startswith("State:"))


def _refused(nfprobe: Any, pid: int, status: int, *says: str) -> str:
    """Runs the verbs that look at a process and checks what they say. Returns the next command."""
    before = _look(pid)
    done = nfprobe.run("attach", pid, "--functions", "*")
    assert done.returncode == status, done.stderr
    sentence, next_command = done.stderr.splitlines()
    assert sentence.startswith("nfprobe: ")
    assert sentence.endswith(".")
    assert next_command.startswith("next: ")
    for text in says:
        assert text in sentence
    for verb in ("functions", "doctor"):
        again = nfprobe.run(verb, pid)
        assert again.returncode == status
        assert sentence.removeprefix("nfprobe: ") in again.stderr + again.stdout
    assert _look(pid) == before
    return str(next_command.removeprefix("next: "))


def _look(pid: int) -> tuple[str, ...]:
    """What would change if the process were touched."""
    found = []
    for name in ("maps", "stat"):
        try:
            found.append(Path(f"/proc/{pid}/{name}").read_text())
        except OSError:
            found.append("")
    # State, parent and address space; not the times. What is not stopped, traced or dead may run for a moment.
    fields = found[1].rpartition(")")[2].split()
    fields[:1] = [state if state in "TtZX" else "alive" for state in fields[:1]]
    return found[0], *fields[:2], *(fields[20:24] if len(fields) > 24 else ())


def test_no_such_process(nfprobe: Any) -> None:
    done = nfprobe.run("attach", 1 << 22)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [f"nfprobe: No process has pid {1 << 22}.", "next: pgrep -a NAME"]


def test_a_kernel_thread(nfprobe: Any) -> None:
    _refused(nfprobe, 2, 3, "kernel thread")


def test_a_zombie(nfprobe: Any) -> None:
    process = subprocess.Popen(["true"])
    try:
        assert wait_until(lambda: "State:\tZ" in Path(f"/proc/{process.pid}/status").read_text())
        _refused(nfprobe, process.pid, 3, "has ended", str(os.getpid()))
    finally:
        process.wait()


def test_a_go_program(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip("go is not installed: scripts/set-up test")
    (tmp_path / "main.go").write_text(GO)
    words = [go, "build", "-ldflags", "-s -w", "-o", str(tmp_path / "program"), str(tmp_path / "main.go")]
    subprocess.run(words, check=True, cwd=tmp_path)
    process = spawn(tmp_path / "program")
    _settle(process.pid, "program")
    assert wait_until(lambda: _is_idle(process.pid))  # its runtime makes threads and maps memory after that
    _refused(nfprobe, process.pid, 3, "Go program")


@pytest.mark.parametrize("flag", ["-static", "-static-pie"])
def test_a_static_program(flag: str, nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, PAUSE_C, flag))
    _settle(process.pid, "program")
    _refused(nfprobe, process.pid, 3, "statically linked")


def test_a_32_bit_program(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    program = _build(tmp_path, PAUSE_32, "-m32", "-nostdlib", "-static", suffix=".s")
    try:
        process = spawn(program)
    except OSError:
        pytest.skip("this kernel runs no 32-bit programs")
    _settle(process.pid, "program")
    _refused(nfprobe, process.pid, 3, "32-bit")


def test_a_program_without_a_c_library(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, PAUSE_64, "-nostdlib", "-pie", "-fPIE", suffix=".s"))
    _settle(process.pid, "program")
    _refused(nfprobe, process.pid, 3, "no C library")


def _await_sleep(pid: int) -> None:
    assert wait_until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S")


def test_a_shell_script_names_what_it_has_started(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text("#!/bin/sh\nsleep 600 &\necho $!\nwait\n")
    script.chmod(0o755)
    process = spawn(script)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    _await_sleep(process.pid)  # `wait`: its state no longer changes by itself
    try:
        next_command = _refused(nfprobe, process.pid, 3, "which runs the script", str(script), f"{child} (sleep)")
        assert next_command == f"nfprobe attach {child}"
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_is_traced(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, PAUSE_C))
    _settle(process.pid, "program")
    tracer = spawn(sys.executable, "-c", TRACER, process.pid)
    assert tracer.stdout is not None
    assert tracer.stdout.readline() == "ready\n"
    _refused(nfprobe, process.pid, 3, "traced by", str(tracer.pid))
    tracer.kill()  # first: a traced process is not gone before its tracer has looked
    tracer.wait()


def test_a_stopped_process(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    """No helper thread would run in it; one that goes on meanwhile is attached to."""
    process = spawn(_build(tmp_path, PAUSE_C))
    _settle(process.pid, "program")
    process.send_signal(signal.SIGSTOP)
    _settle(process.pid, "program", "T")
    before = _look(process.pid)
    words = ("attach", process.pid, "--functions", "libc.so*:malloc", "--for", "0.1s", "--export", "none")
    done = nfprobe.run(*words)
    assert done.returncode == 1, done.stderr
    assert f"Process {process.pid} is stopped" in done.stderr
    assert f"next: kill -CONT {process.pid}" in done.stderr
    assert _look(process.pid) == before
    process.send_signal(signal.SIGCONT)
    assert nfprobe.run(*words).returncode == 0


def test_strict_seccomp(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, STRICT_C), stdin=subprocess.PIPE)
    _settle(process.pid, "program")
    assert wait_until(lambda: "Seccomp:\t1" in Path(f"/proc/{process.pid}/status").read_text())
    _refused(nfprobe, process.pid, 3, "strict seccomp")
    assert process.poll() is None


def test_a_seccomp_filter_is_a_note(nfprobe: Any, spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, FILTER_C))
    _settle(process.pid, "program")
    assert wait_until(lambda: "Seccomp:\t2" in Path(f"/proc/{process.pid}/status").read_text())
    assert "seccomp filter" in check_target(Target(process.pid))[0]
    assert "seccomp filter" in nfprobe.json("doctor", process.pid, status=2)["target"]["notes"][0]


def test_without_rights(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn(_build(tmp_path, PAUSE_C))
    _settle(process.pid, "program")
    before = _look(process.pid)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # another user, who has this interpreter and its modules already loaded
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            check_target(Target(process.pid))
            os.write(writer, b"allowed")
        except NfprobeError as error:
            os.write(writer, f"{error.exit_status}|{error.sentence}|{error.next_command}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        status, sentence, next_command = answer.read().split("|")
    os.waitpid(child, 0)
    assert status == "1"
    assert "belongs to user 0" in sentence
    assert "CAP_SYS_PTRACE" in sentence
    assert next_command == f"sudo nfprobe attach {process.pid}"
    assert _look(process.pid) == before


def test_functions_that_match_nothing(nfprobe: Any, spawn: Spawn) -> None:
    process = spawn("sleep", "600")
    _settle(process.pid, "sleep")
    done = nfprobe.run("attach", process.pid, "--functions", "libc:nanoslep")
    assert done.returncode == 2
    assert "nanosleep" in done.stderr
    assert done.stderr.splitlines()[1] == f"next: nfprobe functions {process.pid}"
