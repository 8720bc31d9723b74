# SPDX-License-Identifier: Apache-2.0
"""Code changed under fire: functions at every alignment, called all the time, while their sites are toggled.

The target (tests/targets/patching.c) has its own trampolines, so nothing but the change is tested. Its oracle:
every function counts its calls, every caller what it called and whether each result is right.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import ffi, lib
from otel_nfprobe.probes.inject import inject
from otel_nfprobe.shm.session import Session
from otel_nfprobe.target.target import Target
from tests.support.probed import Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

ALIGNMENTS = 64
LONG_BYTES, SHORT_BYTES, ISLAND_BYTES = 7, 3, 5
SHORT_FUNCTION_BYTES = 3 + 6 + 8 + 1  # what stands before the island
PATIENCE_NS = 30_000_000_000


class Sites:
    """The sites of a target of tests/targets/patching.c, and the session that its helper thread serves."""

    def __init__(self, talker: Talker, binary: Path) -> None:
        self.talker = talker
        self.target = Target(talker.pid)
        self.session: Session = inject(self.target, 1 << 16).session
        assert self.session.ask(lib.NFP_COMMAND_SYNC_CORE, lib.NFP_SYNC_REGISTER) == 0
        base = next(module.base for module in self.target.modules() if module.path == str(binary))
        lines = subprocess.run(["nm", "--defined-only", str(binary)], check=True, capture_output=True, text=True)
        address = {name: base + int(value, 16) for value, _, name in map(str.split, lines.stdout.splitlines())}
        self.count = 2 * ALIGNMENTS
        self.old = ffi.new("struct nfp_change[]", self.count)
        self.new = ffi.new("struct nfp_change[]", self.count)
        for k in range(ALIGNMENTS):
            self._describe(2 * k, address[f"long_{k}"], address[f"way_long_{k}"], 0)
            site = address[f"short_{k}"]
            self._describe(2 * k + 1, site, address[f"way_short_{k}"], site + SHORT_FUNCTION_BYTES)
        self.traps = self.stops = self.children = self.moved = 0

    def _describe(self, index: int, site: int, trampoline: int, island: int) -> None:
        size = SHORT_BYTES if island else LONG_BYTES
        old = self.target.read(site, size)
        jump = b"\xe9" + (trampoline - (site + 5)).to_bytes(4, "little", signed=True)
        new = jump + b"\xcc" * (size - 5)
        empty = long_jump = bytes(ISLAND_BYTES)
        if island:
            new = b"\xeb" + bytes([island - (site + 2)]) + old[2:]
            long_jump = b"\xe9" + (trampoline - (island + 5)).to_bytes(4, "little", signed=True)
            empty = self.target.read(island, ISLAND_BYTES)
            assert empty == b"\xcc" * ISLAND_BYTES
        for change, before, after, pad, filled in (
            (self.new[index], old, new, empty, long_jump),
            (self.old[index], new, old, long_jump, empty),
        ):
            change.address, change.bytes, change.island, change.trampoline = site, size, island, trampoline
            ffi.memmove(change.expected, before, size)
            ffi.memmove(change.replacement, after, size)
            ffi.memmove(change.island_expected, pad, ISLAND_BYTES)
            ffi.memmove(change.island_replacement, filled, ISLAND_BYTES)

    def change(self, arm: bool, patience_ns: int = PATIENCE_NS) -> Any:
        """All sites, live. Returns struct nfp_live, with the function's result in `result`."""
        where = {"pid": self.target.pid, "memory_fd": self.target.memory.descriptor}
        live = ffi.new("struct nfp_live *", {**where, "restores": not arm, "patience_ns": patience_ns})
        changes = self.new if arm else self.old
        self.result = lib.nfp_change_live(live, self.session.header, changes, self.count)
        self.failed = [int(change.failed) for change in changes]
        self.traps += live.traps
        self.stops += live.stops
        self.children += live.children
        self.moved += live.moved
        return live

    def toggle(self, arm: bool) -> None:
        """All sites, live, which must work."""
        live = self.change(arm)
        text = ffi.string(live.message).decode()
        assert (self.result, live.changed) == (0, self.count), (text, set(self.failed))
        assert set(self.failed) == {lib.NFP_CHANGE_MADE}

    def are_as_before(self) -> bool:
        """Whether every site and island has its old bytes."""
        return all(
            self.target.read(int(change.address), int(change.bytes))
            == bytes(ffi.buffer(change.expected))[: change.bytes]
            and (not change.island or self.target.read(int(change.island), ISLAND_BYTES) == b"\xcc" * ISLAND_BYTES)
            for change in self.new
        )


@pytest.fixture
def sites(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Iterator[Sites]:
    binary = compile_target("patching")
    made = Sites(Talker(spawn(binary, stdin=subprocess.PIPE)), binary)
    yield made
    made.session.leave()
    made.session.close()


@contextmanager
def hogs() -> Iterator[None]:
    """Something else that wants every CPU."""
    started = [
        subprocess.Popen(["taskset", "-c", str(cpu), "sh", "-c", "while :; do :; done"])
        for cpu in sorted(os.sched_getaffinity(0))
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_rounds(sites: Sites, command: str, rounds: int, budget_s: float = 6.0) -> None:
    """Toggles while the target does `command`, and checks what it says and that it is as it was.

    Ends early when the machine is so busy that the budget is used up.
    """
    before = sites.talker.ask("through")
    assert sites.talker.ask(command) == "started"
    start = time.monotonic()
    for number in range(rounds):
        if number > 1 and time.monotonic() - start > budget_s:
            break
        sites.toggle(arm=True)
        if number == 0:  # the callers may all be without a processor meanwhile
            assert wait_until(lambda: sites.talker.ask("through") != before), "no call came through"
        sites.toggle(arm=False)
    assert sites.talker.ask("stop") == "right"
    assert sites.are_as_before()
    through = int(sites.talker.ask("through"))
    assert through > 0, "no call was made while the probes were in place"
    assert int(sites.talker.ask("through")) == through


def test_sixty_four_threads_and_hogs(sites: Sites) -> None:
    with hogs():
        run_rounds(sites, "start 64", 10)


@pytest.mark.long
def test_hundred_thousand_toggles(sites: Sites) -> None:
    with hogs():
        run_rounds(sites, "start 64", 100_000 // (2 * sites.count), float("inf"))


def test_two_busy_threads(sites: Sites) -> None:
    run_rounds(sites, "start 2", 40)
    assert sites.traps > 0


def test_threads_that_are_made_meanwhile(sites: Sites) -> None:
    run_rounds(sites, "storm", 30)


def test_children_that_are_made_meanwhile(sites: Sites) -> None:
    run_rounds(sites, "children", 40)
    assert sites.children > 0


def test_signals_that_arrive_meanwhile(sites: Sites) -> None:
    run_rounds(sites, "signals", 40)


def test_own_trap_handler_installed_before(sites: Sites) -> None:
    assert sites.talker.ask("handler") == "installed"
    run_rounds(sites, "traps", 40)
    assert sites.talker.ask("handled") == "mine"


def test_own_trap_handler_installed_after(sites: Sites) -> None:
    sites.toggle(arm=True)
    assert sites.talker.ask("handler") == "installed"
    sites.toggle(arm=False)
    run_rounds(sites, "traps", 20)
    assert sites.talker.ask("handled") == "mine"


def test_handler_survives_traps_in_moments_that_block_it(sites: Sites) -> None:
    """A thread that is seen to block SIGTRAP for long makes the change be refused; one that does not is no reason."""
    assert sites.talker.ask("handler") == "installed"
    assert sites.talker.ask("moments") == "started"
    for number in range(40):
        sites.change(arm=number % 2 == 0)
        assert sites.talker.ask("handled") == "mine"
    if not sites.are_as_before():
        assert wait_until(lambda: sites.change(arm=False) is not None and sites.are_as_before())
    assert sites.talker.ask("stop") == "right"
    assert sites.are_as_before()
    assert sites.talker.ask("handled") == "mine"


def test_blocked_while_it_waits_for_a_processor(sites: Sites) -> None:
    """A thread that does not run cannot unblock SIGTRAP: that it blocks it all the time is no reason to refuse."""
    before = set(os.listdir(f"/proc/{sites.target.pid}/task"))
    assert sites.talker.ask("moments") == "started"
    (tid,) = (int(name) for name in set(os.listdir(f"/proc/{sites.target.pid}/task")) - before)
    os.setpriority(os.PRIO_PROCESS, tid, 19)
    with hogs():
        for _ in range(3):
            sites.toggle(arm=True)
            sites.toggle(arm=False)
    os.setpriority(os.PRIO_PROCESS, tid, 0)
    assert sites.talker.ask("stop") == "right"
    assert sites.are_as_before()


@pytest.mark.parametrize(("command", "reason"), [("block 1", "blocks SIGTRAP"), ("ignore", "ignores SIGTRAP")])
def test_target_without_traps_is_left_alone(sites: Sites, command: str, reason: str) -> None:
    assert sites.talker.ask(command) == "done"
    live = sites.change(arm=True)
    assert sites.result < 0
    assert reason in ffi.string(live.message).decode()
    assert set(sites.failed) == {lib.NFP_CHANGE_LEFT}
    assert sites.are_as_before()


def test_stopped_and_continued_meanwhile(sites: Sites) -> None:
    """SIGSTOP stops the helper thread, too: the change is brought to its end without it."""
    assert sites.talker.ask("start 2") == "started"
    stopper = subprocess.Popen(
        [
            "sh",
            "-c",
            f"for i in 1 2 3 4 5 6 7 8 9 10; do kill -STOP {sites.target.pid}; kill -CONT {sites.target.pid}; done",
        ]
    )
    while stopper.poll() is None:
        sites.change(arm=True)
        sites.change(arm=False)
    if not sites.are_as_before():
        sites.change(arm=False)
    assert sites.are_as_before()
    assert sites.talker.ask("stop") == "right"


def test_stopped_target_stays_stopped(sites: Sites) -> None:
    os.kill(sites.target.pid, signal.SIGSTOP)
    stat = Path(f"/proc/{sites.target.pid}/stat")

    def is_stopped() -> bool:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"

    assert wait_until(is_stopped)
    live = sites.change(arm=True, patience_ns=500_000_000)
    assert sites.result < 0
    assert "does not answer" in ffi.string(live.message).decode()
    assert sites.are_as_before()
    assert wait_until(is_stopped)
    os.kill(sites.target.pid, signal.SIGCONT)
    run_rounds(sites, "start 2", 2)


def test_unexpected_bytes_are_left_alone(sites: Sites) -> None:
    sites.new[5].expected[1] ^= 0xFF
    live = sites.change(arm=True)
    assert (sites.result, live.changed) == (0, sites.count - 1)
    assert sites.failed[5] == lib.NFP_CHANGE_UNEXPECTED
    sites.change(arm=False)
    assert sites.failed[5] == lib.NFP_CHANGE_UNEXPECTED
    sites.new[5].expected[1] ^= 0xFF
    assert sites.are_as_before()
