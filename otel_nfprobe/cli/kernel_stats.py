# SPDX-License-Identifier: Apache-2.0
"""`nfprobe stats PID kernel:FUNCTION`: how long the calls of a function of the kernel take."""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import numpy as np

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.cli.notices import say
from otel_nfprobe.kernel.cost import KernelCost, measure_cost
from otel_nfprobe.kernel.kernelprobe import KernelProbe, find_whose
from otel_nfprobe.pipeline.durations import Durations
from otel_nfprobe.shm.session import RING_BYTES_MAX, RING_BYTES_MIN
from otel_nfprobe.target.target import Target

PREFIX = "kernel:"
PAUSE_S = 0.005  # a ring of 16 MiB holds 140 ms of 5 million calls a second
RESOLVED = 3  # calls shorter than so many times their programs are marked


def refuse_options(arguments: argparse.Namespace) -> None:
    """Refuses what is of functions of the target only.

    Raises:
        UsageError: it was asked for.
    """
    if arguments.pid is None and not is_kernel(arguments.function):
        raise UsageError("Only kernel functions can be measured in all processes.", "nfprobe stats all kernel:FUNCTION")
    if not is_kernel(arguments.function):
        return
    for name in ("counters", "strategy", "no_stop"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is of functions of the program, not of the kernel.", "nfprobe stats --help")
    size = arguments.ring_size
    if size & (size - 1) or not RING_BYTES_MIN <= size <= RING_BYTES_MAX:
        raise UsageError("--ring-size must be a power of two from 64KiB to 256MiB.", "nfprobe stats --help")


def is_kernel(function: str) -> bool:
    """Whether a function of the kernel is meant."""
    return function.startswith(PREFIX)


def measure_kernel(arguments: argparse.Namespace, stopping: threading.Event) -> tuple[dict[str, Any], Durations]:
    """Measures until the time is over, it is stopped, or the process has ended.

    Returns:
        the object of `nfprobe stats --json`, and the durations, whose ticks are ns.

    Raises:
        NfprobeError: nothing was measured.
    """
    target = None if arguments.pid is None else Target(arguments.pid)
    name = arguments.function.removeprefix(PREFIX)
    whose = None if target is None else find_whose(target.pid)
    probe = KernelProbe(name, whose, arguments.ring_size)
    try:
        if probe.refusal:
            say(f"{probe.refusal} As a system call it is measured by tracepoints.")
        cost = measure_cost(probe.strategy)
        durations = _Taken(probe, cost)
        started_at = time.monotonic()
        of = "all processes" if target is None else f"process {target.pid}"
        say(f"{arguments.function} is measured in {of}. Ctrl-C ends that.")
        until = started_at + arguments.seconds
        while not stopping.is_set() and time.monotonic() < until and (target is None or target.is_alive()):
            durations.take()
            time.sleep(PAUSE_S)
        probe.detach()
        seconds = time.monotonic() - started_at
        durations.take()
        return durations.describe(arguments.function, seconds), durations.kept
    finally:
        probe.close()


class _Taken:
    # What was taken from a probe so far.
    def __init__(self, probe: KernelProbe, cost: KernelCost | None) -> None:
        self.kept = Durations()
        self._probe = probe
        self._cost = cost

    def take(self) -> None:
        rows = self._probe.take()
        for thread in np.unique(rows["thread"]).tolist():
            raw = rows["duration_ns"][rows["thread"] == thread].astype(np.int64)
            inside = round(self._cost.inside_ns) if self._cost else 0
            self.kept.add(thread, raw, np.full(len(raw), inside, np.int64))

    def describe(self, function: str, seconds: float) -> dict[str, Any]:
        counts, cost = self._probe.counts(), self._cost or KernelCost(0.0, 0.0)
        warm_up = self.kept.finish()
        return {
            "function": function,
            "strategy": self._probe.strategy,
            "seconds": round(seconds, 6),
            **self.kept.describe(1.0),
            "counters": {},
            "threads": [],
            "warm_up": warm_up,
            "probe_ns": {"inside": round(cost.inside_ns, 2), "whole": round(cost.whole_ns, 2)},
            "below_resolution": bool(self.kept.count) and self.kept.quantile(0.5) < RESOLVED * cost.whole_ns,
            "lost": {"call": counts["lost"], "missed": counts["missed"]},
            "open": max(0, counts["entered"] - counts["left"]),
        }
