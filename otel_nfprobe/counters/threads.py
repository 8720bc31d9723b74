# SPDX-License-Identifier: Apache-2.0
"""Threads: gives each measured thread of a target its counters, and takes them back.

A pinned group per thread is opened here, where the rights are; its descriptors go to the helper thread through a socket
pair that the helper makes, and it maps them (native/probe/counter_pages.c). Counters that a thread cannot have are said
once; its calls are marked as not counted. Called by monitor.py, several times in 250 ms.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from otel_nfprobe._core import lib
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.counters.availability import Surroundings, explain_thread
from otel_nfprobe.counters.choice import Counter
from otel_nfprobe.counters.compensation import Compensation, calibrate_counters
from otel_nfprobe.counters.perf import Kernel
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.linux.descriptors import take_channel
from otel_nfprobe.probes.arena import Arenas
from otel_nfprobe.shm.session import THREAD_COUNT, Session
from otel_nfprobe.shm.threadtable import Claim

HELPER = THREAD_COUNT  # instead of a thread table index: the helper thread, while it calibrates
LOOK_S = 1.0  # how often groups are looked at for their error state


@dataclass(eq=False)
class ThreadGroup:
    """The counters of one thread, as long as it has these: their descriptors, the leader's first; none: refused."""

    tid: int
    descriptors: list[int]
    said: bool = False
    start_ticks: int = 0  # of its claim: the next thread may have its number


@dataclass
class ThreadCounters:
    """The counters of all threads of one session.

    Attributes:
        counters: what is counted, in the order of the readings.
        say: tells a person, once for each reason.
        forbidden: why the target's seccomp filter does not let it be counted, or "".
        refused: threads without counters, by reason.
        relieve: takes out of a group that does not count what somebody has put there; says whether that was anything.
        change: how often the counters were changed, which the readings say.
    """

    session: Session
    counters: tuple[Counter, ...]
    say: Callable[[str], None]
    forbidden: str = ""
    kernel: Kernel = field(default_factory=Kernel)
    around: Surroundings = field(default_factory=Surroundings)
    refused: dict[str, int] = field(default_factory=dict)
    change: int = 0
    relieve: Callable[[int], bool] = lambda tid: False
    _groups: dict[int, ThreadGroup] = field(default_factory=dict)  # by thread table index
    _channel: socket.socket | None = None
    _look_at: float = 0.0
    _said: set[str] = field(default_factory=set)

    def begin(self) -> bool:
        """Prepares the way of the descriptors. False: this target cannot be counted, which has been said."""
        if not self.counters:
            return False
        try:
            if self.forbidden:
                raise OSError(errno.EPERM, self.forbidden)
            descriptor = self.session.ask(lib.NFP_COMMAND_COUNTERS)
            if descriptor < 0:
                raise OSError(-descriptor, os.strerror(-descriptor))
            self._channel = socket.socket(fileno=take_channel(self.session.pid, descriptor))
        except (OSError, NfprobeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.sentence.rstrip(".")
            self.say(f"The counters cannot be handed to process {self.session.pid}: {reason}. Times only.")
            return False
        return True

    def begin_anew(self, counters: tuple[Counter, ...]) -> bool:
        """Takes the counters of all threads back; `follow` gives them these ones. False: none can be handed over."""
        self._release_all()
        self.counters = counters
        self.change += 1
        self._said.clear()
        return bool(counters) and (self._channel is not None or self.begin())

    def calibrate(self, arenas: Arenas, module: Module, meanwhile: Callable[[], object] = lambda: None) -> Compensation:
        """What the probes themselves count, measured on the helper thread; nothing where that cannot be, which is said.

        Args:
            module: any that trampolines lie near.
            meanwhile: called now and then meanwhile.
        """
        group = ThreadGroup(self.session.helper_tid, [])
        try:
            self._count(HELPER, group)
            return calibrate_counters(self.session, arenas, module, len(self.counters), meanwhile=meanwhile)
        except (OSError, NfprobeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.sentence
            self.say(f"What the probes themselves count is not taken off: {reason}.")
            return Compensation()
        finally:
            self._take_back(HELPER, group)

    def groups(self) -> dict[int, ThreadGroup]:
        """Those that count now, by tid."""
        return {group.tid: group for group in self._groups.values() if group.descriptors}

    def follow(self) -> None:
        """Gives counters to threads that have none yet, and takes those of ended threads back."""
        if self._channel is None or not self.counters:
            return
        threads = {claim.index: claim for claim in self.session.living_threads()}
        for index in [index for index, group in self._groups.items() if not _is_of(group, threads.get(index))]:
            self._release(index)
        for index, claim in threads.items():
            if index not in self._groups:
                self._open(claim)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look()

    def close(self) -> None:
        """Takes all counters back; threads that run meanwhile are not disturbed."""
        with suppress(NfprobeError):
            self._release_all()
        for group in self._groups.values():
            self._close(group)
        self._groups.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _open(self, claim: Claim) -> None:
        group = self._groups[claim.index] = ThreadGroup(claim.tid, [], start_ticks=claim.start_ticks)
        try:
            self._count(claim.index, group)
        except ProcessLookupError:
            self._close(group)
        except OSError as error:
            opened = len(group.descriptors)
            self._close(group)
            self._refuse(self._explain(error, claim.tid, opened))

    def _explain(self, error: OSError, tid: int, opened: int) -> str:
        cpus: set[int] = set()
        with suppress(ProcessLookupError):
            cpus = os.sched_getaffinity(tid)
        if opened == len(self.counters) or not cpus:  # not the kernel: handing them over
            return error.strerror or "unknown error"
        refusal = explain_thread(error, self.counters[opened], opened > 0, cpus, self.kernel, self.around)
        return f"{refusal.reason} (next: {refusal.advice})"

    def _count(self, index: int, group: ThreadGroup) -> None:
        if not self.session.holds_thread(group.tid):
            raise ProcessLookupError(errno.ESRCH, "the target names a thread that it does not have")
        cpus = os.sched_getaffinity(group.tid)
        for counter in self.counters:
            leader = group.descriptors[0] if group.descriptors else -1
            group.descriptors.append(self.kernel.open(counter, counter.event_for(cpus), group.tid, leader))
        if not self.session.holds_thread(group.tid):  # of another process: nothing of its counters goes to the target
            raise ProcessLookupError(errno.ESRCH, "the thread has ended")
        self._hand_over(index, group)
        self.kernel.enable(group.descriptors[0])

    def _hand_over(self, index: int, group: ThreadGroup) -> None:
        assert self._channel is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", group.descriptors))]
        # A target that reads nothing must not make the monitor wait (socket.send_fds takes no notice of flags).
        self._channel.sendmsg([b"c"], rights, socket.MSG_DONTWAIT)
        result = self.session.ask(lib.NFP_COMMAND_COUNT, index, len(group.descriptors), 0, self.change)
        if result != 0:
            raise OSError(-result, os.strerror(-result))

    def _look(self) -> None:
        for group in self._groups.values():
            if not group.descriptors or group.said:
                continue
            with suppress(OSError):
                if self.kernel.read(group.descriptors[0]) is None and not self.relieve(group.tid):
                    group.said = True
                    self._refuse("they do not fit beside those that other programs or the NMI watchdog hold")

    def _refuse(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"A thread is not counted: {reason}.")
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _release_all(self) -> None:
        for index in list(self._groups):
            self._release(index)

    def _release(self, index: int) -> None:
        self._take_back(index, self._groups[index])
        del self._groups[index]

    def _take_back(self, index: int, group: ThreadGroup) -> None:
        if group.descriptors:
            # Stopped first: the page that stays mapped must hold no counter.
            with suppress(OSError):
                self.kernel.disable(group.descriptors[0])
            self.session.ask(lib.NFP_COMMAND_COUNT, index, 0)
        self._close(group)

    def _close(self, group: ThreadGroup) -> None:
        for descriptor in reversed(group.descriptors):
            self.kernel.close(descriptor)
        group.descriptors = []


def _is_of(group: ThreadGroup, claim: Claim | None) -> bool:
    return claim is not None and (group.tid, group.start_ticks) == (claim.tid, claim.start_ticks)
