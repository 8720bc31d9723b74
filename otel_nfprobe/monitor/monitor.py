# SPDX-License-Identifier: Apache-2.0
"""Monitor: the session on an attached target, from enabling recording to the detach.

attach (attachment.py) -> enable recording -> drain, and follow what the target loads -> stop following -> disarm -> let
calls in progress end -> disable recording -> drain the rest -> the helper leaves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from otel_nfprobe.adapters.base import NamingAdapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import Rows
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.causes.absence_watch import AbsenceWatch
from otel_nfprobe.counters.choice import Counter, CounterChoice, name_counters
from otel_nfprobe.counters.compensation import Compensation, costs_of
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.counters.software import SoftwareCounters
from otel_nfprobe.counters.threads import ThreadCounters
from otel_nfprobe.linux.kernelplaces import kernel_places
from otel_nfprobe.linux.steal_time import StolenTime
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.detail import Detail, choose_detail, follow_slow_batches
from otel_nfprobe.monitor.drain import Drain, NewFunctions, SpanPath
from otel_nfprobe.monitor.latecapture import PACKET_GATES, SLOW, CapturePolicy, LateCapture
from otel_nfprobe.monitor.profile import Profile
from otel_nfprobe.monitor.queue_watch import QueueWatch
from otel_nfprobe.monitor.reserve import reserves_descriptors
from otel_nfprobe.monitor.snapshot import SessionSnapshot
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.pipeline.short_sends import ShortSends
from otel_nfprobe.pipeline.statistics import Statistics
from otel_nfprobe.probes.calibration import costs_by_id
from otel_nfprobe.probes.capture_programs import find_verdicts
from otel_nfprobe.probes.trampoline import Probe
from otel_nfprobe.recording.recording import RecordingWriter
from otel_nfprobe.shm.session import GATE_INNER, GATE_OUTER

GRACE_S = 0.03  # for calls inside a probe when their function is disarmed
TURN_S = 0.005  # maximum pause of the drain
STEP_S = 0.05  # interval of checking for the end of the target or of the time


@reserves_descriptors("start", "detach")
@dataclass
class Monitor:
    """One session on one target.

    Attributes:
        attachment: its probes; attached before `start`.
        packets: which packets are identified: ALL, SLOW or NONE (latecapture.py).
        purpose: "" for a session, or TRIAL of shm/session.py; `nfprobe status` reads it from the session's memory.
        policy: which packets the user requested.
        detail: when inner functions are timed; None: always.
        counters: read by probes.
        software_counters: read at intervals.
        profile_hertz: sampling rate of the profiler; 0: off.
        compensation: what the probes of a call add to counters.
        switched_off: descriptors found to be wrong, which are no longer counted: function, and why.
    """

    attachment: Attachment
    packets: str
    purpose: str = ""
    policy: CapturePolicy = field(default_factory=CapturePolicy)
    detail: Detail | None = None
    counters: tuple[Counter, ...] = ()
    software_counters: tuple[Counter, ...] = ()
    profile_hertz: int = 0
    compensation: Compensation = field(default_factory=Compensation)
    switched_off: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notify = self.attachment.notify
        self.seconds = 0.0  # duration, once the session has ended
        if not self.purpose:
            kernel_places().prepare()  # takes long, and the target is attached meanwhile

    def start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        """Builds the pipeline and enables recording.

        Raises:
            NfprobeError: the target no longer responds, or has started another program.
        """
        try:
            self._start(clock, recording, spans)
        except NfprobeError as error:
            self.attachment.name_replaced(error)
            raise

    def _start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        attachment = self.attachment
        attachment.follower.introduce = self._introduce
        names = {thread.tid: thread.name for thread in attachment.target.threads()}
        pipeline, statistics = Pipeline(attachment.roles_by_id()), Statistics()
        costs = costs_by_id(attachment.probes, attachment.costs)
        pipeline.set_costs(costs)
        statistics.set_costs(costs)
        self.drain = Drain(attachment.session, clock, pipeline, statistics, recording, spans, names)
        try:
            self._begin(clock)
        except BaseException:
            self.drain.close_watches()
            raise

    def _begin(self, clock: Clock) -> None:
        attachment, session = self.attachment, self.attachment.session
        self._start_counting()
        self.drain.repeats = attachment.identity.make_repeats()
        self.drain.absences = self._watch_absences(clock)
        self.drain.queues = None if self.purpose else QueueWatch(attachment.target)
        self.drain.short_sends = None if self.purpose else ShortSends(self.drain.clock.ticks_per_second)
        self.software = SoftwareCounters(self.software_counters, self.notify)
        self.profile = Profile(
            self.drain, attachment.target, self.profile_hertz, self.notify, self.counting, self.software
        )
        self.drain.learn_functions(attachment.describe(attachment.probes, self.compensation))
        self._update_names()
        self.started_at = time.monotonic()
        self.stolen = StolenTime()
        session.write_message(self.purpose)
        if self.packets == SLOW:
            self.drain.late = LateCapture(session, self.policy, clock)
        gates = choose_detail(session, self.detail, clock)
        self.drain.slow_batches = follow_slow_batches(session, self.detail)
        session.open_gates(gates | GATE_OUTER | GATE_INNER | PACKET_GATES[self.packets])

    def _introduce(self, added: Sequence[Probe]) -> bool:
        """Registers function IDs before their probes can write records; called by the follower's thread."""
        attachment = self.attachment
        attachment.add(added)
        costs = costs_by_id(attachment.probes, attachment.costs)
        infos = attachment.describe(added, self.compensation)
        roles, names = attachment.roles_by_id(), attachment.names_by_id()
        functions = NewFunctions(infos, roles, names, costs, self._find_counts)
        self.drain.introduce(functions)
        while not functions.known.wait(STEP_S):
            if attachment.stopping.is_set() or attachment.liveness.is_gone:
                return False
        return True

    def snapshot(self) -> SessionSnapshot:
        """Returns the current state; call from the draining thread."""
        elapsed_s = self.seconds or time.monotonic() - self.started_at
        return SessionSnapshot.take(self.attachment, self.drain, elapsed_s)

    # ---- counters and absences --------------------------------------------------------------------------------------

    def _find_counts(self) -> Rows:
        return costs_of(list(self.attachment.probes), self.compensation)

    def _start_counting(self) -> None:
        session, forbidden = self.attachment.session, self.attachment.target.counters_forbidden
        self.counting = ThreadCounters(session, self.counters, self.notify, forbidden)
        if self.counting.begin():
            self.compensation = self.calibrate_counters()
            session.leave_out_polls(self.compensation.of_empty_polls(self.attachment.probes))
        if self.counters:
            self.drain.set_counter_set(CounterSet(0, name_counters(self.counters), self._find_counts()))

    def calibrate_counters(self) -> Compensation:
        """Returns what the probes of a call add to counters, measured in the target."""
        return self.counting.calibrate(self.attachment.arenas, self.attachment.probes[0].request.plan.module)

    def change_counters(self, choice: CounterChoice) -> list[str]:
        """Switches to other counters; the target's code is not changed.

        Order: withdraw all threads' counters -> drain what they have written -> calibrate probes with the new counters
        -> treat readings as the new ones' -> assign the new counters to threads. Calls open during the switch are not
        counted.

        Args:
            choice: hardware counters available on this machine, and software counters.

        Returns:
            notices for the user.

        Raises:
            NfprobeError: the target does not respond; nothing is counted from then on.
        """
        said: list[str] = []

        def tell(sentence: str) -> None:
            said.append(sentence)
            self.notify(sentence)

        turn = self.attachment.follower.turn
        while not turn.acquire(timeout=TURN_S):
            self.drain.round()
        try:
            self.counting.notify = self.software.notify = tell
            self._replace_counters(choice)
            self.counting.follow()
        finally:
            self.counting.notify = self.software.notify = self.notify
            turn.release()
        return said

    def _replace_counters(self, choice: CounterChoice) -> None:
        attachment, counting = self.attachment, self.counting
        self.counters, self.software_counters, self.compensation = (), choice.software, Compensation()
        try:
            self.software.begin_anew(choice.software)
            if counting.begin_anew(choice.hardware):
                module = attachment.probes[0].request.plan.module
                self.compensation = counting.calibrate(attachment.arenas, module, self.drain.round)
                self.counters = choice.hardware
                attachment.session.leave_out_polls(self.compensation.of_empty_polls(attachment.probes))
        finally:
            self.drain.round()
            self.drain.set_counter_set(CounterSet(counting.change, name_counters(self.counters), self._find_counts()))

    def _watch_absences(self, clock: Clock) -> AbsenceWatch | None:
        if self.purpose:
            return None
        watch = AbsenceWatch(clock, self.attachment.session.holds_thread)
        try:
            for thread in self.attachment.target.threads():
                watch.watch(thread.tid)
        except NfprobeError as error:
            watch.close()
            self.notify(error.sentence)
            return None
        watch.wait_for_names()
        self._report_unseen(watch)
        return watch

    def _report_unseen(self, watch: AbsenceWatch | None) -> None:
        for sentence in watch.take_notices() if watch is not None else ():
            self.notify(sentence)

    # ---- while it runs ----------------------------------------------------------------------------------------------

    def run(self, seconds: float | None, progress: Callable[[], None]) -> None:
        """Drains until the time has elapsed, the session is stopped, or the target ends."""
        until = float("inf") if seconds is None else self.started_at + seconds
        follower = self.attachment.follower
        follower.start()
        try:
            self._run(until, progress)
        finally:
            follower.end(lambda: self.drain.run_until(time.monotonic() + GRACE_S))

    def _run(self, until: float, progress: Callable[[], None]) -> None:
        while not self.attachment.stopping.is_set() and time.monotonic() < until:
            self.drain.run_until(min(until, time.monotonic() + STEP_S))
            progress()
            self._report_descriptor_errors()
            self._update_names()
            self._report_copying()
            self._report_unseen(self.drain.absences)
            if self.attachment.has_ended():
                return
            self._count()
            if not self.attachment.session.helper_is_there:
                self.notify("The target closed the session's memory file, or another monitor took over.")
                return

    def _count(self) -> None:
        session = self.attachment.session
        self.attachment.follower.between_looks(self.counting.follow)
        self.profile.follow()
        if self.software_counters:
            self.software.follow(session.threads.living(), session.holds_thread)

    def _report_descriptor_errors(self) -> None:
        for name, sentence in find_verdicts(self.attachment.session, self.attachment.choice.readers()):
            if name not in self.switched_off:
                self.switched_off[name] = sentence
                self.notify(sentence)

    def _update_names(self) -> None:
        adapter = self.attachment.choice.adapter
        if isinstance(adapter, NamingAdapter):
            self.drain.name_numbers(adapter.names())

    def _report_copying(self) -> None:
        if self.drain.late is not None:
            for sentence in (*self.drain.late.find_copying(), *self.drain.late.find_handed_over()):
                self.notify(sentence)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """Restores the target, drains the rest, ends the helper thread. Never raises for a target that is gone."""
        attachment = self.attachment
        try:
            if not attachment.has_ended():
                self._finish_iterations()
                attachment.disarm()
                self.drain.run_until(time.monotonic() + GRACE_S)
                self._stop_counting()
                attachment.session.close_gates()
        except NfprobeError as error:
            if not attachment.has_ended():
                self.notify(error.sentence)
                attachment.not_restored.append(error.sentence)
        if attachment.has_ended():
            attachment.not_restored.clear()
            self._stop_counting()
        self.drain.run_dry()
        self._report_descriptor_errors()
        self._report_copying()
        self.seconds = time.monotonic() - self.started_at
        self.drain.finish()
        self.profile.finish(attachment.parts)
        if not attachment.has_gone:
            attachment.session.leave()

    def _finish_iterations(self) -> None:
        # Packets received while probes are removed would not be seen leaving.
        with suppress(NfprobeError):  # the next lines report a helper thread that does not respond
            self.attachment.session.end_turns()
            self.drain.run_until(time.monotonic() + GRACE_S)

    def _stop_counting(self) -> None:
        self.counting.close()
        self.software.close()
