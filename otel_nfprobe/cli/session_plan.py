# SPDX-License-Identifier: Apache-2.0
"""The plan of a session: which functions are probed, which packets are identified. Does not touch the target."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Sequence
from dataclasses import replace

from otel_nfprobe.adapters.base import FREE, Adapter, FreeingAdapter
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.cli.notices import notify
from otel_nfprobe.cli.options import find_identity
from otel_nfprobe.cli.session_options import check_counting
from otel_nfprobe.export.destination import find_complaint
from otel_nfprobe.metrics.metrics_settings import find_settings
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.detail import AUTO, Detail
from otel_nfprobe.monitor.latecapture import ALL, CapturePolicy
from otel_nfprobe.monitor.malloc_tuning import give_back, limit_heap
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.preflight import describe_unreadable
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target


def plan(
    arguments: argparse.Namespace,
    target: Target,
    adapter: Adapter | None,
    stopping: threading.Event,
) -> Monitor:
    """Decides what to probe, without touching the target."""
    limit_heap()
    find_settings(arguments.endpoint, os.environ)  # refuses unusable variables
    if complaint := find_complaint(os.environ):
        notify(complaint)
    if adapter is not None and arguments.adapter == "auto" and (arguments.functions or arguments.captures):
        adapter = _if_it_finds_roles(adapter, target)
    choice = _choose(arguments, target, adapter, arguments.functions)
    if adapter is not None and arguments.adapter == "auto":
        notify(f"adapter {adapter.name}: {adapter.recognise(target)}.")
    for sentence in describe_unreadable(target):
        notify(sentence)
    identity, policy = find_identity(arguments), _choose_policy(arguments)
    detail = Detail(arguments.slower_than, policy.slowest) if arguments.detail == AUTO else None
    attachment = Attachment(target, choice, arguments.ring_size, notify, stopping, identity)
    monitor = Monitor(attachment, arguments.packets, policy=policy, detail=detail)
    check_counting(target, arguments.counter_choice)
    monitor.counters = arguments.counter_choice.hardware
    monitor.software_counters = arguments.counter_choice.software
    monitor.profile_hertz = arguments.profile or 0
    give_back()
    return monitor


def _choose_policy(arguments: argparse.Namespace) -> CapturePolicy:
    policy = CapturePolicy.choose(arguments.slower_than, arguments.slowest, arguments.sample)
    if arguments.trigger is None:
        return policy
    # Only identified packets can trigger a flight recorder.
    bounds = [arguments.trigger, *([] if policy.slower_than_ns is None else [policy.slower_than_ns])]
    return replace(policy, slower_than_ns=min(bounds))


def _if_it_finds_roles(adapter: Adapter, target: Target) -> Adapter | None:
    """An automatically selected adapter must not prevent measuring the functions of --functions."""
    try:
        adapter.roles(target)
    except RefusedError as error:
        notify(f"{error.sentence} Only --functions are probed.")
        return None
    return adapter


def _choose(arguments: argparse.Namespace, target: Target, adapter: Adapter | None, globs: Sequence[str]) -> Choice:
    if isinstance(adapter, FreeingAdapter):  # only packets identified at receipt are found when they are freed
        adapter.finds_free = arguments.packets == ALL
    choice = choose(
        target,
        adapter,
        globs,
        arguments.exclude,
        arguments.strategy,
        arguments.no_stop,
        arguments.archive,
        arguments.captures,
    )
    if arguments.packets != ALL:
        choice.leave_out(FREE)
    return choice


def choose_by_trial(arguments: argparse.Namespace, monitor: Monitor, seconds: float) -> None:
    """If only the adapter named functions, runs a trial to find others worth a probe.

    Args:
        monitor: result of `plan`; its selection is replaced.
        seconds: time limit of the trial; 0: none.

    Raises:
        NfprobeError: it was stopped, or the target has ended.
    """
    attachment = monitor.attachment
    target, adapter, stopping = attachment.target, attachment.choice.adapter, attachment.stopping
    if not seconds or adapter is None or adapter.inner or arguments.functions or arguments.captures:
        return
    from otel_nfprobe.monitor.trial import Trial, describe  # slow to load, and few sessions need it

    strategy, no_stop, size = arguments.strategy, arguments.no_stop, arguments.ring_size
    try:
        found = Trial(target, adapter, arguments.exclude, strategy, no_stop, size, stopping).run(seconds)
    except NfprobeError as error:
        if stopping.is_set() or not target.is_alive():
            raise
        notify(f"trial: {error.sentence} Only the adapter's functions are probed.")
        return
    describe(found, target.pid, notify)
    if found.chosen:
        monitor.attachment.choice = _choose(arguments, target, adapter, found.globs())


def describe_probes(monitor: Monitor, subject: int | str) -> str:
    """Describes the probes for the first message of a session; `subject` is the argument for `nfprobe functions`."""
    choice = monitor.attachment.choice
    refused = sum(choice.refused.values())
    knows = f", adapter {choice.adapter.name}" if choice.adapter else ""
    skipped = f", {refused} refused (nfprobe functions {subject})" if refused else ""
    return f"{len(monitor.attachment.probes)} functions probed{skipped}{knows}"
