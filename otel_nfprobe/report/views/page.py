# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML page: no network, no script, readable in light and dark.

Everything that comes from the target (names, paths) is escaped. timeline.py draws the slow packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import PurePath
from typing import Any

from otel_nfprobe.pipeline.dropreasons import drop_rows
from otel_nfprobe.recording.nodes import node_rows
from otel_nfprobe.report.report import Report
from otel_nfprobe.report.views.counters import counter_rows, describe_batches
from otel_nfprobe.report.views.numbers import format_count, format_duration, format_size
from otel_nfprobe.report.views.page_style import STYLE
from otel_nfprobe.report.views.sentence import describe_packet, explain_cause, explain_origins, explain_stolen
from otel_nfprobe.report.views.timeline import draw_timeline

# The page may load nothing, from anywhere.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
HISTOGRAM_HEIGHT = 120
HISTOGRAM_WIDTH = 960


def render_page(report: Report) -> str:
    """The page as text; write it as UTF-8."""
    header, packets = report.header, report.document["packets"]
    name = PurePath(header.executable).name or "unknown program"
    title = f"{name} {header.resource.get('service.version', '')}".rstrip() + f", pid {header.pid}"
    reasons = drop_rows(packets.get("drop_reasons") or (), packets["dropped"])
    body = [
        _render_head(report, title),
        _render_tiles(report.document),
        _render_slowest(report),
        _render_rows("Why packets were dropped", list(reasons)),
        _render_functions(report.document["functions"]),
        _render_rows("Graph nodes", node_rows(report.document.get("nodes") or ())),
        _render_counters(report.document),
        _render_batches(report.document["batches"]),
        _render_foot(report),
    ]
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}: nfprobe</title><style>{STYLE}</style></head>\n"
        "<body><main>\n" + "\n".join(body) + "\n</main></body></html>\n"
    )


def _render_head(report: Report, title: str) -> str:
    header = report.header
    words = [f"on {header.host}"] if header.host else []
    if header.start_unix_ns:
        start = datetime.fromtimestamp(header.start_unix_ns / 1e9, timezone.utc)
        words.append(start.strftime("%Y-%m-%d %H:%M:%S UTC"))
    if report.duration_ns:
        words.append(f"{format_duration(report.duration_ns)} recorded")
    damage = f'<p class="damage">{escape(report.damage)}</p>' if report.damage else ""
    return f"<header><h1>{escape(title)}</h1><p>{escape(' · '.join(words))}</p>{damage}</header>"


def _render_tiles(document: dict[str, Any]) -> str:
    packets, batches = document["packets"], document["batches"]
    lost = sum(document["lost"].values())
    tiles = [
        ("packets received", format_count(packets["received"])),
        ("transmitted", format_count(packets["transmitted"])),
        ("dropped", format_count(packets["dropped"])),
        *((name, format_count(packets[name])) for name in ("punted", "absorbed") if packets.get(name)),
        ("batches", format_count(batches["count"])),
        ("lost records", format_count(lost)),
    ]
    latency = packets.get("latency_ns") or {}
    for key, name in (("p50", "median latency"), ("p99", "p99 latency"), ("max", "longest latency")):
        if latency.get(key) is not None:
            tiles.append((name, format_duration(latency[key])))
    cells = "".join(f"<div><dd>{value}</dd><dt>{name}</dt></div>" for name, value in tiles)
    origins = explain_origins(packets["latency_from"])
    return f'<dl class="tiles">{cells}</dl>' + (f"<p>Latencies are {escape(origins)}.</p>" if origins else "")


def _render_slowest(report: Report) -> str:
    slowest = report.document["packets"]["slowest"]
    if not slowest:
        return "<h2>Slow packets</h2><p>No packet was described, so there is none to show.</p>"
    flow = report.document["packets"].get("flow")
    stolen = explain_stolen(report.document["recording"].get("stolen"))
    parts = [
        "<h2>The slowest packets, and what made them late</h2>",
        f"<p>Only packets of: {escape(flow)}</p>" if flow else "",
        f"<p>{escape(stolen)}</p>" if stolen else "",
        '<p class="legend"><span class="key wait"></span>in the queue'
        '<span class="key own"></span>the own batch of the packet'
        '<span class="key cause"></span>the call that made it late'
        '<span class="key other"></span>other batches of the thread</p>',
    ]
    drawings = {timeline.number: timeline for timeline in report.timelines}
    for number, packet in enumerate(slowest):
        drawing = draw_timeline(drawings[number], explain_cause(packet)) if number in drawings else ""
        parts.append(
            f"<section><h3>{format_duration(packet['latency_ns'])}"
            f" <small>{escape(describe_packet(packet))}</small></h3>"
            f"<p>{escape(explain_cause(packet))} <code>{escape(packet['id'])}</code></p>{drawing}</section>"
        )
    return "\n".join(parts)


def _render_functions(functions: Sequence[dict[str, Any]]) -> str:
    called = sorted((item for item in functions if item["calls"]), key=lambda item: -item["total_ns"])
    if not called:
        return "<h2>Functions</h2><p>No call was recorded.</p>"
    largest = max(item["total_ns"] for item in called) or 1
    head = "".join(f"<th>{name}</th>" for name in ("calls", "total", "self", "min", "p50", "p90", "p99", "max"))
    rows = []
    for item in called:
        keys = ("total_ns", "self_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")
        cells = "".join(f"<td>{format_duration(item[key])}</td>" for key in keys)
        place = escape(f"{item['module']} at offset {item['offset']:#x}")
        share = round(100 * item["total_ns"] / largest, 1)
        rows.append(
            f'<tr><th scope="row" title="{place}"><span class="bar" style="width:{share}%"></span>'
            f"<span>{escape(item['name'])}</span></th><td>{format_count(item['calls'])}</td>{cells}</tr>"
        )
    return (
        '<h2>Functions</h2><div class="scroll"><table><thead><tr><th scope="col">function</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _render_rows(title: str, rows: Sequence[Sequence[str]]) -> str:
    """A table, its head first; nothing where there is no more than a head."""
    if len(rows) < 2:
        return ""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0][1:])
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows[1:]
    )
    return (
        f'<h2>{escape(title)}</h2><div class="scroll"><table><thead><tr><th scope="col">{escape(rows[0][0])}</th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _render_counters(document: dict[str, Any]) -> str:
    table = _render_rows("Counters per call", counter_rows(document["functions"]))
    return table and f"{table}<p>{escape(describe_batches(document['batches']))}</p>"


def _render_batches(batches: dict[str, Any]) -> str:
    histogram = [(int(size), count) for size, count in batches["size_histogram"]]
    if not histogram:
        return "<h2>Batches</h2><p>No batch was recorded.</p>"
    largest_size = max(size for size, _ in histogram)
    largest_count = max(count for _, count in histogram)
    step = HISTOGRAM_WIDTH / largest_size
    bars, labels = [], []
    for size, count in histogram:
        height = max(1.0, HISTOGRAM_HEIGHT * count / largest_count)
        x, y, width = (size - 1) * step, HISTOGRAM_HEIGHT - height, max(1.0, step - 2)
        bars.append(
            f'<rect class="own" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
            f"<title>{format_count(count)} batches of {format_size(size)}</title></rect>"
        )
    for size in sorted({1, *range(8, largest_size + 1, max(8, largest_size // 8)), largest_size}):
        x = (size - 0.5) * step
        labels.append(f'<text x="{x:.1f}" y="{HISTOGRAM_HEIGHT + 16}" text-anchor="middle">{size}</text>')
    latency = batches["latency_ns"]
    words = ", ".join(f"{key} {format_duration(latency[key])}" for key in ("p50", "p99", "p999", "max"))
    return (
        f"<h2>Batches by number of packets</h2><p>Time of a batch: {words}</p>"
        f'<svg class="histogram" viewBox="0 0 {HISTOGRAM_WIDTH} {HISTOGRAM_HEIGHT + 22}" role="img"'
        f' aria-label="How many batches had how many packets">{"".join(bars)}{"".join(labels)}</svg>'
    )


def _render_foot(report: Report) -> str:
    version = escape(report.header.nfprobe_version)
    return f"<footer>Made by nfprobe {version}. Times are from the time stamp counter of the processor.</footer>"
