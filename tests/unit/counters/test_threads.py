# SPDX-License-Identifier: Apache-2.0
"""Threads that cannot have their counters: one sentence for each reason, with what to do; the others go on."""

from __future__ import annotations

import errno
import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from otel_nfprobe.counters.availability import Surroundings
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.devices import Event
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.shm.threadtable import Claim
from tests.unit.counters.test_availability import FakeKernel, around

assert around  # the fixture
COUNTERS = tuple(Counter(name, (Event(0, config),)) for config, name in enumerate(("a", "b", "c")))
HERE = frozenset(os.sched_getaffinity(0))


class Threads(ThreadCounters):
    """Of a session that has one thread, and takes any descriptors."""

    def __init__(self, kernel: FakeKernel, around: Surroundings, counters: tuple[Counter, ...] = COUNTERS) -> None:
        self.answer = 0
        self.claims, self.foreign = [Claim(3, os.getpid(), 1)], set[int]()
        session: Any = SimpleNamespace(
            threads=SimpleNamespace(living=lambda: self.claims),
            holds_thread=lambda tid: tid not in self.foreign,
            ask=lambda *words: self.answer,
            pid=os.getpid(),
        )
        self.said: list[str] = []
        super().__init__(session, counters, self.said.append, kernel=kernel, around=around)
        self._channel, self.other = socket.socketpair()

    def _hand_over(self, index: int, group: Any) -> None:
        if self.answer:
            raise OSError(-self.answer, os.strerror(-self.answer))


class ThreadKernel(FakeKernel):
    """As FakeKernel, for threads of others."""

    def open(self, counter: Counter, event: Event, tid: int, group: int = -1, disabled: bool = True) -> int:
        return super().open(counter, event, 0, group, disabled)


@pytest.fixture
def kernel() -> FakeKernel:
    return ThreadKernel()


def follow(threads: Threads) -> list[str]:
    """What is said of a thread that is looked at twice."""
    threads.follow()
    threads.follow()
    threads.close()
    threads.other.close()
    assert threads.kernel.open_now == {}  # type: ignore[attr-defined]
    return threads.said


def test_nothing_is_said_where_all_is_well(kernel: FakeKernel, around: Surroundings) -> None:
    threads = Threads(kernel, around)
    assert follow(threads) == []
    assert kernel.calls == ["0", "1", "2", "enable", "disable"]


def test_hybrid(kernel: FakeKernel, around: Surroundings) -> None:
    """A thread that stays on cores of one kind, and a counter that only the other kind has."""
    elsewhere = frozenset({max(HERE) + 1})
    kernel.errors = {7: errno.EINVAL}
    threads = Threads(kernel, around, (COUNTERS[0], Counter("only-core", (Event(4, 7, cpus=elsewhere),))))
    assert follow(threads) == ["A thread is not counted: the cores it may run on cannot count only-core"
                               " (next: perf list)."]  # fmt: skip
    assert list(threads.refused.values()) == [1]


def test_more_than_fit(kernel: FakeKernel, around: Surroundings) -> None:
    kernel.room = 2
    (said,) = follow(Threads(kernel, around))
    assert "cannot count so many at once: no counter is left for c (next: nfprobe doctor)" in said


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_rights(kernel: FakeKernel, around: Surroundings, number: int) -> None:
    kernel.errors = {0: number}
    (said,) = follow(Threads(kernel, around))
    assert "this user may not count in it: it has another user or more privileges (next: sudo nfprobe attach)" in said


def test_held_by_others(kernel: FakeKernel, around: Surroundings) -> None:
    """By the watchdog; later, when a pinned group has come into its error state, by anybody."""
    (around.proc / "sys/kernel/nmi_watchdog").write_text("1")
    kernel.errors = {1: errno.EBUSY}
    (said,) = follow(Threads(kernel, around))
    assert said.endswith("the kernel's NMI watchdog uses one on each CPU (next: sysctl kernel.nmi_watchdog=0).")
    kernel.errors, kernel.count = {}, None
    (said,) = follow(Threads(kernel, around))
    assert "no counters are left beside those used by other programs or the NMI watchdog" in said


def test_what_the_target_answers(kernel: FakeKernel, around: Surroundings) -> None:
    threads = Threads(kernel, around)
    threads.answer = -errno.ENOMEM
    assert follow(threads) == ["A thread is not counted: Cannot allocate memory."]


def test_a_thread_of_another_process_gets_nothing(kernel: FakeKernel, around: Surroundings) -> None:
    """It ended, and its number went to somebody else, before the counters were opened or after that."""
    threads = Threads(kernel, around)
    threads.foreign.add(os.getpid())
    assert follow(threads) == []
    assert kernel.calls == []


def test_a_number_that_is_used_again_is_another_thread(kernel: FakeKernel, around: Surroundings) -> None:
    threads = Threads(kernel, around)
    threads.follow()
    threads.claims = [Claim(3, os.getpid(), 2)]
    assert follow(threads) == []
    assert kernel.calls == ["0", "1", "2", "enable", "disable"] * 2
