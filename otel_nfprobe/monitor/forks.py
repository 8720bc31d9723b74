# SPDX-License-Identifier: Apache-2.0
"""Forks: sessions on the children that a measured process forks (`--follow-forks`).

A forked child starts with its parent's code, including the probes, and with recording disabled. Its session begins with
a copy of the parent's probe table, so that function IDs keep their meaning and its code can be restored:

    found -> still there a moment later, same program -> inject -> copy table -> enable recording -> drain
          -> it ends, or its parent's session does: detached like any target

Trampolines of the parent lie in the parent's memory file, which the child maps permanently: they are used but never
written through the child's session. Each child has a thread in the monitor.
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

LOOK_S = 0.05  # interval of searching for new processes
SETTLE_S = 0.01  # a process about to exec does so within this time
CHILDREN_MAX = 64  # measured concurrently
SAID_MAX = 8  # children with messages of their own
ATTEMPTS = 10  # the live patcher may trace a new child briefly; the helper may time out on a busy machine
ATTEMPT_PAUSE_S = 0.05
ATTEMPTS_S = 5.0  # no attempt after this: an unresponsive child delays the others
SOURCE_PATIENCE_S = 2.0  # wait for the session of the process that forked a child
CHILD_PAUSE_S = 0.02  # at most, between rounds of a child's drain


class Measured(Protocol):
    """A session with its outputs on a child."""

    def start(self) -> None:
        """Starts the session; raises NfprobeError if nothing is measured."""

    def run(self, progress: Callable[[], None]) -> None:
        """Runs until the child ends, or its monitor is stopped."""

    def finish(self) -> dict[str, Any]:
        """Closes all outputs. Returns the summary object."""


class ChildAttachment(Attachment):
    """The probes in one forked child.

    Args:
        source: the attachment of the process that forked it.
        pid: of the child.
        turn: lock held while the child is changed. Changing runs at the highest priority: several at once would leave
            the children no CPU to reach a safe place.

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
        super().__init__(target, choice, source.ring_bytes, source.notify, identity=source.identity)
        self._source = source
        self._turn = turn
        self.costs = source.costs
        self.uncovered = source.uncovered

    def attach(self) -> None:
        """As Attachment.attach, under the lock."""
        with self._turn:
            super().attach()

    def disarm(self) -> None:
        """As Attachment.disarm, under the lock."""
        with self._turn:
            super().disarm()

    def arm(self) -> None:
        """Takes over the probes present in the child, and arms those that are not."""
        self.code_digests.adopt(self._source.code_digests)
        self.write_programs()
        standing, absent = self._copy_table()
        self.check_not_stopped()
        trampolines = Trampolines(self.session, self.target)
        made, refused = trampolines.make([probe.request for probe in absent])
        placed, differ = self.patcher.arm(made)
        self.choice.refuse(refused, differ)
        self.probes = standing + placed
        if not self.probes:
            raise NfprobeError(f"Process {self.target.pid} has none of the probes of the process that forked it.")
        self.make_follower(trampolines)

    def _copy_table(self) -> tuple[list[Probe], list[Probe]]:
        """Copies the source's probes. Returns those present in the child, and those that are not.

        A probe is present if it was armed in the parent at the fork; others may have been added since.
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
                own.patches.mark(probe.id, True)  # to be restored with the others
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
        turn: lock held while the child is changed.

    Raises:
        NfprobeError: it has ended.
    """

    def __init__(self, source: Monitor, pid: int, turn: threading.Lock) -> None:
        super().__init__(ChildAttachment(source.attachment, pid, turn), source.packets, policy=source.policy)
        self._source = source
        self.counters, self.software_counters = source.counters, source.software_counters

    def start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        """As Monitor.start; many drains share a CPU, so each pauses as long as its rings permit."""
        super().start(clock, recording, spans)
        self.drain.longest_pause_s = CHILD_PAUSE_S

    def calibrate_counters(self) -> Compensation:
        """Returns the parent's compensation: the trampolines are the parent's."""
        return self._source.compensation


class Forks:
    """Follows the children of one measured process, and their children.

    Args:
        parent: a running session.
        measure: creates the session with its outputs for a child's monitor.
        notify: reports a sentence to the user.

    Attributes:
        summaries: of the children whose sessions have ended.
        missed: children that ended before they could be measured, or could not be probed.
    """

    def __init__(
        self, parent: Monitor, measure: Callable[[ChildMonitor], Measured], notify: Callable[[str], None]
    ) -> None:
        self._measure = measure
        self._notify = notify
        self._parent = parent
        self._family = Family(parent)
        self._search = Search(self._family)
        self._found: dict[int, float] = {}  # time of discovery by pid
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
        """Starts searching for children."""
        self._thread.start()

    @property
    def measured(self) -> list[int]:
        """Returns the process IDs of the children that are being measured."""
        with self._lock:
            return sorted(self._measured)

    def stop(self) -> None:
        """Stops searching and tells the sessions on the children to end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._lock:
            for monitor in self._monitors.values():
                monitor.attachment.stopping.set()

    def end(self) -> None:
        """Waits until every child is restored; the summaries are then complete."""
        self.stop()
        for thread in list(self._at_work.values()):
            thread.join()
        self.missed += len(self._found)
        self._found.clear()
        if self.missed:
            self._notify(
                f"{self.missed} forked children were not measured: they ended too soon or could not be probed."
            )

    # ---- searching -----------------------------------------------------------------------------------------

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
                self._notify(f"{CHILDREN_MAX} forked children are measured; others wait until one of them ends.")
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
        self._report_some(f"process {pid}, forked by {source.attachment.target.pid}, is measured, too.")
        try:
            try:
                measured.run(lambda: None)
            finally:
                with self._lock:
                    self._monitors.pop(pid)
                    self._measured.remove(pid)
                    self._family.finish(monitor)
                self.summaries.append({**measured.finish(), "parent": source.attachment.target.pid})
        except Exception as error:  # whatever this child did, the others continue
            self._report_some(f"the session on process {pid}, a forked child, failed: {_describe_error(error)}")

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
                if self._family.judge(pid) != COPY:  # checked now: `target` cannot change another program later
                    raise NfprobeError(f"Process {pid} is no longer a copy of the process that forked it.")
                check_target(monitor.attachment.target)
                measured = self._measure(monitor)
                measured.start()
                with self._lock:
                    self._family.add(monitor)
                    self._measured.add(pid)
                return measured
            except Exception as error:  # whatever this child did, the others continue
                sentence = _describe_error(error)
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
            self._report_some(f"a forked child is not measured: {sentence}")

    def _report_some(self, sentence: str) -> None:
        self._said += 1
        if self._said <= SAID_MAX:
            self._notify(sentence)


def _describe_error(error: Exception) -> str:
    if isinstance(error, NfprobeError):
        return error.sentence
    return str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
