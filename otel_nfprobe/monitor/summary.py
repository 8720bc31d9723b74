# SPDX-License-Identifier: Apache-2.0
"""The summary of a session: what was probed, read, lost and counted, and what it cost."""

from __future__ import annotations

from typing import Any

from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.snapshot import SessionSnapshot
from otel_nfprobe.probes.calibration import ticks_per_call


def summarise(monitor: Monitor) -> dict[str, Any]:
    """Returns the summary object of attach and run (docs/command-line.md); call after the detach."""
    attachment, now, drain = monitor.attachment, monitor.snapshot(), monitor.drain
    counts, clock = now.counts, drain.clock
    return {
        "pid": attachment.target.pid,
        "session": f"{attachment.session.header.epoch}",
        "seconds": round(now.elapsed_s, 6),
        "target_ended": attachment.has_gone,
        "adapter": attachment.choice.adapter.name if attachment.choice.adapter else None,
        "functions": {
            "probed": len(attachment.probes),
            "refused": dict(attachment.choice.refused),
            "stored_pointers": attachment.uncovered,
            "switched_off": monitor.switched_off,
        },
        "modules": {
            "loaded": attachment.follower.loaded,
            "closed": attachment.follower.closed,
            "rebound_slots": attachment.follower.rebound,
        },
        "records": {"read": drain.records, "lost": dict(now.lost)},
        "calls": counts.calls,
        "unpaired": {"entries": counts.unpaired_entries, "exits": counts.unpaired_exits},
        "ungated": counts.ungated,
        "open": counts.open,
        "marked": counts.marked,
        "threads": _list_threads(monitor, now),
        "batches": now.received()[0],
        "packets": now.packets(),
        "prior": drain.statistics.describe_prior(1e9 / clock.ticks_per_second),
        **_count_identified(now),
        "ids": drain.repeats.counts().as_summary(),
        "stops": {"count": attachment.patcher.stops.count + 1, "longest_ns": _find_longest_stop_ns(monitor)},
        "live": {"changed": attachment.patcher.live.changed, "traps": attachment.patcher.live.traps},
        "injection": {"stopped_ns": attachment.injected.stopped_ns, "thread": attachment.injected.thread},
        "clock": {
            "error_ns": int(clock.error_ns),
            "ticks_per_second": round(clock.ticks_per_second),
            "set_ns": int(clock.stepped_ns),
        },
        "stolen": monitor.stolen.describe(),
        "overhead": _describe_overhead(now),
        "counters": _describe_counters(monitor),
        **({"profile": profile} if (profile := monitor.profile.describe()) else {}),
        **({"nodes": nodes} if (nodes := drain.nodes.describe(drain.names, 1e9 / clock.ticks_per_second)) else {}),
        **({"drop_reasons": reasons} if (reasons := drain.drops.describe(drain.names.reasons)) else {}),
        **({"queue_drops": drops} if (drops := drain.queue_drops.describe()) else {}),
        "not_restored": attachment.not_restored,
    }


def _describe_overhead(now: SessionSnapshot) -> dict[str, Any]:
    return {
        "ticks_per_call": round(ticks_per_call(now.costs), 1),
        "share_of_core": round(now.share_of_core, 6),
        "share_of_core_max": round(now.share_of_core_max, 6),
        "templates": round(now.template_ticks / now.elapsed_ticks, 6),
        "code": round(now.code_ticks / now.elapsed_ticks, 6),
        "by_strategy": {
            strategy: {"inside_ticks": round(cost.inside_ticks, 1), "whole_ticks": round(cost.whole_ticks, 1)}
            for strategy, cost in now.costs.items()
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


def _list_threads(monitor: Monitor, now: SessionSnapshot) -> list[dict[str, Any]]:
    return [
        {
            "tid": count.tid,
            "name": now.thread_names.get(count.tid, ""),
            "polls": count.empty_polls + count.batches,
            "empty_polls": count.empty_polls,
            "empty_ticks": count.empty_ticks,
            "batches": count.batches,
            "packets": count.received,
            "handed_over": count.handed_over,
            "taken_over": count.taken_over,
            **({} if (number := monitor.drain.names.thread_number(count.tid)) is None else {"number": number}),
        }
        for count in now.threads
    ]


def _count_identified(now: SessionSnapshot) -> dict[str, Any]:
    """Returns the results of late capture, if it was requested."""
    if now.late is None:
        return {}
    packets = sum(count.identified for count in now.late)
    tids = {count.index: count.tid for count in now.threads}
    return {
        "identified": {
            "packets": packets,
            "lost": max(0, packets - now.counts.identified),
            "unplaced": now.counts.unplaced,
            "unheld": sum(count.unheld for count in now.late),
            "checked": sum(count.checked for count in now.late),
            "differing": sum(count.differing for count in now.late),
            "copying": [tids.get(count.index, 0) for count in now.late if count.copying],
        }
    }


def _find_longest_stop_ns(monitor: Monitor) -> int:
    attachment = monitor.attachment
    return max(attachment.patcher.stops.longest_ns, attachment.injected.stopped_ns)
