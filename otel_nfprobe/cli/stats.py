# SPDX-License-Identifier: Apache-2.0
"""`nfprobe stats PID FUNCTION`: how long the calls of one function take."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from typing import Any

import numpy as np

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import CallFlag, Columns
from otel_nfprobe.base.distinct import distinct
from otel_nfprobe.base.errors import RefusedError, UsageError
from otel_nfprobe.base.strategies import ENTRY_ONLY, STRATEGIES
from otel_nfprobe.cli.attach import StopSignals
from otel_nfprobe.cli.main import EXIT_DONE, EXIT_NOT_DONE, print_json
from otel_nfprobe.cli.notices import notify
from otel_nfprobe.cli.options import parse_bytes, parse_seconds
from otel_nfprobe.cli.process_argument import parse_process
from otel_nfprobe.cli.session_options import RING_BYTES, add_counter_options, check_counting, find_counters
from otel_nfprobe.kernel.kernelprobe import KernelCost, KernelProbe, find_whose, measure_cost
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.pipeline.durations import Durations
from otel_nfprobe.pipeline.statistics import Statistics
from otel_nfprobe.probes.calibration import Cost, costs_by_id
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.report.views.distribution import render_distribution
from otel_nfprobe.shm.session import RING_BYTES_MAX, RING_BYTES_MIN
from otel_nfprobe.target.leftover import refuse_second
from otel_nfprobe.target.target import Target

SECONDS = 5.0
ROWS = 24
RESOLVED = 3  # calls shorter than this multiple of their probe's cost are marked


class StatsCommand:
    """Measures every call of one function for a while: count, mean, percentiles, histogram.

    FUNCTION is module:name, module:0xoffset or a name; it must match one function. kernel:NAME is a function of the
    kernel, called by the process, or by any process if PID is `all`.
    """

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "pid",
            metavar="PID",
            type=_parse_pid,
            help="process to measure, or its name; for kernel functions also: all",
        )
        parser.add_argument("function", metavar="FUNCTION", help="module:name, module:0xoffset, a name, or kernel:NAME")
        parser.add_argument(
            "--for", dest="seconds", type=parse_seconds, default=SECONDS, metavar="TIME", help="how long (default: 5s)"
        )
        add_counter_options(parser)
        parser.add_argument("--strategy", choices=tuple(STRATEGIES), help="only this strategy")
        parser.add_argument("--no-stop", action="store_true", help="never stop the target's threads")
        parser.add_argument(
            "--ring-size", type=parse_bytes, default=RING_BYTES, metavar="BYTES", help="ring of each thread"
        )
        parser.add_argument("--json", action="store_true", help="print one JSON value as the last line")

    def run(self, arguments: argparse.Namespace) -> int:
        refuse_options(arguments)
        if is_kernel(arguments.function):
            with StopSignals() as signals:
                signals.at_once = False
                found, durations = measure_kernel(arguments, signals.stopping)
            _show(arguments, found, durations, 1.0)
            return EXIT_DONE
        return self._run(arguments)

    def _run(self, arguments: argparse.Namespace) -> int:
        chosen = find_counters(arguments)
        with StopSignals() as signals:
            target = Target(arguments.pid)
            check_target(target)
            refuse_second(target)
            check_counting(target, chosen)
            choice = choose_one(arguments, target)
            monitor = Monitor(Attachment(target, choice, arguments.ring_size, notify, signals.stopping), NONE)
            monitor.counters, monitor.software_counters = chosen.hardware, chosen.software
            signals.at_once = False
            calls = measure(monitor, arguments.seconds)
        _show(arguments, describe(monitor, calls), calls.durations, 1e9 / monitor.drain.clock.ticks_per_second)
        for sentence in monitor.attachment.not_restored:
            notify(f"{sentence}.", f"nfprobe detach {target.pid}")
        return EXIT_NOT_DONE if monitor.attachment.not_restored else EXIT_DONE


def _parse_pid(text: str) -> int | None:
    """A process, or None for all."""
    return None if text == "all" else parse_process(text)


def _show(arguments: argparse.Namespace, found: dict[str, Any], durations: Durations, ns: float) -> None:
    if arguments.json:
        print_json(found)
    else:
        bins = [(lowest * ns, count) for lowest, count in durations.bins(ROWS)]
        sys.stdout.write(render_distribution(found, bins))


def choose_one(arguments: argparse.Namespace, target: Target) -> Choice:
    """Returns the matching function, with its strategy.

    Raises:
        UsageError: several functions match.
        RefusedError: it cannot be probed, or only its entry can.
    """
    choice = choose(target, None, [arguments.function], [], arguments.strategy, arguments.no_stop)
    labels = sorted({plan.function.label for plan in choice.plans})
    if len(labels) > 1:
        some = ", ".join(labels[:4]) + (", ..." if len(labels) > 4 else "")
        sentence = f"{arguments.function!r} means {len(labels)} functions: {some}."
        raise UsageError(sentence, f"nfprobe stats {target.pid} {labels[0]}")
    timed = [plan for plan in choice.plans if plan.strategy not in (None, ENTRY_ONLY)]
    if not timed:
        refused = [plan.reason for plan in choice.plans if plan.strategy is None]
        reason = refused[0] if refused else "only its entry can be probed, so its calls have no duration"
        raise RefusedError(f"{arguments.function} cannot be measured: {reason}.", f"nfprobe functions {target.pid}")
    choice.plans = timed
    return choice


class FunctionCalls(Statistics):
    """Durations of all calls in addition to the usual statistics.

    Attributes:
        durations: of calls measured from start to end.
    """

    def __init__(self) -> None:
        super().__init__()
        self.durations = Durations()

    def add(self, columns: Columns) -> None:
        """See Statistics."""
        super().add(columns)
        calls = columns.calls
        whole = calls[(calls["flags"] & (CallFlag.CLIPPED | CallFlag.SHARED | CallFlag.MARK)) == 0]
        for thread in distinct(whole["thread"]).tolist():
            rows = whole[whole["thread"] == thread]
            raw = (rows["end_ticks"] - rows["start_ticks"]).astype(np.int64)
            self.durations.add(thread, raw, rows["cost_ticks"].astype(np.int64))


def measure(monitor: Monitor, seconds: float) -> FunctionCalls:
    """Inserts probes, counts for the given time, and removes the probes.

    Raises:
        NfprobeError: nothing was measured.
    """
    calls = FunctionCalls()
    monitor.attachment.attach()
    try:
        monitor.start(Clock.start(), None, None)
        calls.set_costs(costs_by_id(monitor.attachment.probes, monitor.attachment.costs))
        monitor.drain.statistics = calls
    except BaseException:
        monitor.attachment.abandon()
        raise
    try:
        monitor.run(seconds, lambda: None)
    finally:
        monitor.detach()
    return calls


def describe(monitor: Monitor, calls: FunctionCalls) -> dict[str, Any]:
    """Returns the object of `nfprobe stats --json` (docs/command-line.md)."""
    durations, ns = calls.durations, 1e9 / monitor.drain.clock.ticks_per_second
    warm_up = durations.finish()
    plan = monitor.attachment.probes[0].request.plan
    cost = monitor.attachment.costs.get(plan.strategy or "", Cost(0.0, 0.0))
    median, sums = durations.quantile(0.5), monitor.drain.counter_sums
    found = {
        "function": plan.function.label,
        "strategy": plan.strategy,
        "seconds": round(monitor.seconds, 6),
        **durations.describe(ns),
        "counters": {} if sums is None else sums.of_function(monitor.attachment.probes[0].id),
        "threads": monitor.software.totals(),
        "warm_up": warm_up,
        "probe_ns": {"inside": round(cost.inside_ticks * ns, 2), "whole": round(cost.whole_ticks * ns, 2)},
        "below_resolution": bool(durations.count) and median < RESOLVED * cost.whole_ticks,
        "lost": dict(monitor.snapshot().lost),
    }
    monitor.attachment.close()
    return found


# ---- functions of the kernel ----------------------------------------------------------------------------------------
# `nfprobe stats PID kernel:FUNCTION`: how long the calls of a kernel function take.


PREFIX = "kernel:"
PAUSE_S = 0.005  # a ring of 16 MiB holds 140 ms of 5 million calls a second


def refuse_options(arguments: argparse.Namespace) -> None:
    """Refuses options that apply to functions of the target only.

    Raises:
        UsageError: one was given.
    """
    if arguments.pid is None and not is_kernel(arguments.function):
        raise UsageError("Only kernel functions can be measured in all processes.", "nfprobe stats all kernel:FUNCTION")
    if not is_kernel(arguments.function):
        return
    for name in ("counters", "strategy", "no_stop"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} applies to functions of the program, not of the kernel.", "nfprobe stats --help"
            )
    size = arguments.ring_size
    if size & (size - 1) or not RING_BYTES_MIN <= size <= RING_BYTES_MAX:
        raise UsageError("--ring-size must be a power of two from 64KiB to 256MiB.", "nfprobe stats --help")


def is_kernel(function: str) -> bool:
    """Returns whether a kernel function is selected."""
    return function.startswith(PREFIX)


def measure_kernel(arguments: argparse.Namespace, stopping: threading.Event) -> tuple[dict[str, Any], Durations]:
    """Measures until the time is over, the user stops it, or the process has ended.

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
            notify(f"{probe.refusal} As a system call it is measured by tracepoints.")
        cost = measure_cost(probe.strategy)
        durations = _Taken(probe, cost)
        started_at = time.monotonic()
        of = "all processes" if target is None else f"process {target.pid}"
        notify(f"{arguments.function} is measured in {of}. Ctrl-C stops.")
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
    # Results read from a probe so far.
    def __init__(self, probe: KernelProbe, cost: KernelCost | None) -> None:
        self.kept = Durations()
        self._probe = probe
        self._cost = cost

    def take(self) -> None:
        rows = self._probe.take()
        for thread in distinct(rows["thread"]).tolist():
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
