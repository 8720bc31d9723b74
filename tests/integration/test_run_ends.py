# SPDX-License-Identifier: Apache-2.0
"""`nfprobe run`: what is refused and not run, signals, kill -9, and a program whose functions are found late."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.probes.launch import Launch
from tests.integration.test_run import ANSWER_S, assert_exact, read_line, run, summary_of
from tests.support.probed import wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.fixture
def brief(compile_target: Callable[..., Path]) -> Path:
    return compile_target("brief")


# ---- what is refused -------------------------------------------------------------------------------------------


def test_what_cannot_be_started(nfprobe: Any, tmp_path: Path) -> None:
    plain, headless, orphan = tmp_path / "plain", tmp_path / "headless", tmp_path / "orphan"
    plain.write_text("text")
    headless.write_text("exit 0\n")
    orphan.write_text("#!/no/such/interpreter\n")
    for script in (headless, orphan):
        script.chmod(0o755)
    for command in ("no-such-program", "/no/such/program", tmp_path, plain, headless, orphan, ""):
        with pytest.raises(UsageError) as caught, Launch([str(command)]) as launch:
            launch.start()
        assert caught.value.next_command
    done = run(nfprobe, "*", orphan)
    assert (done.returncode, done.stdout) == (2, "")
    sentence, next_command = done.stderr.splitlines()
    assert sentence == f"nfprobe: {orphan} names an interpreter that does not exist."
    assert next_command.startswith("next: ")


def test_what_cannot_be_probed_is_not_run(
    nfprobe: Any,
    compile_target: Callable[..., Path],
    brief: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    foreign = tmp_path / "foreign"
    shutil.copy(brief, foreign)
    os.chown(foreign, 65534, 65534)
    foreign.chmod(0o4755)
    static, static_pie = compile_target("brief", "-static"), compile_target("brief", "-static-pie")
    for program in (static, static_pie, foreign):
        with pytest.raises(RefusedError), Launch([str(program), "work", "1", "0"]) as launch:
            launch.start()
    assert capfd.readouterr().out == ""
    done = run(nfprobe, "*", static, "work", 1, 0)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert done.stderr.count("\n") == 2
    nothing = nfprobe.run("run", "--", brief, "work", 1, 0)
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "was not run" in nothing.stderr


def test_a_program_that_does_not_come_to_its_first_instruction(
    nfprobe: Any, compile_target: Callable[..., Path], tmp_path: Path
) -> None:
    library = compile_target("early_threads", "-shared", "-fPIC", "-DGONE")
    program = compile_target("brief", "-Wl,--no-as-needed", str(library), "-DGONE")
    library.unlink()
    done = run(nfprobe, "*", program, "work", 1, 0)
    assert (done.returncode, done.stdout) == (127, "")
    assert "error while loading shared libraries" in done.stderr
    assert summary_of(done.stderr)["program"] == {"exit_status": 127}


# ---- signals ---------------------------------------------------------------------------------------------------


def test_signals_are_passed_on(nfprobe: Any, brief: Path) -> None:
    words = ("run", "--json", "--functions", f"{brief.name}:*", "--", brief, "signals")
    started = nfprobe.start(*words, stdin=subprocess.PIPE)
    assert read_line(started) == "ready"
    for number, told in ((signal.SIGTERM, "termination"), (signal.SIGINT, "interrupt")):
        started.send_signal(number)
        assert read_line(started) == told
    output, errors = started.communicate("\n", timeout=ANSWER_S)
    assert (started.returncode, output) == (0, "1 interrupts, 1 terminations\n"), errors
    assert_exact(summary_of(errors))


def test_terminal_interrupt_comes_once(nfprobe: Any, brief: Path) -> None:
    """Ctrl-C reaches the whole process group: the program decides what it means, and gets it once."""
    terminal, slave = os.openpty()
    words = [*nfprobe.command, "run", "--functions", f"{brief.name}:*", "--", str(brief), "signals"]
    started = subprocess.Popen(
        ["setsid", "--ctty", *words], stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert read_line(started) == "ready"
    os.write(terminal, b"\x03")
    assert read_line(started) == "interrupt"
    os.write(terminal, b"\n")
    output, errors = started.communicate(timeout=ANSWER_S)
    os.close(slave)
    os.close(terminal)
    assert (started.returncode, output) == (0, "1 interrupts, 0 terminations\n"), errors
    assert "which has ended" in errors


# ---- kill -9 of nfprobe ------------------------------------------------------------------------------------------


def children_of(pid: int) -> list[int]:
    """The program that nfprobe has launched, and what does work on it for nfprobe: not what only reads files."""
    works = []
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with suppress(FileNotFoundError, ProcessLookupError):  # what reads files may end meanwhile
            command = Path(f"/proc/{child}/cmdline").read_bytes()  # empty when it has just ended
            if command and b"elfworker" not in command:
                works.append(int(child))
    return works


def is_held(pid: int) -> bool:
    """Whether the launched program waits in pause(), system call 34, and nobody is about to release it."""
    try:
        children = children_of(pid)
        return len(children) == 1 and Path(f"/proc/{children[0]}/syscall").read_text().startswith("34 ")
    except OSError:
        return False


def stop_while_held(monitor: subprocess.Popen[str]) -> bool:
    assert wait_until(lambda: is_held(monitor.pid) or monitor.poll() is not None)
    monitor.send_signal(signal.SIGSTOP)
    return is_held(monitor.pid)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_killed_before_the_first_instruction(nfprobe: Any, tmp_path: Path) -> None:
    """The program that was held dies with nfprobe and has not run."""
    marker = tmp_path / "marker"
    for _ in range(5):  # a machine under load may let one pass
        words = ("run", "--functions", "*", "--", "/usr/bin/python3", "-c", f"open('{marker}', 'w')")
        started = nfprobe.start(*words)
        held = stop_while_held(started)
        program = children_of(started.pid)[0] if held else 0
        started.kill()
        started.communicate()
        if held:
            break
        marker.unlink(missing_ok=True)
    assert held
    assert wait_until(lambda: is_gone(program))
    assert not marker.exists()


def test_killed_while_the_program_runs(nfprobe: Any, brief: Path) -> None:
    started = nfprobe.start("run", "--functions", f"{brief.name}:*", "--", brief, "signals", stdin=subprocess.PIPE)
    assert read_line(started) == "ready"
    program = children_of(started.pid)[0]
    os.kill(started.pid, signal.SIGKILL)
    assert started.wait(ANSWER_S) == -signal.SIGKILL
    os.kill(program, signal.SIGTERM)
    assert read_line(started) == "termination"
    started.stdin.write("\n")
    started.stdin.flush()
    assert read_line(started) == "0 interrupts, 1 terminations"
    assert wait_until(lambda: is_gone(program))
    started.communicate()


# ---- a network function ------------------------------------------------------------------------------------------


def test_network_function(nfprobe: Any, testpmd_binary: str, capture: Callable[[int], Path]) -> None:
    """Its ports are started long after its first instruction: probes follow when there is something to probe."""
    asked = Testpmd.__new__(Testpmd)  # started by nfprobe: only its telemetry is asked
    asked.prefix = f"nfprun{os.getpid()}"
    words = ["--lcores", "0,1", "--no-huge", "-m", "512", "--no-pci", f"--file-prefix={asked.prefix}"]
    words += [f"--vdev={pcap_device(capture(1024), infinite=True)}", "--", "--nb-cores=1", "--no-flush-rx"]
    words += ["--total-num-mbufs=16384", "--forward-mode=macswap", "--port-topology=loop"]
    command = ("run", "--json", "--packets", "none", "--", testpmd_binary, *words)
    started = nfprobe.start(*command, stdin=subprocess.PIPE)
    said = ""
    while "nfprobe: started " not in said:
        line = started.stderr.readline()
        assert line, said
        said += line
    asked.wait_for_packets(asked.telemetry()[1] + 1000)
    output, errors = started.communicate("\n", timeout=120)
    assert started.returncode == 0, errors
    assert "Bye..." in output
    summary = summary_of(errors)
    assert summary["adapter"] == "dpdk"
    assert summary["packets"]["received"] >= 1000
    assert summary["not_restored"] == []
