# SPDX-License-Identifier: Apache-2.0
"""Forks: sessions on the children that a measured process forks (`--follow-forks`).

A forked child starts with its parent's code, probes in place, and with closed gates. Its session begins with a
copy of the parent's probe table, so that function ids keep their meaning and its code can be restored:

    found -> still there a moment later, not another program -> inject -> table copied -> gates open -> drained
          -> it ends, or its parent's session does: detached as any target

Trampolines of the parent lie in the parent's memory file, which the child has mapped for good: they are used and
never written through the child's session. Each child has a thread of the monitor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from otel_nfprobe._core import ffi
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.counters.compensation import Compensation
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.drain import SpanPath
from otel_nfprobe.monitor.fork_tracker import COPY, ENDED, Family, Search
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.trampoline import Probe, Trampolines
from otel_nfprobe.recording.recording import RecordingWriter

LOOK_S = 0.05  # how often new processes are looked for
SETTLE_S = 0.01  # a process that is about to start another program does so before
CHILDREN_MAX = 64  # measured at the same time
SAID_MAX = 8  # children that a sentence is said about
ATTEMPTS = 10  # the live patcher may trace a new child for a moment; a busy machine may let the helper give up
ATTEMPT_PAUSE_S = 0.05
ATTEMPTS_S = 5.0  # after that no other: who does not answer keeps the other children waiting
SOURCE_PATIENCE_S = 2.0  # until the session of the process that has forked a child is known
CHILD_PAUSE_S = 0.02  # at most, between rounds of a child's drain


class Measured(Protocol):
    """What is done with a child's monitor: a session with its outputs."""

    def start(self) -> None:
        """Puts the session in place; raises NfprobeError when nothing is measured."""

    def run(self, progress: Callable[[], None]) -> None:
        """Until the child ends, or its monitor is told to stop."""

    def finish(self) -> dict[str, Any]:
        """Closes what is open. Returns the summary object."""


class ChildAttachment(Attachment):
    """The probes in one forked child.

    Args:
        source: those of the process that forked it.
        pid: of the child.
        turn: held while the child is changed. Who does that works at the highest priority: several of them at once
            leave the children no CPU to come to where they can be changed.

    Raises:
        NfprobeError: it has ended.
    """

    def __init__(self, source: Attachment, pid: int, turn: threading.Lock) -> None:
        target = type(source.target)(pid)
        target.take_modules(source.target)
        choice = replace(
            source.choice,
            plans=list(source.choice.plans),
            by_slot=list(source.choice.by_slot),
            modules=target.modules(),
            refused={},
            _anchors={},
        )
        super().__init__(target, choice, source.ring_bytes, source.say, identity=source.identity)
        self._source = source
        self._turn = turn
        self.costs = source.costs
        self.uncovered = source.uncovered

    def attach(self) -> None:
        """As Attachment.attach, when it is this child's turn."""
        with self._turn:
            super().attach()

    def disarm(self) -> None:
        """As Attachment.disarm, when it is this child's turn."""
        with self._turn:
            super().disarm()

    def arm(self) -> None:
        """Takes the probes over that stand in the child, and puts those in place that do not."""
        self.texts.adopt(self._source.texts)
        self.write_programs()
        standing, absent = self._copy_table()
        self.check_not_stopped()
        trampolines = Trampolines(self.session, self.target)
        made, refused = trampolines.make([probe.request for probe in absent])
        placed, differ = self.patcher.arm(made)
        for reasons in (refused, differ):
            for reason, count in reasons.items():
                self.choice.refuse(reason, count)
        self.probes = standing + placed
        if not self.probes:
            raise NfprobeError(f"Process {self.target.pid} has none of the probes of the process that forked it.")
        self.make_follower(trampolines)

    def _copy_table(self) -> tuple[list[Probe], list[Probe]]:
        """Takes over the source's probes. Returns those that stand in the child, and those that do not.

        A probe stands in the child when it did in its parent at the fork; others may have come since.
        """
        source, own = self._source.session, self.session
        probes = list(self._source.probes)
        own.probe_count = source.probe_count
        present = {id(module) for module in self.choice.modules}
        standing: list[Probe] = []
        absent: list[Probe] = []
        for probe in probes:
            entry = own.probe(probe.id)
            ffi.memmove(entry, source.probe(probe.id), ffi.sizeof("struct nfp_probe"))
            own.patches.mark(probe.id, False)
            if self.patcher.is_in_place(probe.id):
                own.patches.mark(probe.id, True)
                standing.append(probe)
                continue
            if self.patcher.is_left_behind(probe.id):
                own.patches.mark(probe.id, True)  # restored with the others
                continue
            ffi.memmove(entry, ffi.new("struct nfp_probe *"), ffi.sizeof("struct nfp_probe"))
            own.patches.publish(probe.id)
            if id(probe.request.plan.module) in present:
                absent.append(probe)
        return standing, absent


class ChildMonitor(Monitor):
    """The session on one forked child.

    Args:
        source: the session of the process that forked it.
        pid: of the child.
        turn: held while the child is changed.

    Raises:
        NfprobeError: it has ended.
    """

    def __init__(self, source: Monitor, pid: int, turn: threading.Lock) -> None:
        super().__init__(ChildAttachment(source.attachment, pid, turn), source.packets, policy=source.policy)
        self._source = source
        self.counters, self.software_counters = source.counters, source.software_counters

    def start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        """As Monitor.start; many drains share a CPU, so they pause as long as the rings allow."""
        super().start(clock, recording, spans)
        self.drain.longest_pause_s = CHILD_PAUSE_S

    def calibrate_counters(self) -> Compensation:
        """Its trampolines are the parent's."""
        return self._source.compensation


class Forks:
    """Follows the children of one measured process, and theirs.

    Args:
        parent: a session that has begun.
        measure: makes the session with its outputs of a child's monitor.
        say: tells a person what happens.

    Attributes:
        summaries: of the children whose sessions are over.
        missed: children that ended before they could be measured, or could not be.
    """

    def __init__(
        self, parent: Monitor, measure: Callable[[ChildMonitor], Measured], say: Callable[[str], None]
    ) -> None:
        self._measure = measure
        self._say = say
        self._parent = parent
        self._family = Family(parent)
        self._search = Search(self._family)
        self._found: dict[int, float] = {}  # when, by pid
        self._at_work: dict[int, threading.Thread] = {}
        self._monitors: dict[int, ChildMonitor] = {}
        self._measured: set[int] = set()
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forks", daemon=True)
        self._said = 0
        self._is_full = False
        self.summaries: list[dict[str, Any]] = []
        self.missed = 0

    def start(self) -> None:
        """Begins to look for children."""
        self._thread.start()

    @property
    def measured(self) -> list[int]:
        """Process ids of the children that are measured now."""
        with self._lock:
            return sorted(self._measured)

    def stop(self) -> None:
        """Looks for no more children and tells the sessions on those that there are to end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            for monitor in self._monitors.values():
                monitor.attachment.stopping.set()

    def end(self) -> None:
        """Waits until every child is as it was; after that the summaries are complete."""
        self.stop()
        for thread in list(self._at_work.values()):
            thread.join()
        self.missed += len(self._found)
        self._found.clear()
        if self.missed:
            self._say(f"{self.missed} forked children were not measured: they ended too soon, or could not be probed.")

    # ---- finding -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            now = time.monotonic()
            self._found.update((pid, now) for pid in self._search.look())
            for pid, since in list(self._found.items()):
                if now - since >= SETTLE_S:
                    self._consider(pid, now - since)
            unsettled = any(now - since < SETTLE_S for since in self._found.values())
            self._stopping.wait(SETTLE_S if unsettled else LOOK_S)

    def _consider(self, pid: int, waited_s: float) -> None:
        with self._lock:
            self._at_work = {number: thread for number, thread in self._at_work.items() if thread.is_alive()}
        what = self._family.judge(pid)
        if what != COPY:
            self.missed += what == ENDED
            del self._found[pid]
            return
        if len(self._at_work) >= CHILDREN_MAX:
            if not self._is_full:
                self._say(f"{CHILDREN_MAX} forked children are measured; further ones wait until one of them ends.")
            self._is_full = True
            return
        source = self._family.source_of(pid)
        if source is not None:
            del self._found[pid]
            thread = threading.Thread(target=self._follow, args=(source, pid), name=f"fork {pid}", daemon=True)
            self._at_work[pid] = thread
            thread.start()
        elif waited_s > SOURCE_PATIENCE_S:
            self._miss(f"The session of the process that forked {pid} is over.")
            del self._found[pid]

    # ---- one child -----------------------------------------------------------------------------------------

    def _follow(self, source: Monitor, pid: int) -> None:
        measured = self._begin(source, pid)
        if measured is None:
            return
        monitor = self._monitors[pid]
        self._say_some(f"process {pid}, forked by {source.attachment.target.pid}, is measured, too.")
        try:
            try:
                measured.run(lambda: None)
            finally:
                with self._lock:
                    self._monitors.pop(pid)
                    self._measured.remove(pid)
                    self._family.finish(monitor)
                self.summaries.append({**measured.finish(), "parent": source.attachment.target.pid})
        except Exception as error:  # whatever this child has done, the others go on
            self._say_some(f"the session on process {pid}, a forked child, has failed: {_sentence_of(error)}")

    def _begin(self, source: Monitor, pid: int) -> Measured | None:
        sentence = ""
        deadline = time.monotonic() + ATTEMPTS_S
        for _ in range(ATTEMPTS):
            try:
                monitor = ChildMonitor(source, pid, self._turn)
                with self._lock:
                    self._monitors[pid] = monitor
                if self._stopping.is_set():
                    monitor.attachment.stopping.set()
                if self._family.judge(pid) != COPY:  # by now; what it becomes later cannot be changed through `target`
                    raise NfprobeError(f"Process {pid} is no copy of the one that forked it any more.")
                check_target(monitor.attachment.target)
                measured = self._measure(monitor)
                measured.start()
                with self._lock:
                    self._family.add(monitor)
                    self._measured.add(pid)
                return measured
            except Exception as error:  # whatever this child has done, the others go on
                sentence = _sentence_of(error)
                is_final = isinstance(error, RefusedError)
            with self._lock:
                self._monitors.pop(pid, None)
            is_final |= time.monotonic() > deadline
            if is_final or self._stopping.wait(ATTEMPT_PAUSE_S) or self._family.judge(pid) != COPY:
                break
        self._miss(sentence if self._family.judge(pid) == COPY else "")
        return None

    def _miss(self, sentence: str) -> None:
        with self._lock:
            self.missed += 1
        if sentence:
            self._say_some(f"a forked child is not measured: {sentence}")

    def _say_some(self, sentence: str) -> None:
        self._said += 1
        if self._said <= SAID_MAX:
            self._say(sentence)


def _sentence_of(error: Exception) -> str:
    if isinstance(error, NfprobeError):
        return error.sentence
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
