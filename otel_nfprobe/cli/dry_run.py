# SPDX-License-Identifier: Apache-2.0
"""`nfprobe attach PID --dry-run`: what would be probed, and what a call would cost. The target is only read.

The costs are those of probes in a program that is started for it on this machine, measured as at every attach
(probes/calibration.py): no figure of the target itself can be had without probes in it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from typing import Any

from otel_nfprobe.adapters.base import RECEIVE, TRANSMIT
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.cli.functions import print_columns
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target

STOOD_IN = ("sleep", "1000")  # the program in which probes are measured
FUNCTION = "libc.so*:getpid"
RING_BYTES = 1 << 16
HEADINGS = ("function", "strategy", "ns a call", "what it is")
WIDTHS_MAX = (48, 16, 9)


def describe_dry_run(monitor: Monitor, trial_s: float) -> dict[str, Any]:
    """Returns what a session with this plan would do.

    Args:
        monitor: result of `plan`, whose target is not touched.
        trial_s: time limit of the trial that would come first; 0: none.
    """
    choice, target = monitor.attachment.choice, monitor.attachment.target
    plans = [plan for plan in choice.plans if plan.strategy is not None]
    costs_ns, reason = measure_costs({plan.strategy for plan in plans if plan.strategy is not None})
    functions = []
    for plan in plans:
        role = choice.role_of(plan)
        functions.append(
            {
                "module": plan.module.name,
                "offset": plan.offset,
                "name": plan.name,
                "role": role.label if role else None,
                "strategy": plan.strategy,
                "call_ns": costs_ns.get(plan.strategy or ""),
            }
        )
    has_trial = bool(trial_s) and choice.adapter is not None and not choice.adapter.inner and not choice.request.globs
    return {
        "pid": target.pid,
        "name": target.name,
        "adapter": choice.adapter.name if choice.adapter else None,
        "functions": functions,
        "refused": dict(choice.refused),
        "batch_ns": _sum_batch(monitor, costs_ns),
        "cost_unknown": reason or None,
        "trial_s": trial_s if has_trial else 0,
    }


def measure_costs(strategies: Collection[str]) -> tuple[dict[str, float], str]:
    """Returns what one probed call costs on this machine, in ns by strategy; and why that is not known, or ""."""
    try:
        with subprocess.Popen(STOOD_IN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                return _measure_in(process.pid, strategies), ""
            finally:
                process.kill()
    except (NfprobeError, OSError) as error:
        return {}, error.sentence if isinstance(error, NfprobeError) else f"{STOOD_IN[0]}: {error.strerror}."


def _measure_in(pid: int, strategies: Collection[str]) -> dict[str, float]:
    target = Target(pid)
    check_target(target)
    attachment = Attachment(target, choose(target, None, [FUNCTION], []), RING_BYTES, lambda _: None)
    clock = Clock.start()
    attachment.attach()
    try:
        ns_per_tick = 1e9 / clock.ticks_per_second
        return {
            name: round(cost.whole_ticks * ns_per_tick, 1)
            for name, cost in attachment.costs.items()
            if name in strategies
        }
    finally:
        attachment.abandon()


def _sum_batch(monitor: Monitor, costs_ns: dict[str, float]) -> float | None:
    """Returns what one receive call and one transmit call cost together; None: unknown, or there are none."""
    choice = monitor.attachment.choice
    dearest: dict[int, float] = {}  # by role
    for plan in choice.plans:
        role = choice.role_of(plan)
        if role is not None and role.role in (RECEIVE, TRANSMIT) and plan.strategy in costs_ns:
            dearest[role.role] = max(dearest.get(role.role, 0.0), costs_ns[plan.strategy])
    return round(sum(dearest.values()), 1) if len(dearest) == 2 else None


def print_dry_run(found: dict[str, Any]) -> None:
    """Prints it for people."""
    by = f" by adapter {found['adapter']}" if found["adapter"] else ""
    print(f"{len(found['functions'])} functions of process {found['pid']} ({found['name']}) would be probed{by}:\n")
    rows = [
        (f"{one['module']}:{one['name']}", one["strategy"], _format_ns(one["call_ns"]), one["role"] or "")
        for one in found["functions"]
    ]
    print_columns(HEADINGS, rows, WIDTHS_MAX, right=2)
    print()
    if found["batch_ns"] is not None:
        print(f"A batch of one receive and one transmit call would take {found['batch_ns']:.0f} ns longer,")
        print("without the calls between them and what identifying packets takes.")
    if found["cost_unknown"]:
        print(f"What a call costs is not known: {found['cost_unknown']}")
    if found["refused"]:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found["refused"].items())
        print(f"{sum(found['refused'].values())} would not be probed: {reasons}.")
    if found["trial_s"]:
        print(f"Before that, a trial of up to {found['trial_s']:g} s would find other functions worth a probe.")
    print(f"Nothing was changed. Next: nfprobe attach {found['pid']}")


def _format_ns(ns: float | None) -> str:
    return "-" if ns is None else f"{ns:.1f}"
