# SPDX-License-Identifier: Apache-2.0
"""One second of `nfprobe top` as text. Pure: the object of monitor/live.py in, text out."""

from __future__ import annotations

from typing import Any

from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.report.views.numbers import format_duration
from otel_nfprobe.report.views.table import align_columns

FUNCTIONS_SHOWN, LATE_SHOWN = 20, 3
COLUMNS = 79  # of a line that has no table
THREAD_HEADINGS = ["thread", "tid", "packets/s", "batches/s", "size", "busy", "polls", "lost"]
FUNCTION_HEADINGS = ["function", "calls/s", "p50", "p99", "max", "share"]


def render_live(view: dict[str, Any]) -> str:
    """Returns a page of text, without its last line end."""
    view = printable_value(view)
    sections = [
        describe_session(view),
        align_columns([THREAD_HEADINGS, *map(thread_cells, view["threads"])])
        if view["threads"]
        else "no thread worked",
        align_columns([FUNCTION_HEADINGS, *map(function_cells, view["functions"][:FUNCTIONS_SHOWN])])
        if view["functions"]
        else "no probed function was called",
        "\n".join(describe_late(view)),
    ]
    return "\n\n".join(section for section in sections if section)


def describe_session(view: dict[str, Any]) -> str:
    """Returns the line above everything: whom it shows, since when, and what the probes take."""
    cost = view["cost"]
    lost = f", {view['lost']:,} records lost" if view["lost"] else ""
    return (
        f"{view['name']} ({view['pid']})  {view['elapsed_s']:.0f} s  {cost['probes']:,} probes take"
        f" {100 * cost['share_of_core']:.2f} % of a core{lost}"
    )


def thread_cells(thread: dict[str, Any]) -> list[str]:
    """Returns a row under THREAD_HEADINGS."""
    size = thread["batch_size"]
    return [
        thread["name"],
        str(thread["tid"]),
        f"{thread['packets_per_s']:,.0f}",
        f"{thread['batches_per_s']:,.0f}",
        "-" if size is None else f"{size:.1f}",
        f"{100 * thread['busy_share']:.0f} %",
        f"{100 * thread['poll_share']:.0f} %",
        f"{thread['lost']:,}",
    ]


def function_cells(function: dict[str, Any]) -> list[str]:
    """Returns a row under FUNCTION_HEADINGS."""
    share = function["self_share"]
    times = [format_duration(function[f"{name}_ns"]) for name in ("p50", "p99", "max")]
    return [
        function["name"],
        f"{function['calls_per_s']:,.0f}",
        *times,
        "-" if share is None else f"{100 * share:.1f} %",
    ]


def describe_late(view: dict[str, Any]) -> list[str]:
    """Returns a line on how many packets were late, and two for each of the slowest."""
    late = view["late"]
    if not late["packets"]:
        return []
    lines = [f"{late['packets']:,} late packets, over {format_duration(late['over_ns'])}"]
    for one in late["slowest"][:LATE_SHOWN]:
        culprit = " ".join(word for word in (one["cause"], one["function"], one["by"]) if word)
        lines.append(f"  {format_duration(one['latency_ns']):>9}  {culprit}"[:COLUMNS])
        lines.append(f"             {one['id']}  {one['flow']}"[:COLUMNS])
    return lines
