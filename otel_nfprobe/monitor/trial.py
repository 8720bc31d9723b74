# SPDX-License-Identifier: Apache-2.0
"""Trial: selects functions worth a probe when the user names none.

Before a session, all candidates are probed for a short time, in a session of its own that ends before the real one
starts: nothing of it is in a summary, a recording or an export. Functions that are called a few times per batch and
take longer than their probe are kept, the longest first, as long as their probes cost little of a batch.

Functions that enclose the receive call are left out, because they also run when nothing was received: an idle NF would
write records at full speed.
"""

from __future__ import annotations

import glob
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from otel_nfprobe.adapters.base import FREE, Adapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import CallFlag, Columns
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.strategies import ENTRY_ONLY, GOT_SLOT
from otel_nfprobe.elf.pattern import Pattern
from otel_nfprobe.elf.symbols import Function
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.probe_candidates import find_candidates
from otel_nfprobe.pipeline.statistics import Distribution, Statistics
from otel_nfprobe.probes.calibration import costs_by_id, ticks_per_call
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.shm.session import TRIAL
from otel_nfprobe.target.hot_code import see_running
from otel_nfprobe.target.target import Target

LOOK_SHARE = 0.3  # of the trial's time: to see what runs, before anything is probed;
LOOK_S_MAX = 0.3  # at most
ENOUGH_BATCHES = 2000  # the trial ends early after so many batches,
COUNT_S_MIN = 0.1  # and at least this time,
COUNT_S_MAX = 1.0  # or when packets have arrived for this long
STEP_S = 0.02
CALLS_PER_BATCH_MAX = 4.0
CLIPPED_SHARE_MAX = 0.1  # maximum share of a function's calls that enclose a receive call
CHOSEN_MAX = 32
COST_SHARE_MAX = 0.03  # of a batch's time
CALLS_ALWAYS = 4  # this many calls per batch are worth their cost however short a batch is


class Tally(Statistics):
    """Statistics that also count which calls belong to a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0
        self.in_batches: NDArray[np.int64] = np.zeros(0, np.int64)
        self.elsewhere: NDArray[np.int64] = np.zeros(0, np.int64)
        self.clipped: NDArray[np.int64] = np.zeros(0, np.int64)

    def add(self, columns: Columns) -> None:
        """Adds columns, as Statistics.add."""
        super().add(columns)
        calls, batches = columns.calls, columns.batches
        self.batches += len(batches)
        if not len(calls):
            return
        self._make_room(int(calls["function"].max()) + 1)
        placed = calls["batch"] < len(batches)
        clipped = (calls["flags"] & CallFlag.CLIPPED) != 0
        for counts, chosen in ((self.in_batches, placed), (self.elsewhere, ~placed), (self.clipped, clipped)):
            counts += np.bincount(calls["function"][chosen], minlength=len(counts))

    def _make_room(self, count: int) -> None:
        if count > len(self.in_batches):
            more = count - len(self.in_batches)
            self.in_batches, self.elsewhere, self.clipped = (
                np.pad(counts, (0, more)) for counts in (self.in_batches, self.elsewhere, self.clipped)
            )


@dataclass(frozen=True, slots=True)
class Counted:
    """Results of the trial for one function.

    Attributes:
        per_batch: average number of calls per batch.
        elsewhere: calls outside of batches, per call in a batch.
        clipped: share of its calls that enclose a receive call.
        mean_ticks: duration of a call without its probes.
        self_ticks: total self time of its calls, without probes.
    """

    function: Function
    per_batch: float
    elsewhere: float
    clipped: float
    mean_ticks: float
    self_ticks: int


@dataclass
class Found:
    """Results of a trial.

    Attributes:
        candidates: number of functions probed.
        batches: number of batches seen.
        batch_ns: duration of a batch without the trial's probes.
        chosen: functions worth a probe, the longest first.
        calls: of these per batch.
        cost_ns: of their probes per batch.
        left_out: numbers of functions that ran, by reason.
    """

    candidates: int
    batches: int
    batch_ns: float = 0.0
    chosen: list[Function] = field(default_factory=list)
    calls: float = 0.0
    cost_ns: float = 0.0
    left_out: dict[str, int] = field(default_factory=dict)

    def globs(self) -> list[str]:
        """Returns the chosen functions as `--functions` names them."""
        return [f"{glob.escape(function.module.name)}:{function.offset:#x}" for function in self.chosen]


def thin(rows: Sequence[Counted], call_ticks: float, batch_ticks: float) -> tuple[list[Counted], dict[str, int]]:
    """Selects the functions worth a probe.

    Args:
        rows: all functions that ran.
        call_ticks: cost of a probed call.
        batch_ticks: duration of a batch.

    Returns:
        the kept functions by decreasing self time, and the numbers of those left out by reason.
    """
    kept: list[Counted] = []
    left_out: dict[str, int] = {}
    budget = max(COST_SHARE_MAX * batch_ticks, CALLS_ALWAYS * call_ticks)
    for row in sorted(rows, key=lambda row: -row.self_ticks):
        reason = _find_reason(row, call_ticks)
        if not reason and (len(kept) == CHOSEN_MAX or row.per_batch * call_ticks > budget):
            reason = "beyond what may be spent on a batch"
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        budget -= row.per_batch * call_ticks
        kept.append(row)
    return kept, left_out


def _find_reason(row: Counted, call_ticks: float) -> str:
    if row.clipped > CLIPPED_SHARE_MAX:
        return "around the receive call"
    if row.per_batch == 0 or row.elsewhere > 1:
        return "mostly outside of batches"
    if row.per_batch > CALLS_PER_BATCH_MAX:
        return f"called more than {CALLS_PER_BATCH_MAX:g} times a batch"
    return "shorter than a probe" if row.mean_ticks < call_ticks else ""


@dataclass
class Trial:
    """One trial on one target.

    Attributes:
        target: checked; nobody is attached to it.
        adapter: knows its receive and transmit functions.
        excluded, strategy, no_stop: as for the session that follows (probe_selection.py).
        ring_bytes: size of each thread's ring.
        stopping: set: the trial ends immediately.
    """

    target: Target
    adapter: Adapter
    excluded: Sequence[str]
    strategy: str | None
    no_stop: bool
    ring_bytes: int
    stopping: threading.Event

    def run(self, seconds: float) -> Found:
        """Finds candidates, probes, counts and selects. Restores the target afterwards.

        Raises:
            NfprobeError: the candidates cannot be probed.
        """
        roles = self.adapter.roles(self.target)
        # Functions that only free packets are in libraries that need not be of interest.
        handling = [role.address for role in roles if role.role != FREE]
        served = {role.address for role in roles}
        look_s = min(LOOK_S_MAX, LOOK_SHARE * seconds)
        seen = see_running(self.target, look_s, self.stopping.is_set)
        patterns = [Pattern(text) for text in self.excluded]
        candidates = [
            function
            for function in find_candidates(self.target, handling, seen)
            if function.address not in served and not any(pattern.matches(function) for pattern in patterns)
        ]
        if not candidates:
            return Found(0, 0)
        choice = self._choose(candidates)
        tally = Tally()
        attachment = Attachment(self.target, choice, self.ring_bytes, lambda sentence: None, self.stopping)
        monitor = Monitor(attachment, NONE, purpose=TRIAL)
        monitor.attachment.attach()
        clock = Clock.start()
        try:
            monitor.start(clock, None, None)
            monitor.drain.statistics = tally
            self._count(monitor, tally, seconds - look_s)
        finally:
            self._end(monitor)
        return _judge(monitor, tally, clock.ticks_per_second)

    def _choose(self, candidates: Sequence[Function]) -> Choice:
        choice = choose(self.target, self.adapter, (), self.excluded, self.strategy, self.no_stop, further=candidates)
        roles = {role.address for role in choice.roles}
        untimed = (None, ENTRY_ONLY, GOT_SLOT)  # no durations, or not all calls
        choice.plans = [plan for plan in choice.plans if plan.address in roles or plan.strategy not in untimed]
        return choice

    def _count(self, monitor: Monitor, tally: Tally, seconds: float) -> None:
        tally.set_costs(costs_by_id(monitor.attachment.probes, monitor.attachment.costs))
        start, until = time.monotonic(), time.monotonic() + seconds
        while not self.stopping.is_set() and monitor.attachment.session.helper_is_there and time.monotonic() < until:
            idle = not tally.batches
            monitor.drain.run_until(time.monotonic() + STEP_S)
            if idle and tally.batches:
                until = min(until, time.monotonic() + COUNT_S_MAX)
            if tally.batches >= ENOUGH_BATCHES and time.monotonic() >= start + COUNT_S_MIN:
                return

    def _end(self, monitor: Monitor) -> None:
        monitor.detach()
        monitor.attachment.close()
        if monitor.attachment.not_restored:
            raise NfprobeError(f"{monitor.attachment.not_restored[0]}.", f"nfprobe detach {self.target.pid}")


def _judge(monitor: Monitor, tally: Tally, ticks_per_second: float) -> Found:
    """Selects the functions worth a probe from the counts."""
    roles = {role.address for role in monitor.attachment.choice.roles}
    tried = sum(probe.request.plan.address not in roles for probe in monitor.attachment.probes)
    found = Found(tried, tally.batches)
    if not tally.batches:
        return found
    call_ticks = max(1.0, ticks_per_call(monitor.attachment.costs))
    rows = _rows(monitor, tally)
    probed_calls = float(tally.in_batches.sum()) / tally.batches
    # Uses the median: neither the trial's own cost to a batch nor preemption may make room for more probes.
    batch_ticks = max(1.0, tally.quantile(Distribution.BATCH_TICKS, 0.5) - probed_calls * call_ticks)
    kept, found.left_out = thin(rows, call_ticks, batch_ticks)
    ns = 1e9 / ticks_per_second
    found.chosen = [row.function for row in kept]
    found.calls = sum(row.per_batch for row in kept)
    found.cost_ns = found.calls * call_ticks * ns
    found.batch_ns = batch_ticks * ns
    return found


def _rows(monitor: Monitor, tally: Tally) -> list[Counted]:
    roles = {role.address for role in monitor.attachment.choice.roles}
    functions = {probe.id: probe.request.plan.function for probe in monitor.attachment.probes}
    rows: list[Counted] = []
    for line in tally.functions():
        index, count = int(line["function"]), int(line["count"])
        function = functions.get(index)
        if function is None or function.address in roles:
            continue
        inside, elsewhere, clipped = (
            int(counts[index]) for counts in (tally.in_batches, tally.elsewhere, tally.clipped)
        )
        per_batch = inside / tally.batches
        outside = elsewhere / max(1, inside)
        mean, own = int(line["total_ticks"]) / count, int(line["self_ticks"])
        rows.append(Counted(function, per_batch, outside, clipped / count, mean, own))
    return rows


def describe(found: Found, pid: int, notify: Callable[..., None]) -> None:
    """Reports what was chosen and its cost, in a sentence or two."""
    if not found.candidates:
        notify(
            "trial: this program is large, and the kernel does not show which of its functions run: only the"
            " adapter's functions are probed.",
            f"nfprobe attach {pid} --functions GLOB",
        )
    elif not found.batches:
        notify(
            "trial: no packets arrived, so the functions that process them are unknown: only the adapter's are probed.",
            f"nfprobe attach {pid} --trial 30s",
        )
    else:
        left = ", ".join(f"{count} {reason}" for reason, count in found.left_out.items())
        ran = f"trial: {found.batches:,} batches of {found.batch_ns / 1000:.1f} us, {found.candidates} functions tried"
        left = f" Left out: {left}." if left else ""
        if not found.chosen:
            notify(f"{ran}; none is worth a probe beside the adapter's.{left}")
            return
        names = ", ".join(function.label for function in found.chosen)
        cost = f"{found.calls:.1f} calls and about {found.cost_ns:.0f} ns a batch"
        notify(f"{ran}; probed beside the adapter's: {names}: {cost}.{left}")
