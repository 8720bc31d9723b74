# SPDX-License-Identifier: Apache-2.0
"""Targets with seccomp filters: a container's profile works, the list of needed calls is whole, and a filter
that forbids one of them is refused by name before anything is touched."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.arch.x86_64.calls import COUNTER_CALLS, injection_calls
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.cli.session_options import check_counting
from otel_nfprobe.counters.choice import Counter, CounterChoice, choose_counters
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.linux.bpf import SystemCall
from otel_nfprobe.probes.preflight import check_target, judge, read_filters
from otel_nfprobe.target.target import Target
from tests.support.filters import ALLOW, KILL_PROCESS, LOG, allow_only, answer, container_profile, forbid_only, install
from tests.support.other_user import run_as
from tests.support.probed import Probed, wait_until
from tests.support.rooms import Room, compile_musl

pytestmark = [pytest.mark.integration, pytest.mark.shared]

Spawn = Callable[..., "subprocess.Popen[str]"]
TRACE, TRAP, ASK_USER = 0x7FF00000, 0x00030000, 0x7FC00000
MMAP, MPROTECT, CLONE, MEMFD_CREATE, CLONE3, RSEQ, BRK, SOCKETPAIR = 9, 10, 56, 319, 435, 334, 12, 53
READ, FUTEX = 0, 202
# What tests/targets/where.c needs itself: its input and output, its threads' semaphores and end.
OWN_CALLS = {0, 1, 3, 5, 12, 14, 20, 56, 60, 202, 218, 231, 262, 273, 334, 435}


@pytest.fixture(scope="module")
def where(compile_target: Callable[..., Path]) -> Path:
    return compile_target("where")


def test_a_containers_profile(where: Path, spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    room = Room(spawn, [where, container_profile(tmp_path / "filter")])
    room.measure()
    notes = nfprobe.json("doctor", room.pid, status=2)["target"]["notes"]
    assert any("seccomp filter; it permits every required system call" in note for note in notes)


@pytest.mark.parametrize("musl", [False, True], ids=["glibc", "musl"])
def test_the_list_of_calls_is_whole(musl: bool, where: Path, spawn: Spawn, tmp_path: Path) -> None:
    """A whole session under a filter that kills for every call that is not in the list."""
    program = compile_musl(tmp_path / "where-musl") if musl else where
    numbers = {call.number for call in injection_calls(musl, True)} | OWN_CALLS
    room = Room(spawn, [program, allow_only(tmp_path / "filter", numbers, KILL_PROCESS)])
    room.measure()
    room.measure()


@pytest.mark.parametrize(
    ("number", "action", "says"),
    [
        (MEMFD_CREATE, answer(errno.EPERM), "answers EPERM to memfd_create"),
        (MPROTECT, KILL_PROCESS, "kills it for mprotect with PROT_EXEC"),
        (CLONE, TRAP, "sends it SIGSYS for clone"),
        (CLONE3, answer(errno.EPERM), "answers EPERM to clone3"),
        (MMAP, TRACE, "answers ENOSYS to mmap"),
        (MEMFD_CREATE, ASK_USER, "lets another process decide about memfd_create"),
        (RSEQ, 0, "kills a thread for rseq"),
        (RSEQ, answer(errno.EPERM), "answers EPERM to rseq"),
    ],
)
def test_a_refusal_names_the_call(
    number: int, action: int, says: str, where: Path, spawn: Spawn, tmp_path: Path
) -> None:
    # The filter is put on the main thread when the others are there: they need what it forbids.
    room = Room(spawn, [where, allow_only(tmp_path / "empty", (), ALLOW), forbid_only(tmp_path / "f", number, action)])
    # A thread that is still on its way to its semaphore, or blocked there, could take the library in.
    at_rest = {FUTEX, READ}
    assert wait_until(lambda: all(thread.system_call in at_rest for thread in Target(room.pid).threads()))
    before = room.maps()
    with pytest.raises(RefusedError, match=says):
        check_target(Target(room.pid))
    assert room.maps() == before
    assert wait_until(room.talker.is_listening)  # a read that was interrupted begins again


def test_the_command_line_refuses(where: Path, spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    path = forbid_only(tmp_path / "filter", MEMFD_CREATE, answer(errno.EPERM))
    room = Room(spawn, [where, path])
    before = room.maps()
    done = nfprobe.run("attach", room.pid, "--functions", "*:step")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        f"nfprobe: Process {room.pid} ({Target(room.pid).name}) has a seccomp filter that answers EPERM to "
        "memfd_create, which the probe library needs.",
        f"next: grep Seccomp /proc/{room.pid}/status",
    ]
    assert room.maps() == before
    room.call(3)


@pytest.mark.parametrize(
    ("number", "action"),
    [(CLONE3, answer(errno.ENOSYS)), (BRK, answer(errno.EPERM)), (MMAP, LOG)],
)
def test_what_can_be_done_without(number: int, action: int, where: Path, spawn: Spawn, tmp_path: Path) -> None:
    Room(spawn, [where, forbid_only(tmp_path / "filter", number, action)]).measure()


def test_a_filter_that_cannot_be_read_is_a_note(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    room = Room(spawn, [where, container_profile(tmp_path / "filter")])

    def check() -> str:
        return " ".join(check_target(Target(room.pid)))

    assert "cannot read (that requires CAP_SYS_ADMIN" in run_as(0, ["CAP_SYS_PTRACE", "CAP_DAC_OVERRIDE"], check)
    room.call(3)


def test_a_filter_from_before_the_program(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    """glibc's start was refused rseq: then its new threads do not ask for it, and all is well."""
    path = forbid_only(tmp_path / "filter", RSEQ, answer(errno.EPERM))
    Room(spawn, [where], preexec_fn=lambda: install(path)).measure()


def test_filters_as_the_kernel_gives_them(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    paths = [container_profile(tmp_path / "first"), forbid_only(tmp_path / "second", BRK, answer(errno.EBUSY))]
    room = Room(spawn, [where, *paths])
    programs = read_filters(room.pid)
    assert programs is not None
    assert [len(program) * 8 for program in programs] == [path.stat().st_size for path in paths]
    assert judge(programs, SystemCall(BRK, ())).error == errno.EBUSY
    assert judge(programs, SystemCall(MMAP, ())).is_allowed
    assert judge(programs, SystemCall(165, ())).error == errno.EPERM  # mount
    assert judge(programs, SystemCall(CLONE, (0x10000000,))).error == errno.EPERM  # CLONE_NEWUSER
    assert judge(programs, SystemCall(CLONE, (0x3D0F00,))).is_allowed


def probe_with_counters(room: Room) -> tuple[Probed, int]:
    """A whole session with counters of the kernel that no processor counts, and how many of their pages there were."""
    probed = Probed(room.pid, ["*:step"])
    probed.monitor.counters = choose_counters("task-clock,page-faults").counters
    pages = 0
    with probed:
        room.call(50)
        if not probed.target.counters_forbidden:
            assert wait_until(lambda: room.maps().count("[perf_event]") >= 2)
        room.call(50)
        pages = room.maps().count("[perf_event]")
    probed.assert_exact()
    return probed, pages


def test_counters_where_the_filter_allows_them(where: Path, spawn: Spawn, tmp_path: Path) -> None:
    calls = (*injection_calls(False, True), *COUNTER_CALLS)
    path = allow_only(tmp_path / "filter", {call.number for call in calls} | OWN_CALLS, KILL_PROCESS)
    room = Room(spawn, [where, path])
    for _ in range(2):
        probed, pages = probe_with_counters(room)
        assert pages >= 2
        assert not any("handed" in said for said in probed.said)


def test_counters_that_the_filter_forbids(where: Path, spawn: Spawn, tmp_path: Path, nfprobe: Any) -> None:
    """One sentence, and the session goes on; whoever asked for them by name is refused before anything is touched."""
    room = Room(spawn, [where, forbid_only(tmp_path / "filter", SOCKETPAIR, KILL_PROCESS)])
    probed, pages = probe_with_counters(room)
    assert pages == 0
    reason = "its seccomp filter kills it for socketpair"
    assert [said for said in probed.said if "counters" in said] == [
        f"The counters cannot be passed to process {room.pid}: {reason}. Times only."
    ]
    target = Target(room.pid)
    check_target(target)
    with pytest.raises(NfprobeError, match=reason):
        check_counting(target, CounterChoice(counters=(Counter("cycles", (Event(0),)),)))
    check_counting(target, CounterChoice(auto=True, counters=(Counter("cycles", (Event(0),)),)))
