# SPDX-License-Identifier: Apache-2.0
"""Monitor: one session from attach to detach. Decides what is probed, puts the parts together, sums up.

Order of an attach: check the target, read its files and decide (nothing is touched) -> inject -> trampolines
-> arm in one batched stop -> open the gates -> drain. Order of a detach: disarm -> let calls that are inside
end -> close the gates -> drain what is left -> the helper thread leaves.
"""

from __future__ import annotations

import os
import select
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.calibration import ticks_per_call
from otel_nfprobe.choice import Choice
from otel_nfprobe.clock import Clock
from otel_nfprobe.digest import DEFAULT_KEY
from otel_nfprobe.drain import Drain, SpanPath
from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.inject import Injected, inject
from otel_nfprobe.patch import Patcher, text_digests
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import FunctionInfo, RecordingWriter
from otel_nfprobe.session import GATE_INNER, GATE_OUTER, GATE_PACKETS, LOST_CLASSES, Session
from otel_nfprobe.statistics import Statistics
from otel_nfprobe.target import Target
from otel_nfprobe.trampoline import Probe, Trampolines

GRACE_S = 0.03  # for calls that are inside a probe when their function is disarmed
STEP_S = 0.05  # how often the end of the target or of the time is looked for


@dataclass
class Monitor:
    """One session on one target.

    Attributes:
        target: checked.
        choice: what to probe.
        ring_bytes: of each thread's ring.
        packets: write packet records (`--packets=all`).
        say: tells a person what happens.
    """

    target: Target
    choice: Choice
    ring_bytes: int
    packets: bool
    say: Callable[[str], None]
    stopping: threading.Event = field(default_factory=threading.Event)
    probes: list[Probe] = field(default_factory=list)
    target_ended: bool = False
    not_restored: list[str] = field(default_factory=list)
    _abandoned: bool = True  # nothing of ours is in the target

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
        self._process = os.pidfd_open(self.target.pid)
        self.injected: Injected = inject(self.target, self.ring_bytes)
        self._abandoned = False
        self.session: Session = self.injected.session
        self.patcher = Patcher(self.session, self.target)
        try:
            leftover = self.patcher.disarm()
            if leftover:
                self.say(f"{len(leftover)} probes of a killed monitor were gone already.")
            self._modules = {request.plan.module.base: request.plan.module for request in requests}.values()
            self._text_before = text_digests(self.target, self._modules)
            self._write_programs()
            made, refused = Trampolines(self.session, self.target).make(requests)
            self._check_not_stopped()
            self.probes, differ = self.patcher.arm(made)
            for reasons in (refused, differ):
                for reason, count in reasons.items():
                    self.choice.refuse(reason, count)
            if not self.probes:
                raise NfprobeError(
                    "No function could be probed: " + ", ".join(self.choice.refused) + ".",
                    f"nfprobe functions {self.target.pid}",
                )
        except BaseException:
            self.abandon()
            raise

    def _check_not_stopped(self) -> None:
        if self.stopping.is_set():
            raise NfprobeError(
                f"Stopped before the probes were in place; process {self.target.pid} is as it was.",
                f"nfprobe status {self.target.pid}",
            )

    def _write_programs(self) -> None:
        self.session.header.digest_key = struct.unpack("<2Q", DEFAULT_KEY)
        for index, role in enumerate(self.choice.roles):
            program = self.session.program(index)
            program.role = role.role
            for name, value in role.program.items():
                setattr(program, name, value)

    def roles_by_id(self) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Role (enum nfp_role) of each function id."""
        roles = np.zeros(max((probe.id for probe in self.probes), default=-1) + 1, dtype=np.uint8)
        for probe in self.probes:
            if probe.request.shape != lib.NFP_SHAPE_CALL:
                roles[probe.id] = self.choice.roles[probe.request.program].role
        return roles

    def functions(self) -> list[FunctionInfo]:
        """The probed functions, for the recording."""
        roles = self.roles_by_id()
        return [
            FunctionInfo(
                probe.id,
                int(roles[probe.id]),
                probe.request.plan.module.path,
                probe.request.plan.offset,
                probe.request.plan.size,
                _name(probe),
                probe.request.plan.name_source,
                probe.request.plan.strategy or "",
            )
            for probe in self.probes
        ]

    def names_by_id(self) -> list[str]:
        """Name of each function id."""
        names = [""] * (max((probe.id for probe in self.probes), default=-1) + 1)
        for probe in self.probes:
            names[probe.id] = _name(probe)
        return names

    def start(self, clock: Clock, recording: RecordingWriter | None, spans: SpanPath | None) -> None:
        """Makes the way of the data and opens the gates."""
        names = {thread.tid: thread.name for thread in self.target.threads()}
        self.drain = Drain(self.session, clock, Pipeline(self.roles_by_id()), Statistics(), recording, spans, names)
        self.drain.write(lambda recording: recording.functions(self.functions()))
        self.started_at = time.monotonic()
        self.session.open_gates(GATE_OUTER | GATE_INNER | (GATE_PACKETS if self.packets else 0))

    def run(self, seconds: float | None, progress: Callable[[], None]) -> None:
        """Drains until the time is over, someone stops it, or the target ends."""
        until = float("inf") if seconds is None else self.started_at + seconds
        while not self.stopping.is_set() and time.monotonic() < until:
            self.drain.run_until(min(until, time.monotonic() + STEP_S))
            progress()
            if self._has_ended():
                self.target_ended = True
                return
            if not self.session.helper_is_there:
                self.say("The target closed the session's memory file or another monitor took over.")
                return

    def _has_ended(self) -> bool:
        readable, _, _ = select.select([self._process], [], [], 0)
        return bool(readable)

    def detach(self) -> None:
        """Restores the target, drains what is left, ends the helper thread. Never raises for a target that is gone."""
        try:
            if not self.target_ended:
                self._disarm()
                self.drain.run_until(time.monotonic() + GRACE_S)
                self.session.close_gates()
        except NfprobeError as error:
            if not self._has_ended():
                self.say(error.sentence)
                self.not_restored.append(error.sentence)
            self.target_ended = self._has_ended()
        self.drain.run_dry()
        self.seconds = time.monotonic() - self.started_at
        self.drain.finish()
        if not self.target_ended:
            self.session.leave()

    def _disarm(self) -> None:
        for index in self.patcher.disarm():
            self.not_restored.append(f"probe {index}: its bytes were changed by someone else")
        after = text_digests(self.target, self._modules)
        for place, digest in self._text_before.items():
            if after.get(place) != digest:
                self.not_restored.append(f"{place} differs from before")

    def abandon(self) -> None:
        """Undoes an attach that is followed by no session. Does nothing where nothing was done."""
        if self._abandoned:
            return
        self._abandoned = True
        try:
            self.patcher.disarm()
        except NfprobeError as error:
            self.say(error.sentence)
        self.session.leave()
        self.close()

    def close(self) -> None:
        """Unmaps the session and gives up its lock."""
        self.session.close()
        os.close(self._process)

    # ---- summary -------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """The summary object of attach (docs/command-line.md)."""
        counts = self.drain.pipeline.counts()
        clock = self.drain.clock
        ticks = ticks_per_call()
        elapsed_ticks = max(1.0, self.seconds * clock.ticks_per_second)
        return {
            "pid": self.target.pid,
            "session": f"{self.session.header.epoch}",
            "seconds": round(self.seconds, 6),
            "target_ended": self.target_ended,
            "adapter": self.choice.adapter.name if self.choice.adapter else None,
            "functions": {"probed": len(self.probes), "refused": dict(self.choice.refused)},
            "records": {"read": self.drain.records, "lost": self._lost()},
            "calls": counts.calls,
            "unpaired": {"entries": counts.unpaired_entries, "exits": counts.unpaired_exits},
            "open": counts.open,
            **self._thread_counts(),
            "stops": {"count": self.patcher.stops.count + 1, "longest_ns": self._longest_stop_ns()},
            "injection": {"stopped_ns": self.injected.stopped_ns, "thread": self.injected.thread},
            "clock": {"error_ns": int(clock.error_ns), "ticks_per_second": round(clock.ticks_per_second)},
            "overhead": {
                "ticks_per_call": round(ticks, 1),
                "share_of_core": round(counts.calls * ticks / elapsed_ticks, 6),
            },
            "not_restored": self.not_restored,
        }

    def _lost(self) -> dict[str, int]:
        threads = [thread.lost for thread in self.session.thread_counts()]
        lost = np.array([*threads, self.session.unregistered()]).sum(axis=0).tolist()
        return {**dict(zip(LOST_CLASSES, lost, strict=True)), "torn": self.session.torn}

    def _thread_counts(self) -> dict[str, Any]:
        """What the counters in the threads say: exact even when records were lost."""
        counts = self.session.thread_counts()
        names = self.drain.thread_names
        received = sum(count.received for count in counts)
        transmitted = sum(count.transmitted for count in counts)
        dropped = sum(count.dropped for count in counts)
        return {
            "threads": [
                {
                    "tid": count.tid,
                    "name": names.get(count.tid, ""),
                    "polls": count.empty_polls + count.batches,
                    "empty_polls": count.empty_polls,
                    "empty_ticks": count.empty_ticks,
                    "batches": count.batches,
                    "packets": count.received,
                }
                for count in counts
            ],
            "batches": sum(count.batches for count in counts),
            "packets": {
                "received": received,
                "transmitted": transmitted,
                "dropped": dropped,
                "unknown": max(0, received - transmitted - dropped),
            },
        }

    def _longest_stop_ns(self) -> int:
        return max(self.patcher.stops.longest_ns, self.injected.stopped_ns)


def _name(probe: Probe) -> str:
    """The function's name; one that has none is called by its module and offset."""
    plan = probe.request.plan
    return plan.function.label if plan.name_source == "offset" else plan.name
