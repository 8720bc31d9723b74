# SPDX-License-Identifier: Apache-2.0
"""The summary for a person: where records were lost to full rings it says what to do."""

from __future__ import annotations

from typing import Any

import pytest

from otel_nfprobe.report.views.table import SUMMARY_LINES, explain_unlisted, format_summary

NONE_LOST = {"call": 0, "packet": 0, "poll": 0, "torn": 0, "mistimed": 0}


def summary_with(lost: dict[str, int]) -> dict[str, Any]:
    counted = {"received": 0, "transmitted": 0, "dropped": 0, "unknown": 0}
    return {
        "pid": 1,
        "seconds": 1.0,
        "target_ended": False,
        "functions": {"probed": 1, "refused": {}},
        "calls": 0,
        "unpaired": {"entries": 0, "exits": 0},
        "batches": 0,
        "packets": counted,
        "records": {"read": 10, "lost": NONE_LOST | lost},
        "spans": {"exported": 0, "dropped": 0, "spooled": 0},
        "stops": {"count": 0, "longest_ns": 0},
        "overhead": {"ticks_per_call": 0.0, "share_of_core": 0.0, "share_of_core_max": 0.0},
        "clock": {"error_ns": 0, "set_ns": 0},
        "not_restored": [],
    }


@pytest.mark.parametrize(
    ("lost", "ending"),
    [
        ({}, "10 read, 0 lost"),
        ({"call": 3, "poll": 1}, "10 read, 4 lost: rings were full; next: fewer --functions, or a larger --ring-size"),
        ({"torn": 2}, "10 read, 2 lost"),
    ],
)
def test_full_rings_have_a_next_step(lost: dict[str, int], ending: str) -> None:
    (line,) = (line for line in format_summary(summary_with(lost)).splitlines() if line.startswith("  records"))
    assert line.endswith(ending)


def test_a_summary_fits_a_terminal() -> None:
    numbers = {"calls": 1, "vectors": 1, "vectors_per_call": 1.0, "clocks_per_vector": 1.0, "ns_per_vector": None}
    nodes = [{"name": f"node-{number}", **numbers} for number in range(60)]
    reasons = [{"reason": f"reason {n}", "packets": 1} for n in range(30)]
    summary = summary_with({}) | {"not_restored": ["probe 3"], "drop_reasons": reasons, "nodes": nodes}
    short, whole = format_summary(summary).splitlines(), format_summary(summary, is_whole=True).splitlines()
    assert len(short) == SUMMARY_LINES < len(whole)
    left_out = [int(line.split()[1]) for line in short if line.startswith("  ... ")]
    assert len(left_out) == 2  # of nodes and of reasons
    assert len(short) - len(left_out) + sum(left_out) == len(whole)
    assert short[-1] == whole[-1] == "  NOT RESTORED: probe 3"
    assert format_summary(summary_with({})) == format_summary(summary_with({}), is_whole=True)


@pytest.mark.parametrize(
    ("longest", "flow", "is_said"), [(5_000_000, None, True), (5_000_000, "udp", False), (1_000_100, None, False)]
)
def test_packets_that_were_counted_and_not_identified_are_said(longest: int, flow: str | None, is_said: bool) -> None:
    packets = {"slowest": [{"latency_ns": 1_000_000}], "latency_ns": {"max": longest}, "flow": flow}
    said = explain_unlisted(packets)
    assert bool(said) == is_said
    assert not is_said or said.startswith("the slowest packets, up to 5.00 ms, are not in the list")
    assert explain_unlisted({"slowest": [], "latency_ns": {"max": longest}}) == ""
