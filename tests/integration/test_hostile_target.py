# SPDX-License-Identifier: Apache-2.0
"""Targets that answer the monitor with whatever they like: no file of anybody is changed, nothing waits for ever, and a
sentence says what was wrong. tests/targets/hostile.c has a mode for each way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.target.loadedlibrary import library_path
from tests.support.hostile import BOUND_S, INCLUDES, Bait, assert_lives, attach, has_probes, run
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

SEALED = 0x1 | 0x2 | 0x4 | 0x8  # F_SEAL_SEAL, SHRINK, GROW, WRITE

NO_MEMORY_FILE = "is not the memory file"
NO_SESSION = "The session of process"
DAMAGED = "The arena table in process"

LIBRARY_MODES = [
    "library-read-only",
    "library-path-only",
    "library-device",
    "library-nothing",
    "library-negative",
    "library-pipe",
    "library-socket",
    "library-unlinked",
    "library-memory-read-only",
    "library-memory-path-only",
    "library-memory-full",
    "library-memory-sealed",
    "library-memory-appending",
    "library-memory-mapped",
    "library-memory-other",
]
SESSION_MODES = [
    "session-read-only",
    "session-path-only",
    "session-device",
    "session-nothing",
    "session-negative",
    "session-pipe",
    "session-socket",
    "session-unlinked",
    "session-memory-read-only",
    "session-memory-path-only",
    "session-memory-other",
    "session-unsealed",
    "session-shrinks",
    "session-grows",
    "session-short",
    "session-empty",
    "session-odd-size",
    "session-wrong-sizes",
]
ARENA_MODES = [
    "arena-unaligned",
    "arena-overlapping",
    "arena-over-header",
    "arena-endless",
    "arena-many",
    "arena-much",
]
# What the monitor can go on with, or not, as it comes.
CHANGING_MODES = ["library-reused", "session-reused", "session-flips", "session-full-tables"]
COUNTER_MODES = ["file", "device", "pipe", "stream", "nothing", "elsewhere", "full"]


@pytest.fixture
def start(start_hostile: Callable[..., Talker]) -> Callable[..., Talker]:
    """Starts a target that is hostile in a mode: start(mode, path=, turned=)."""
    return start_hostile


def test_what_behaves_is_measured(start: Callable[..., Talker], bait: Bait) -> None:
    """So that the others fail for what they do, and not for how they are driven."""
    talker = start("behaves")
    done = attach(talker)
    done.assert_told(0)
    assert json.loads(done.output)["functions"]["probed"] == 1
    assert talker.ask("kept") == f"{library_path().stat().st_size} {SEALED}"
    assert_lives(talker)


@pytest.mark.parametrize("mode", LIBRARY_MODES)
def test_library_descriptor(mode: str, start: Callable[..., Talker], bait: Bait) -> None:
    talker = start(mode)
    attach(talker).assert_told(1, NO_MEMORY_FILE)
    bait.assert_untouched()
    assert_lives(talker)


@pytest.mark.parametrize("mode", SESSION_MODES)
def test_session_descriptor(mode: str, start: Callable[..., Talker], bait: Bait) -> None:
    talker = start(mode)
    attach(talker).assert_told(1, NO_SESSION)
    bait.assert_untouched()
    assert_lives(talker)


@pytest.mark.parametrize("mode", ["library-read-only", "library-path-only", "session-read-only", "session-path-only"])
def test_fifo(mode: str, start: Callable[..., Talker], bait: Bait) -> None:
    """To open it for writing would wait for a reader."""
    talker = start(mode, bait.fifo)
    attach(talker).assert_told(1)
    bait.assert_untouched()
    assert_lives(talker)


@pytest.mark.parametrize("mode", ARENA_MODES)
def test_arena_table(mode: str, start: Callable[..., Talker]) -> None:
    talker = start(mode)
    attach(talker).assert_told(1, DAMAGED)
    assert_lives(talker)


@pytest.mark.parametrize("mode", ["arena-unmapped", "arena-overfull", "arena-file-cut"])
def test_arena_that_takes_no_code(mode: str, start: Callable[..., Talker]) -> None:
    """Code is written only to room that the kernel says is mapped, and to files without mapping them."""
    talker = start(mode)
    attach(talker).assert_told(0)
    assert_lives(talker)


@pytest.mark.parametrize("mode", CHANGING_MODES)
@pytest.mark.parametrize("turn", range(3))
def test_what_changes_between_two_reads(mode: str, turn: int, start: Callable[..., Talker], bait: Bait) -> None:
    talker = start(mode)
    done = attach(talker, "--counters", "task-clock")
    done.assert_told(done.status if done.status in (0, 1) else 0)
    bait.assert_untouched()
    assert_lives(talker)


def test_absurd_counts(start: Callable[..., Talker], tmp_path: Path) -> None:
    talker = start("session-absurd-counts")
    done = attach(talker, "--record", tmp_path / "recording.nfp")
    done.assert_told(done.status if done.status in (0, 1) else 0)
    assert_lives(talker)


def test_library_is_given_once(start: Callable[..., Talker]) -> None:
    talker = start("library-for-ever")
    attach(talker).assert_told(1, "more than once")
    assert_lives(talker)


@pytest.mark.parametrize("mode", COUNTER_MODES)
def test_counters_channel(mode: str, start: Callable[..., Talker], bait: Bait) -> None:
    """A session without counters, and nothing is sent to whoever else listens.

    Counters of the kernel that no processor counts are handed over like any others.
    """
    service = bait.folder / "service"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(service))
        service.chmod(0o777)
        listener.listen()
        talker = start(f"counters-{mode}", service if mode == "elsewhere" else bait.file)
        probed = Probed(talker.pid, ["hostile-*:step"], ring_bytes=64 << 10)
        probed.monitor.counters = choose_counters("task-clock").counters
        with probed:
            assert talker.ask("step 100") == "right"
        said = "The counts of the probes themselves" if mode == "full" else "The counters cannot be passed"
        assert any(sentence.startswith(said) for sentence in probed.said), probed.said
        assert probed.not_restored == []
        if mode == "elsewhere":
            connection, _ = listener.accept()
            connection.setblocking(False)
            with connection, pytest.raises(BlockingIOError):
                connection.recv(16)
    bait.assert_untouched()
    assert_lives(talker)


@pytest.mark.parametrize("mode", ["session-unsealed", "session-short", "session-flips", "library-read-only"])
def test_status_and_detach(mode: str, start: Callable[..., Talker], bait: Bait) -> None:
    """Whoever looks at what a target has left behind is as careful."""
    talker = start(mode)
    attach(talker)
    status = run("status", talker.pid, "--json")
    status.assert_told(1)
    detach = run("detach", talker.pid, "--json")
    detach.assert_told(detach.status if mode == "session-flips" and detach.status == 1 else 0)
    bait.assert_untouched()
    assert_lives(talker)


@pytest.mark.parametrize(
    ("mode", "is_known"),
    [
        ("behaves", True),
        ("session-absurd-counts", True),
        ("counters-device", True),
        ("session-forges", False),
        ("session-scribbles", False),
    ],
)
def test_killed_monitor(mode: str, is_known: bool, start: Callable[..., Talker], bait: Bait) -> None:
    """What says where probes are is compared with the program's file before anything is written."""
    talker = start(mode)
    words = ("--adapter", "none", "--functions", "hostile-*:step", "--ring-size", "64KiB")
    command = [sys.executable, "-m", "otel_nfprobe", "attach", str(talker.pid), *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as monitor:
        assert monitor.stderr is not None
        said = next((line for line in monitor.stderr if "attached to" in line), "")  # others may come before it
        monitor.kill()
    assert said
    assert has_probes(talker.pid)
    done = run("detach", talker.pid, "--json")
    bait.assert_untouched()
    assert talker.ask("step 1000") == "right"
    if is_known:
        done.assert_told(0)
        assert json.loads(done.output)["restored"] == 1
        assert_lives(talker)
    else:
        done.assert_told(1, "left alone")


# ---- beside others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["library-read-only", "session-unsealed", "arena-overlapping", "session-flips"])
def test_hostile_child(mode: str, start: Callable[..., Talker], bait: Bait, tmp_path: Path) -> None:
    """Of the children of an honest program one is hostile: its parent and the others are measured to the end."""
    talker = start(mode, turned=False)
    command = [sys.executable, "-m", "otel_nfprobe", "attach", str(talker.pid), "--adapter", "none", "--json"]
    command += ["--functions", "hostile-*:step", "--ring-size", "64KiB", "--follow-forks"]
    said = tmp_path / "said"
    with said.open("wb") as errors:
        monitor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert wait_until(lambda: "attached to" in said.read_text())
        _, *honest = map(int, talker.ask("fork 3").split())
        assert wait_until(lambda: said.read_text().count("is measured, too") >= 2), said.read_text()
        if mode != "session-flips":
            assert wait_until(lambda: "is not measured: " in said.read_text()), said.read_text()
        assert talker.ask("step 500") == "right"
        monitor.send_signal(signal.SIGINT)
        output, _ = monitor.communicate(timeout=BOUND_S)
    finally:
        monitor.kill()
    summary = json.loads(output)
    text = said.read_text()
    assert monitor.returncode == 0, text
    assert not any(word in text for word in ("Traceback", "unexpected")), text
    assert summary["calls"] == 500
    measured = {child["pid"]: child for child in summary["children"]}
    assert set(honest) <= measured.keys()
    assert all(measured[pid]["calls"] > 0 and measured[pid]["not_restored"] == [] for pid in honest)
    # The hostile one keeps the silent probes that it was forked with, as any child without a session does.
    assert not any(has_probes(pid) for pid in (*honest, talker.pid))
    bait.assert_untouched()
    assert talker.ask("end") == "right"


@pytest.mark.parametrize("mode", ["behaves", "library-read-only", "session-read-only", "session-unsealed"])
def test_launched(mode: str, compile_target: Callable[..., Path], bait: Bait) -> None:
    """A library of the program has turned hostile before its first instruction."""
    library = compile_target("hostile", *INCLUDES, "-shared", "-fPIC")
    flags = ("-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{library.parent}")
    program = compile_target("forks", *flags)
    environment = {**os.environ, "HOSTILE_MODE": mode, "HOSTILE_PATH": str(bait.file)}
    words = ("--adapter", "none", "--functions", "forks-*:step", "--ring-size", "64KiB")
    done = run("run", *words, "--", program, env=environment, stdin=subprocess.DEVNULL)
    if mode == "behaves":
        done.assert_told(0, "started")
    else:
        done.assert_told(1, "was not run" if "session" not in mode else NO_SESSION)
    bait.assert_untouched()
