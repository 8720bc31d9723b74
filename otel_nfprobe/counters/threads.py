# SPDX-License-Identifier: Apache-2.0
"""Threads: assigns counters to each measured thread of a target, and withdraws them.

A pinned group per thread is opened here, by the privileged process; its descriptors are sent to the helper thread
through a socket pair that the helper creates, and the helper maps them (native/probe/counter_pages.c). Counters that a
thread cannot have are reported once; its calls are marked as not counted.
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

HELPER = THREAD_COUNT  # in place of a thread table index: the helper thread, during calibration
LOOK_S = 1.0  # interval of checking groups for their error state


@dataclass(eq=False)
class ThreadGroup:
    """The counters of one thread while it has them: their descriptors, the leader's first; empty: refused."""

    tid: int
    descriptors: list[int]
    said: bool = False
    start_ticks: int = 0  # of its claim: another thread may reuse its ID


@dataclass
class ThreadCounters:
    """The counters of all threads of one session.

    Attributes:
        counters: what is counted, in the order of the readings.
        notify: reports to the user, once per reason.
        forbidden: why the target's seccomp filter prevents counting, or "".
        refused: threads without counters, by reason.
        relieve: removes from a group that does not count any events added by others; returns whether there were any.
        change: number of counter changes, which readings carry.
    """

    session: Session
    counters: tuple[Counter, ...]
    notify: Callable[[str], None]
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
        """Sets up the channel for descriptors. False: this target cannot be counted, which has been reported."""
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
            self.notify(f"The counters cannot be passed to process {self.session.pid}: {reason}. Times only.")
            return False
        return True

    def begin_anew(self, counters: tuple[Counter, ...]) -> bool:
        """Withdraws the counters of all threads; `follow` assigns the new ones. False: none can be passed."""
        self._release_all()
        self.counters = counters
        self.change += 1
        self._said.clear()
        return bool(counters) and (self._channel is not None or self.begin())

    def calibrate(self, arenas: Arenas, module: Module, meanwhile: Callable[[], object] = lambda: None) -> Compensation:
        """Returns what the probes themselves add to counters, measured on the helper thread; if impossible, reports
        that.

        Args:
            module: any module with trampolines nearby.
            meanwhile: called repeatedly during the measurement.
        """
        group = ThreadGroup(self.session.helper_tid, [])
        try:
            self._count(HELPER, group)
            return calibrate_counters(self.session, arenas, module, len(self.counters), meanwhile=meanwhile)
        except (OSError, NfprobeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error.sentence
            self.notify(f"The counts of the probes themselves are not subtracted: {reason}.")
            return Compensation()
        finally:
            self._withdraw(HELPER, group)

    def groups(self) -> dict[int, ThreadGroup]:
        """Returns the groups that are counting, by thread ID."""
        return {group.tid: group for group in self._groups.values() if group.descriptors}

    def follow(self) -> None:
        """Assigns counters to new threads, and withdraws those of ended threads."""
        if self._channel is None or not self.counters:
            return
        threads = {claim.index: claim for claim in self.session.threads.living()}
        for index in [index for index, group in self._groups.items() if not _is_of(group, threads.get(index))]:
            self._release(index)
        for index, claim in threads.items():
            if index not in self._groups:
                self._open(claim)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_S
            self._look()

    def close(self) -> None:
        """Withdraws all counters; running threads are not disturbed."""
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
        if opened == len(self.counters) or not cpus:  # not the kernel: passing them failed
            return error.strerror or "unknown error"
        refusal = explain_thread(error, self.counters[opened], opened > 0, cpus, self.kernel, self.around)
        return f"{refusal.reason} (next: {refusal.advice})"

    def _count(self, index: int, group: ThreadGroup) -> None:
        if not self.session.holds_thread(group.tid):
            raise ProcessLookupError(errno.ESRCH, "the target names a thread that does not exist")
        cpus = os.sched_getaffinity(group.tid)
        for counter in self.counters:
            leader = group.descriptors[0] if group.descriptors else -1
            group.descriptors.append(self.kernel.open(counter, counter.event_for(cpus), group.tid, leader))
        if not self.session.holds_thread(group.tid):  # of another process: its counters must not go to the target
            raise ProcessLookupError(errno.ESRCH, "the thread has ended")
        self._hand_over(index, group)
        self.kernel.enable(group.descriptors[0])

    def _hand_over(self, index: int, group: ThreadGroup) -> None:
        assert self._channel is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", group.descriptors))]
        # A target that does not read must not block the monitor (socket.send_fds ignores flags).
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
                    self._refuse("no counters are left beside those used by other programs or the NMI watchdog")

    def _refuse(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            self.notify(f"A thread is not counted: {reason}.")
        self.refused[reason] = self.refused.get(reason, 0) + 1

    def _release_all(self) -> None:
        for index in list(self._groups):
            self._release(index)

    def _release(self, index: int) -> None:
        self._withdraw(index, self._groups[index])
        del self._groups[index]

    def _withdraw(self, index: int, group: ThreadGroup) -> None:
        if group.descriptors:
            # Stop first: the page that stays mapped must not expose a counter.
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
