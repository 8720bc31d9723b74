# SPDX-License-Identifier: Apache-2.0
"""Monitor: one session from attach to detach. Decides what is probed, puts the parts together, sums up.

Order of an attach: check the target, read its files and decide (nothing is touched) -> inject -> trampolines
-> arm in one batched stop -> open the gates -> drain, and follow what the target loads. Order of a detach: stop
following -> disarm -> let calls that are inside end -> close the gates -> drain the rest -> the helper leaves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from otel_nfprobe.adapters.base import NamingAdapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import EndedError, NfprobeError
from otel_nfprobe.base.gc_tuning import collection_paused
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.causes.preemption import SwitchWatch
from otel_nfprobe.counters.choice import Counter, name_counters
from otel_nfprobe.counters.compensation import Compensation, costs_of
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.counters.software import SoftwareCounters
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.linux.steal_time import StolenTime
from otel_nfprobe.monitor.detail import Detail, choose_detail, follow_slow_batches
from otel_nfprobe.monitor.drain import Drain, NewFunctions, SpanPath
from otel_nfprobe.monitor.latecapture import PACKET_GATES, SLOW, CapturePolicy, LateCapture
from otel_nfprobe.monitor.probe_table import describe_functions, find_names, find_roles
from otel_nfprobe.monitor.profile import Profile
from otel_nfprobe.monitor.reserve import reserves_descriptors
from otel_nfprobe.pipeline.identity import Identity
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.statistics import Statistics
from otel_nfprobe.probes.calibration import Cost, calibrate, costs_by_id
from otel_nfprobe.probes.capture_programs import write_programs
from otel_nfprobe.probes.code_integrity import Texts
from otel_nfprobe.probes.codemap import CodePart
from otel_nfprobe.probes.descriptor_errors import find_verdicts
from otel_nfprobe.probes.follow import Follower
from otel_nfprobe.probes.inherited import remove_inherited
from otel_nfprobe.probes.inject import Injected, inject
from otel_nfprobe.probes.patch import Patcher
from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.probes.slots import count_stored_pointers
from otel_nfprobe.probes.trampoline import Probe, Trampolines
from otel_nfprobe.probes.unwinders import tell_unwinders
from otel_nfprobe.recording.recording import RecordingWriter
from otel_nfprobe.recording.sessionfacts import FunctionInfo
from otel_nfprobe.shm.session import GATE_INNER, GATE_OUTER, Session
from otel_nfprobe.target.liveness import Presence, replaced
from otel_nfprobe.target.target import Target

GRACE_S = 0.03  # for calls that are inside a probe when their function is disarmed
TRIAL = "trial"  # the purpose of a session that only finds out what is worth a probe
STEP_S = 0.05  # how often the end of the target or of the time is looked for


@reserves_descriptors("attach", "detach", "abandon")
@dataclass
class Monitor:
    """One session on one target.

    Attributes:
        target: checked.
        choice: what to probe.
        ring_bytes: of each thread's ring.
        packets: which packets are identified: ALL, SLOW or NONE (latecapture.py).
        say: tells a person what happens.
        detail: when inner functions are timed; None: always.
        identity: how packets are identified.
        purpose: "" for a session, or TRIAL; `nfprobe status` reads it in the session's memory.
        probes: every probe that ever was in place; a function id keeps its meaning when its module is closed.
        target_ended: the process is gone, or runs another program: there is nothing to restore.
        not_restored: what could not be put back.
        switched_off: what was described wrongly and is not counted any more: function, and why.
    """

    target: Target
    choice: Choice
    ring_bytes: int
    packets: str
    say: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    probes: list[Probe] = field(default_factory=list)
    target_ended: bool = False
    not_restored: list[str] = field(default_factory=list)
    switched_off: dict[str, str] = field(default_factory=dict)
    purpose: str = ""
    policy: CapturePolicy = field(default_factory=CapturePolicy)
    detail: Detail | None = None
    identity: Identity = field(default_factory=Identity)
    counters: tuple[Counter, ...] = ()  # that probes read
    software_counters: tuple[Counter, ...] = ()  # that are read at intervals
    profile_hertz: int = 0  # how often the kernel looks where threads are; 0: never
    costs: dict[str, Cost] = field(default_factory=dict)  # of a probed call, by strategy
    compensation: Compensation = field(default_factory=Compensation)  # what a probed call counts by itself
    uncovered: int = 0  # stored pointers to functions that are probed by GOT slots only
    _parts: list[CodePart] = field(default_factory=list)  # code of ours in the target
    _abandoned: bool = True  # nothing of ours is in the target

    @collection_paused()
    def attach(self) -> None:
        """Injects and arms. When it fails half way, everything is undone before the error goes on.

        Raises:
            NfprobeError: nothing is probed.
        """
        self._check_not_stopped()
        requests = self.choice.requests()
        if not requests:
            raise NfprobeError(
                f"None of the {len(self.choice.plans)} chosen functions can be probed: "
                + ", ".join(f"{count} {reason}" for reason, count in self.choice.refused.items())
                + ".",
                f"nfprobe functions {self.target.pid}",
            )
        self._presence = Presence(self.target)
        self._texts = Texts(self.target)
        try:
            self.injected: Injected = inject(self.target, self.ring_bytes, self._check_same_program)
        except BaseException as error:
            self._tell_if_replaced(error)
            self._presence.close()
            raise
        self._abandoned = False
        self.session: Session = self.injected.session
        self.session.memory_fd = self.target.memory.descriptor
        self.patcher = Patcher(
            self.session,
            self.target,
            no_stop=self.choice.request.no_stop,
            membarrier=self.target.may_sync_cores,
        )
        try:
            self._arm()
        except BaseException as error:
            self._tell_if_replaced(error)
            self.abandon()
            raise

    def _tell_if_replaced(self, error: BaseException) -> None:
        if isinstance(error, EndedError):
            self._presence.await_exec()
        if isinstance(error, NfprobeError) and self._presence.is_replaced:
            error.sentence = replaced(self.target.pid)

    def _arm(self) -> None:
        remove_inherited(self.session, self.target, self.patcher)
        leftover = self.patcher.disarm()
        if leftover:
            self.say(f"{len(leftover)} probes of a killed monitor were gone already.")
        for sentence in self.patcher.tell_left():
            self.say(sentence)
        requests = self.choice.requests()
        for request in requests:
            self._texts.keep(request.plan.module)
        self._write_programs()
        trampolines = Trampolines(self.session, self.target)
        self._parts = trampolines.parts
        made, refused = trampolines.make(requests)
        self._check_not_stopped()
        if made:
            module = made[0].request.plan.module
            self.costs = calibrate(self.session, trampolines.arenas, module, STRATEGIES.values())
        tell_unwinders(self.target, self.patcher, self.target.modules())
        self.probes, differ = self.patcher.arm(made)
        for reasons in (refused, differ):
            for reason, count in reasons.items():
                self.choice.refuse(reason, count)
        if not self.probes:
            raise NfprobeError(
                "No function could be probed: " + ", ".join(self.choice.refused) + ".",
                f"nfprobe functions {self.target.pid}",
            )
        self._count_uncovered()
        if unprobed := self.choice.tell_unprobed(self.choice.plans):
            self.say(unprobed)
        for glob in self.choice.request.waiting:
            self.say(f"{glob}: no such module is loaded; its functions are probed when it is.")
        self._begin_to_follow(trampolines)

    def _begin_to_follow(self, trampolines: Trampolines) -> None:
        self.arenas = trampolines.arenas
        self.follower = Follower(
            self.target,
            self._presence,
            self.choice,
            self.patcher,
            trampolines,
            self._introduce,
            self._texts.keep,
            self.say,
            write_programs=self._write_programs,
        )
        self.follower.place(self.probes)

    def _check_same_program(self) -> None:
        """What was planned was planned for the program that ran then."""
        if not self.choice.modules:  # chosen without a look at the process
            return
        program = self.choice.modules[0]
        if not any(module is program for module in self.target.modules()):
            raise NfprobeError(replaced(self.target.pid), f"nfprobe attach {self.target.pid}")

    def _count_uncovered(self) -> None:
        by_slot = [probe.request.plan.function for probe in self.probes if probe.request.plan.is_slot]
        if by_slot:
            self.uncovered = count_stored_pointers(self.target, by_slot)
            self.say(
                f"Functions probed by GOT slots are seen only where calls go through a slot: {self.uncovered} stored"
                " pointers lead to them past it, and what dlsym gives cannot be counted."
            )

    def _check_not_stopped(self) -> None:
        if self.stopping.is_set():
            raise NfprobeError(
                f"Stopped before the probes were in place; process {self.target.pid} is as it was.",
                f"nfprobe status {self.target.pid}",
            )

    def _write_programs(self) -> None:
        write_programs(self.session, self.choice, self.identity)

    def roles_by_id(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Role (enum nfp_role) of each function id."""
        return find_roles(self.probes, self.choice, self.probes)

    def functions(self) -> list[FunctionInfo]:
        """The probed functions, for the recording."""
        return self._describe(self.probes)

    def _describe(self, probes: Sequence[Probe]) -> list[FunctionInfo]:
        roles = find_roles(probes, self.choice, [*self.probes, *probes])
        return describe_functions(probes, roles, self.costs, self.compensation, self.choice)

    def names_by_id(self) -> list[str]:
        """Name of each function id."""
        return find_names(list(self.probes))  # the follower's thread adds some

    def _introduce(self, added: Sequence[Probe]) -> bool:
        """Makes ids known before their probes can write records; called by the follower's thread."""
        known = {probe.id: probe for probe in [*self.probes, *added]}
        self.probes = list(known.values())
        costs = costs_by_id(self.probes, self.costs)
        roles, names = self.roles_by_id(), self.names_by_id()
        functions = NewFunctions(self._describe(added), roles, names, costs, self._find_counts)
        self.drain.introduce(functions)
        while not functions.known.wait(STEP_S):
            if self.stopping.is_set() or self._presence.is_gone:
                return False
        return True

    def start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        """Makes the way of the data and opens the gates.

        Raises:
            NfprobeError: the target does not answer any more, or has started another program.
        """
        try:
            self._start(clock, recording, spans)
        except NfprobeError as error:
            self._tell_if_replaced(error)
            raise

    def _start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        names = {thread.tid: thread.name for thread in self.target.threads()}
        pipeline, statistics = Pipeline(self.roles_by_id()), Statistics()
        costs = costs_by_id(self.probes, self.costs)
        pipeline.set_costs(costs)
        statistics.set_costs(costs)
        self.drain = Drain(self.session, clock, pipeline, statistics, recording, spans, names)
        self._begin_to_count()
        self.drain.repeats = self.identity.make_repeats()
        self.drain.switches = self._watch_switches(clock)
        self.software = SoftwareCounters(self.software_counters, self.say)
        self.profile = Profile(self.drain, self.target, self.profile_hertz, self.say, self.counting, self.software)
        self.drain.learn_functions(self.functions())
        self._tell_names()
        self.started_at = time.monotonic()
        self.stolen = StolenTime()
        self.session.write_message(self.purpose)
        if self.packets == SLOW:
            self.drain.late = LateCapture(self.session, self.policy, clock)
        gates = choose_detail(self.session, self.detail, clock)
        self.drain.slow_batches = follow_slow_batches(self.session, self.detail)
        self.session.open_gates(gates | GATE_OUTER | GATE_INNER | PACKET_GATES[self.packets])

    def _find_counts(self) -> Rows:
        return costs_of(list(self.probes), self.compensation)

    def _begin_to_count(self) -> None:
        forbidden = self.target.counters_forbidden
        self.counting = ThreadCounters(self.session, self.counters, self.say, forbidden)
        if self.counting.begin():
            self.compensation = self._calibrate_counters()
            self.session.leave_out_polls(self.compensation.of_empty_polls(self.probes))
        if self.counters:
            self.drain.set_counter_set(CounterSet(0, name_counters(self.counters), self._find_counts()))

    def _calibrate_counters(self) -> Compensation:
        return self.counting.calibrate(self.arenas, self.probes[0].request.plan.module)

    def _watch_switches(self, clock: Clock) -> SwitchWatch | None:
        if self.purpose:
            return None
        watch = SwitchWatch(clock, self.session.holds_thread)
        try:
            for thread in self.target.threads():
                watch.watch(thread.tid)
        except NfprobeError as error:
            watch.close()
            self.say(error.sentence)
            return None
        return watch

    def run(self, seconds: float | None, progress: Callable[[], None]) -> None:
        """Drains until the time is over, someone stops it, or the target ends."""
        until = float("inf") if seconds is None else self.started_at + seconds
        self.follower.start()
        try:
            self._run(until, progress)
        finally:
            self.follower.end(lambda: self.drain.run_until(time.monotonic() + GRACE_S))

    def _run(self, until: float, progress: Callable[[], None]) -> None:
        while not self.stopping.is_set() and time.monotonic() < until:
            self.drain.run_until(min(until, time.monotonic() + STEP_S))
            progress()
            self._tell_verdicts()
            self._tell_names()
            self._tell_copying()
            if self._has_ended():
                return
            self._count()
            if not self.session.helper_is_there:
                self.say("The target closed the session's memory file or another monitor took over.")
                return

    def _count(self) -> None:
        self.follower.between_looks(self.counting.follow)
        self.profile.follow()
        if self.software_counters:
            self.software.follow(self.session.living_threads(), self.session.holds_thread)

    def _tell_verdicts(self) -> None:
        for name, sentence in find_verdicts(self.session, self.choice.readers()):
            if name not in self.switched_off:
                self.switched_off[name] = sentence
                self.say(sentence)

    def _tell_names(self) -> None:
        adapter = self.choice.adapter
        if isinstance(adapter, NamingAdapter):
            self.drain.name_numbers(adapter.names())

    def _tell_copying(self) -> None:
        if self.drain.late is not None:
            for sentence in (*self.drain.late.find_copying(), *self.drain.late.find_handed_over()):
                self.say(sentence)

    def _has_ended(self) -> bool:
        """Whether nothing of ours is left in the process. A program that was replaced is told of, once."""
        if not self.target_ended and self._presence.is_gone:
            self.target_ended = True
            if self._presence.is_replaced:
                self.say(replaced(self.target.pid))
        return self.target_ended

    def detach(self) -> None:
        """Restores the target, drains what is left, ends the helper thread. Never raises for a target that is gone."""
        try:
            if not self._has_ended():
                self._end_turns()
                self._disarm()
                self.drain.run_until(time.monotonic() + GRACE_S)
                self.counting.close()
                self.software.close()
                self.session.close_gates()
        except NfprobeError as error:
            if not self._has_ended():
                self.say(error.sentence)
                self.not_restored.append(error.sentence)
        if self._has_ended():
            self.not_restored.clear()
            self.counting.close()
            self.software.close()
        self.drain.run_dry()
        self._tell_verdicts()
        self._tell_copying()
        self.seconds = time.monotonic() - self.started_at
        self.drain.finish()
        self.profile.finish(self._parts)
        if not self.target_ended:
            self.session.leave()

    def _end_turns(self) -> None:
        # What is received while probes are taken out would not be seen to leave.
        with suppress(NfprobeError):  # of a helper thread that does not answer the next lines tell
            self.session.end_turns()
            self.drain.run_until(time.monotonic() + GRACE_S)

    def _disarm(self) -> None:
        self.follower.forget_closed()
        missing = self.patcher.disarm()
        self.follower.forget_closed()  # what was closed meanwhile has taken its probes along
        for index in missing:
            if self.follower.is_placed(index):
                self.not_restored.append(f"probe {index}: its bytes were changed by someone else")
        differing = self._texts.differing(self.follower.modules)
        self.not_restored += [f"{place} differs from before" for place in differing]

    def abandon(self) -> None:
        """Undoes an attach that is followed by no session. Does nothing where nothing was done."""
        if self._abandoned:
            return
        self._abandoned = True
        try:
            self.patcher.disarm()
        except NfprobeError as error:
            self.say(error.sentence)
        if not self._presence.is_gone:
            self.session.leave()
        self.close()

    def close(self) -> None:
        """Unmaps the session and gives up its lock."""
        self.session.close()
        self._presence.close()
