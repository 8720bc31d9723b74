# SPDX-License-Identifier: Apache-2.0
"""The report as text for a terminal: functions, batch sizes, packets, the slowest with their causes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.printable import printable, printable_value
from otel_nfprobe.base.strategies import ENTRY_ONLY
from otel_nfprobe.pipeline.dropreasons import drop_rows
from otel_nfprobe.recording.nodes import node_rows
from otel_nfprobe.report.views.counters import counter_rows, describe_batches
from otel_nfprobe.report.views.numbers import format_count, format_duration, format_size
from otel_nfprobe.report.views.sentence import describe_packet, explain_cause, explain_origins, explain_stolen

if TYPE_CHECKING:  # the summary of a session comes here, too, and takes no report
    from otel_nfprobe.report.report import Report

BAR_CHARACTERS = 40
HISTOGRAM_ROWS = 16
EXCESS = ("mean_excess_ns", "max_excess_ns")


def render_table(report: Report) -> str:
    """The whole report as text, ending with a line end."""
    document = printable_value(report.document)
    sections = [
        _format_title(report),
        format_functions(document["functions"]),
        format_nodes(document.get("nodes")),
        _format_counters(document),
        format_batches(document["batches"]),
        _format_packets(document["packets"]),
        format_drops(document["packets"].get("drop_reasons"), document["packets"]["dropped"]),
        format_flow(document["packets"]),
        format_causes(document["packets"]),
        explain_stolen(document["recording"].get("stolen")),
        format_slowest(document["packets"]["slowest"]),
        _format_losses(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def format_functions(functions: Sequence[dict[str, Any]]) -> str:
    """One row per function that was called, the one with the largest total first."""
    if not any(function["calls"] for function in functions):
        return "No call was recorded."
    rows = [["function", "calls", "total", "self", "min", "p50", "p90", "p99", "max"]]
    for function in sorted(functions, key=lambda function: -function["total_ns"]):
        if not function["calls"]:
            continue
        times = [function[key] for key in ("total_ns", "self_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")]
        cells = [format_duration(time) for time in times]
        if function.get("strategy") == ENTRY_ONLY:
            cells = ["-"] * len(times)
        mark = " *" if function.get("below_resolution") else ""
        rows.append([function["name"] + mark, format_count(function["calls"]), *cells])
    return align_columns(rows) + _format_resolution(functions)


def format_nodes(nodes: Sequence[dict[str, Any]] | None) -> str:
    """One row per graph node, as the NF itself would show it."""
    return align_columns(node_rows(nodes)) if nodes else ""


def format_drops(reasons: Sequence[dict[str, Any]] | None, dropped: int) -> str:
    """One row per reason why packets were dropped."""
    rows = list(drop_rows(reasons or (), dropped))
    return align_columns(rows) if rows else ""


def _format_counters(document: dict[str, Any]) -> str:
    rows = counter_rows(document["functions"])
    return "\n".join(filter(None, [align_columns(rows) if rows else "", describe_batches(document["batches"])]))


def _format_resolution(functions: Sequence[dict[str, Any]]) -> str:
    """What the marks in the table mean."""
    if not any(function.get("below_resolution") for function in functions):
        return ""
    whole = max(function["probe_ns"]["whole"] for function in functions if function.get("below_resolution"))
    return f"\n* below resolution: a call takes less than three times what its probe costs ({whole:.0f} ns, taken off)"


def format_batches(batches: dict[str, Any]) -> str:
    """How many batches of each size there were, as bars."""
    histogram = [(int(size), count) for size, count in batches["size_histogram"]]
    lines = [f"{format_count(batches['count'])} batches by size"]
    groups = _group_sizes(histogram)
    largest = max((count for _, count in groups), default=0)
    for label, count in groups:
        bar = "#" * max(1, round(BAR_CHARACTERS * count / largest)) if count else ""
        lines.append(f"{label:>9}  {bar:<{BAR_CHARACTERS}}  {format_count(count)}")
    latency = batches["latency_ns"]
    if batches["count"]:
        words = [f"{key} {format_duration(latency[key])}" for key in ("p50", "p99", "p999", "max")]
        lines.append("time of a batch: " + ", ".join(words))
    return "\n".join(lines)


def format_slowest(slowest: Sequence[dict[str, Any]]) -> str:
    """The slowest packets, each with the call that made it late."""
    if not slowest:
        return ""
    lines = [f"the {len(slowest)} slowest packets" if len(slowest) > 1 else "the slowest packet"]
    for number, packet in enumerate(slowest, 1):
        lines.append(f"{number:>3}. {format_duration(packet['latency_ns']):>8}  {describe_packet(packet)}")
        lines.append(f"     {'':>8}  {explain_cause(packet)}")
        lines.append(f"     {'':>8}  id {packet['id']}")
    return "\n".join(lines)


def format_flow(packets: dict[str, Any]) -> str:
    """Of which flows the packets below are, when not all of them are meant."""
    return f"below only packets of: {packets['flow']}" if packets.get("flow") else ""


def format_causes(packets: dict[str, Any]) -> str:
    """What made the late packets late, one row per cause, the most frequent first."""
    causes = packets.get("causes")
    if not causes:
        return ""
    late = packets["late"]
    count, over = format_count(late["packets"]), format_duration(late["over_ns"])
    rows = [["cause", "function", "packets", "share", "mean excess", "max"]]
    for cause in causes:
        excess = [format_duration(cause[key]) if cause["kind"] != "unknown" else "-" for key in EXCESS]
        counted = [format_count(cause["packets"]), f"{cause['share']:.1%}"]
        rows.append([cause["kind"], cause["function"] or "-", *counted, *excess])
    return f"what made the {count} packets over {over} late\n" + align_columns(rows)


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text: first column to the left, the others to the right, first row underlined."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _format_title(report: Report) -> str:
    header = report.header
    name = printable(PurePath(header.executable).name) or "unknown program"
    version = printable(header.resource.get("service.version", ""))
    words = f"{name} {version}".rstrip() + f", pid {header.pid}"
    if header.host:
        words += f" on {header.host}"
    if report.duration_ns:
        words += f", {format_duration(report.duration_ns)} recorded"
    return words


def _format_packets(packets: dict[str, Any]) -> str:
    rare = [key for key in ("punted", "absorbed") if packets.get(key)]
    keys = ["received", "transmitted", "dropped", *rare, "unknown"]
    text = "packets: " + ", ".join(f"{format_count(packets[key])} {key}" for key in keys)
    latency = packets.get("latency_ns")
    if latency and latency.get("max") is not None:
        words = [f"{key} {format_duration(latency[key])}" for key in ("p50", "p99", "p999", "max")]
        text += "\nlatency of a packet: " + ", ".join(words)
        text += "\n" + explain_origins(packets["latency_from"])
    return text


def _format_losses(report: Report) -> str:
    lost = report.document["lost"]
    words = [f"{format_count(count)} {kind}" for kind, count in lost.items() if count]
    lines = ["lost records: " + (", ".join(words) if words else "none")]
    if report.damage:
        lines.append(report.damage)
    return "\n".join(lines)


def _group_sizes(histogram: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    # One row per size while there are few sizes; otherwise ranges of equal width.
    if not histogram:
        return []
    largest = max(size for size, _ in histogram)
    if len(histogram) <= HISTOGRAM_ROWS:
        return [(format_size(size), count) for size, count in sorted(histogram)]
    width = -(-largest // (HISTOGRAM_ROWS // 2))
    groups = []
    for first in range(1, largest + 1, width):
        last = min(first + width - 1, largest)
        count = sum(count for size, count in histogram if first <= size <= last)
        groups.append((f"{first}..{last}" if first < last else str(first), count))
    return groups
