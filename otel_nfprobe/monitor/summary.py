# SPDX-License-Identifier: Apache-2.0
"""The summary of a session: what was probed, read, lost and counted, and what it cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe.adapters.base import RECEIVE, NumberingAdapter
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.calibration import ticks_per_call
from otel_nfprobe.shm.session import LOST_CLASSES


def summarise(monitor: Monitor) -> dict[str, Any]:
    """The summary object of attach and run (docs/command-line.md), after the detach."""
    counts = monitor.drain.pipeline.counts()
    clock = monitor.drain.clock
    return {
        "pid": monitor.target.pid,
        "session": f"{monitor.session.header.epoch}",
        "seconds": round(monitor.seconds, 6),
        "target_ended": monitor.target_ended,
        "adapter": monitor.choice.adapter.name if monitor.choice.adapter else None,
        "functions": {
            "probed": len(monitor.probes),
            "refused": dict(monitor.choice.refused),
            "stored_pointers": monitor.uncovered,
            "switched_off": monitor.switched_off,
        },
        "modules": {
            "loaded": monitor.follower.loaded,
            "closed": monitor.follower.closed,
            "rebound_slots": monitor.follower.rebound,
        },
        "records": {"read": monitor.drain.records, "lost": count_lost(monitor)},
        "calls": counts.calls,
        "unpaired": {"entries": counts.unpaired_entries, "exits": counts.unpaired_exits},
        "ungated": counts.ungated,
        "open": counts.open,
        "marked": counts.marked,
        "threads": _list_threads(monitor),
        "batches": count_received(monitor)[0],
        "packets": count_packets(monitor),
        **_count_identified(monitor),
        "ids": monitor.drain.repeats.counts().as_summary(),
        "stops": {"count": monitor.patcher.stops.count + 1, "longest_ns": _find_longest_stop_ns(monitor)},
        "live": {"changed": monitor.patcher.live.changed, "traps": monitor.patcher.live.traps},
        "injection": {"stopped_ns": monitor.injected.stopped_ns, "thread": monitor.injected.thread},
        "clock": {
            "error_ns": int(clock.error_ns),
            "ticks_per_second": round(clock.ticks_per_second),
            "set_ns": int(clock.stepped_ns),
        },
        "stolen": monitor.stolen.describe(),
        "overhead": _describe_overhead(monitor, counts.calls),
        "counters": _describe_counters(monitor),
        **({"profile": profile} if (profile := monitor.profile.describe()) else {}),
        **({"nodes": nodes} if (nodes := _list_nodes(monitor)) else {}),
        **({"drop_reasons": reasons} if (reasons := _list_drop_reasons(monitor)) else {}),
        "not_restored": monitor.not_restored,
    }


def _describe_overhead(monitor: Monitor, calls: int) -> dict[str, Any]:
    ticks = ticks_per_call(monitor.costs)
    elapsed_ticks = max(1.0, monitor.seconds * monitor.drain.clock.ticks_per_second)
    return {
        "ticks_per_call": round(ticks, 1),
        "share_of_core": round(calls * ticks / elapsed_ticks, 6),
        "by_strategy": {
            strategy: {"inside_ticks": round(cost.inside_ticks, 1), "whole_ticks": round(cost.whole_ticks, 1)}
            for strategy, cost in monitor.costs.items()
        },
    }


def _describe_counters(monitor: Monitor) -> dict[str, Any]:
    sums, software = monitor.drain.counter_sums, monitor.software.totals()
    found: dict[str, Any] = {"threads": software} if software else {}
    if sums is None:
        return found
    found |= {"names": sums.names, "changes": sums.changes, **sums.count_calls(), "refused": monitor.counting.refused}
    found["compensated"] = sums.are_compensated
    return found | sums.of_batches()


def _list_nodes(monitor: Monitor) -> list[dict[str, Any]]:
    ns_per_tick = 1e9 / monitor.drain.clock.ticks_per_second
    return monitor.drain.nodes.describe(monitor.drain.names, ns_per_tick)


def _list_drop_reasons(monitor: Monitor) -> list[dict[str, Any]]:
    return monitor.drain.drops.describe(monitor.drain.names.reasons)


def count_lost(monitor: Monitor) -> dict[str, int]:
    """Lost records by class."""
    threads = [thread.lost for thread in monitor.session.thread_counts()]
    lost = np.array([*threads, monitor.session.unregistered()]).sum(axis=0).tolist()
    mistimed = monitor.drain.pipeline.counts().mistimed
    return {**dict(zip(LOST_CLASSES, lost, strict=True)), "torn": monitor.session.torn, "mistimed": mistimed}


def _list_threads(monitor: Monitor) -> list[dict[str, Any]]:
    names = monitor.drain.thread_names
    return [
        {
            "tid": count.tid,
            "name": names.get(count.tid, ""),
            "polls": count.empty_polls + count.batches,
            "empty_polls": count.empty_polls,
            "empty_ticks": count.empty_ticks,
            "batches": count.batches,
            "packets": count.received,
            "handed_over": count.handed_over,
            "taken_over": count.taken_over,
            **({} if (number := monitor.drain.names.thread_number(count.tid)) is None else {"number": number}),
        }
        for count in monitor.session.thread_counts()
    ]


def count_packets(monitor: Monitor) -> dict[str, int]:
    """Packets received, and by what became of them; counters in the threads are exact even when records were lost."""
    if _is_counted_here(monitor):
        counts = monitor.drain.pipeline.counts()
        received, transmitted, dropped, punted = counts.received, counts.transmitted, counts.dropped, counts.punted
        unknown = counts.unknown + counts.pending
    else:
        threads = monitor.session.thread_counts()
        received = sum(count.received for count in threads)
        transmitted = sum(count.transmitted for count in threads)
        dropped = sum(count.dropped for count in threads) + monitor.drain.pipeline.counts().freed
        punted = sum(count.punted for count in threads)
    rare = {"punted": punted, "absorbed": monitor.drain.pipeline.counts().absorbed}
    rare["generated"] = _count_generated(monitor)
    unknown = max(0, received + rare["generated"] - transmitted - dropped - punted - rare["absorbed"])
    found = {"received": received, "transmitted": transmitted, "dropped": dropped, "unknown": unknown}
    return {**found, **{name: count for name, count in rare.items() if count}}


def _count_generated(monitor: Monitor) -> int:
    """Packets that the target has made itself, among those that left; 0 where it was not looked at each one."""
    is_sure = isinstance(monitor.choice.adapter, NumberingAdapter) and not any(count_lost(monitor).values())
    return monitor.drain.pipeline.counts().generated if is_sure else 0


def _count_identified(monitor: Monitor) -> dict[str, Any]:
    """What became of late capture, where it was asked for."""
    if monitor.drain.late is None:
        return {}
    counts, read = monitor.session.late_counts(), monitor.drain.pipeline.counts()
    packets = sum(count.identified for count in counts)
    tids = {count.index: count.tid for count in monitor.session.thread_counts()}
    return {
        "identified": {
            "packets": packets,
            "lost": max(0, packets - read.identified),
            "unplaced": read.unplaced,
            "unheld": sum(count.unheld for count in counts),
            "checked": sum(count.checked for count in counts),
            "differing": sum(count.differing for count in counts),
            "copying": [tids.get(count.index, 0) for count in counts if count.copying],
        }
    }


def count_received(monitor: Monitor) -> tuple[int, int]:
    """Batches and packets received until now."""
    if _is_counted_here(monitor):
        counts = monitor.drain.pipeline.counts()
        return counts.batches, counts.received
    threads = monitor.session.thread_counts()
    return sum(count.batches for count in threads), sum(count.received for count in threads)


def _is_counted_here(monitor: Monitor) -> bool:
    """Whether batches and packets are made of calls: the threads of the target have not counted them."""
    return not any(role.role == RECEIVE for role in monitor.choice.roles)


def _find_longest_stop_ns(monitor: Monitor) -> int:
    return max(monitor.patcher.stops.longest_ns, monitor.injected.stopped_ns)
