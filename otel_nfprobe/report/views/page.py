# SPDX-License-Identifier: Apache-2.0
"""The report as one self-contained HTML page: no network, no script, readable in light and dark.

Escapes everything that comes from the target (names, paths).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from html import escape
from pathlib import PurePath
from typing import Any

from otel_nfprobe.pipeline.dropreasons import drop_rows
from otel_nfprobe.recording.nodes import node_rows
from otel_nfprobe.report.report import Report, Timeline, TimelineBatch, TimelineCall
from otel_nfprobe.report.views.numbers import format_count, format_duration, format_size
from otel_nfprobe.report.views.table import (
    counter_rows,
    describe_batches,
    describe_packet,
    describe_split,
    explain_cause,
    explain_origins,
    explain_prior,
    explain_stolen,
    explain_unlisted,
)

# ---- style ----------------------------------------------------------------------------------------------------------
# The style sheet of the HTML page.


STYLE = """
:root { color-scheme: light dark; --back: #fbfbf9; --card: #fff; --ink: #1c1f24; --soft: #626a75;
  --line: #dfe2e6; --own: #2f6fde; --cause: #d9431e; --other: #c3c9d2; --wait: #f2c14e; --on: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --card: #1c1f25; --ink: #e7e9ec;
  --soft: #9aa3ae; --line: #30353d; --own: #6ea3ff; --cause: #ff7a52; --other: #4a515c; --wait: #b58a22;
  --on: #14161a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em; }
h2 { font-size: 19px; margin: 40px 0 8px; }
h3 { font-size: 17px; margin: 0; font-variant-numeric: tabular-nums; }
h3 small { font-weight: 400; font-size: 14px; color: var(--soft); margin-left: 8px; }
header p, footer, .legend, h2 + p { color: var(--soft); margin: 4px 0 0; }
.damage { color: var(--cause); }
code { font: 12px ui-monospace, "SF Mono", Menlo, monospace; color: var(--soft); margin-left: 6px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 10px;
  margin: 24px 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 12px; }
dd { margin: 0; font-size: 19px; font-weight: 600; font-variant-numeric: tabular-nums; }
dt { color: var(--soft); font-size: 13px; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 14px 16px 10px;
  margin-top: 14px; }
section p { margin: 2px 0 10px; } svg + p { margin: 8px 0 4px; color: var(--soft); font-size: 13px; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 6px 0 18px;
  vertical-align: -1px; }
.key:first-child { margin-left: 0; }
.key.own { background: var(--own); } .key.cause { background: var(--cause); }
.key.other { background: var(--other); } .key.wait { background: var(--wait); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg text.in { fill: var(--ink); } svg text.on { fill: var(--on); font-weight: 600; pointer-events: none; }
svg .own { fill: var(--own); } svg .cause { fill: var(--cause); }
svg .other { fill: var(--other); } svg .wait { fill: var(--wait); }
svg rect:hover { opacity: .75; }
svg line { stroke: var(--line); stroke-width: 1; }
svg line.mark { stroke: var(--ink); stroke-dasharray: 3 3; }
.enlarged { margin-left: auto; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { text-align: right; padding: 5px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
thead th { color: var(--soft); font-weight: 500; }
th:first-child { text-align: left; position: relative; min-width: 190px; padding-left: 6px; }
tbody th { font: 600 13px ui-monospace, "SF Mono", Menlo, monospace; }
tbody th span:last-child { position: relative; }
.bar { position: absolute; left: 0; top: 3px; bottom: 3px; background: var(--own); opacity: .18;
  border-radius: 3px; }
.histogram { max-width: 960px; margin-top: 12px; }
footer { margin-top: 40px; font-size: 13px; }
"""


# ---- timelines ------------------------------------------------------------------------------------------------------
# One slow packet's timeline as SVG: the packet, the batches of its thread, and the calls in them, nested.
#
# The call that made the packet late has its own colour, usually in an earlier batch. If the packet's own batch is short
# compared with the wait, it is drawn again, enlarged. Hovering shows names and times.


WIDTH = 1000
LEFT = 64  # of the plot; the row names stand before it
ROW = 20
GAP = 5
TOP = 22
CHARACTER = 6.9
TICKS_MAX = 8
ENLARGED_BELOW = 0.2  # of the width
MARGIN = 0.005  # of the time shown, at both sides
VISIBLE = 0.15  # a shorter box is not drawn: there may be thousands


def draw_timeline(timeline: Timeline, description: str) -> str:
    """Returns the drawing as one or two <svg> elements, with `description` for screen readers."""
    bound = "arrival, at the earliest" if timeline.batch_start_ns > 0 else "received"
    origin = "arrival" if timeline.arrival_known else bound
    whole = _Scale(timeline.batches, [0, timeline.done_ns], 0, origin)
    own = [batch for batch in timeline.batches if batch.is_own]
    drawing = _draw(timeline, whole, "", description)
    if own and whole.width(own[0].start_ns, own[0].end_ns) < ENLARGED_BELOW * WIDTH:
        scale = _Scale(own, [timeline.done_ns], own[0].start_ns, "received")
        drawing += "<p>Its own batch, enlarged:</p>" + _draw(timeline, scale, "enlarged", "Its own batch, enlarged")
    return drawing


def _draw(timeline: Timeline, scale: _Scale, css_class: str, description: str) -> str:
    calls = [call for call in timeline.calls if scale.shows(call.start_ns, call.end_ns)]
    depths = max((call.depth for call in calls), default=-1) + 1
    height = TOP + (2 + depths) * (ROW + GAP) + GAP
    return "".join(
        [
            f'<svg class="{css_class}" viewBox="0 0 {WIDTH} {height}" role="img"',
            f' aria-label="{escape(description)}">',
            *_draw_axis(scale, height),
            *_draw_packet(timeline, scale),
            *_draw_batches(timeline, scale),
            _draw_row_name("calls", 2) if calls else "",
            *(_draw_call(call, timeline, scale) for call in calls),
            "</svg>",
        ]
    )


class _Scale:
    # Converts time in ns (0 is the packet's arrival) to the drawing's units, over the given batches and moments.
    # The axis counts from the origin.
    def __init__(self, batches: list[TimelineBatch], moments_ns: list[float], origin_ns: float, origin: str) -> None:
        self.origin_ns = origin_ns
        self.origin = origin
        self.first_ns = min([batch.start_ns for batch in batches] + moments_ns)
        self.last_ns = max([batch.end_ns for batch in batches] + moments_ns + [self.first_ns + 1])
        margin = (self.last_ns - self.first_ns) * MARGIN
        self.first_ns -= margin
        self.last_ns += margin

    def x(self, time_ns: float) -> float:
        time_ns = min(max(time_ns, self.first_ns), self.last_ns)
        part = (time_ns - self.first_ns) / (self.last_ns - self.first_ns)
        return LEFT + part * (WIDTH - LEFT)

    def width(self, start_ns: float, end_ns: float) -> float:
        return self.x(end_ns) - self.x(start_ns)

    def shows(self, start_ns: float, end_ns: float) -> bool:
        margin = (self.last_ns - self.first_ns) * MARGIN
        inside = end_ns > self.first_ns + margin and start_ns < self.last_ns - margin
        return inside and self.width(start_ns, end_ns) > VISIBLE


def _draw_axis(scale: _Scale, height: float) -> list[str]:
    step = _choose_step((scale.last_ns - scale.first_ns) / TICKS_MAX)
    parts = []
    tick = -int((scale.origin_ns - scale.first_ns) // step) * step
    while tick <= scale.last_ns - scale.origin_ns:
        x = scale.x(scale.origin_ns + tick)
        label = scale.origin if tick == 0 else ("+" if tick > 0 else "") + format_duration(tick)
        anchor = "end" if x > WIDTH - 30 else "middle"
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{height:.0f}"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 10}" text-anchor="{anchor}">{label}</text>')
        tick += step
    return parts


def _draw_packet(timeline: Timeline, scale: _Scale) -> list[str]:
    parts = [_draw_row_name("packet", 0)]
    start = min(max(timeline.batch_start_ns, 0), timeline.done_ns)
    if start > 0 and scale.shows(0, start):
        title = f"in the queue: {format_duration(start)}" + ("" if timeline.arrival_known else " at most")
        parts.append(_draw_box("wait", 0, start, 0, scale, title, "queue", "in"))
    worked = timeline.done_ns - start
    parts.append(_draw_box("own", start, timeline.done_ns, 0, scale, f"worked on: {format_duration(worked)}", "", "on"))
    return parts


def _draw_batches(timeline: Timeline, scale: _Scale) -> list[str]:
    parts = [_draw_row_name("batches", 1)]
    for batch in timeline.batches:
        if not scale.shows(batch.start_ns, batch.end_ns):
            continue
        kind = "own" if batch.is_own else "other"
        duration = format_duration(batch.end_ns - batch.start_ns)
        title = f"batch {format_count(batch.id)}: {batch.size} packets, {duration}"
        title += ", the own batch of the packet" if batch.is_own else ""
        text = str(batch.size)
        parts.append(
            _draw_box(kind, batch.start_ns, batch.end_ns, 1, scale, title, text, "on" if batch.is_own else "in")
        )
    return parts


def _draw_call(call: TimelineCall, timeline: Timeline, scale: _Scale) -> str:
    kind = "cause" if call.is_cause else "own" if call.batch_id == timeline.own_batch_id else "other"
    duration = call.end_ns - call.start_ns
    title = f"{call.name}: {format_duration(duration)}, itself {format_duration(call.self_ns)}"
    title += f", batch {format_count(call.batch_id)}"
    ink = "in" if kind == "other" else "on"
    return _draw_box(kind, call.start_ns, call.end_ns, 2 + call.depth, scale, title, call.name, ink)


def _draw_row_name(name: str, row: int) -> str:
    return f'<text x="0" y="{TOP + row * (ROW + GAP) + 14}">{name}</text>'


def _draw_box(
    kind: str, start_ns: float, end_ns: float, row: int, scale: _Scale, title: str, text: str, ink: str
) -> str:
    x, y = scale.x(start_ns), TOP + row * (ROW + GAP)
    full = scale.x(end_ns) - x
    # A thin line of background separates neighbours; a call too short for the scale stays visible.
    width = max(0.8, full - (0.8 if full > 3 else 0))
    radius = 2 if width > 6 else 0
    box = (
        f'<rect class="{kind}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" rx="{radius}">'
        f"<title>{escape(title)}</title></rect>"
    )
    if text and len(text) * CHARACTER + 6 <= width:
        box += f'<text class="{ink}" x="{x + 4:.1f}" y="{y + 14}" pointer-events="none">{escape(text)}</text>'
    return box


def _choose_step(wanted_ns: float) -> float:
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if step * factor >= wanted_ns:
                return step * factor
        step *= 10


# ---- the page -------------------------------------------------------------------------------------------------------


# The page may not load anything.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
HISTOGRAM_HEIGHT = 120
HISTOGRAM_WIDTH = 960


def render_page(report: Report) -> str:
    """Returns the page as text; write it as UTF-8."""
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
    found = [f"Latencies are {origins}" if origins else "", explain_unlisted(packets)]
    found.append(explain_prior(packets.get("prior")))
    return f'<dl class="tiles">{cells}</dl>' + "".join(f"<p>{escape(text)}.</p>" for text in found if text)


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
            f"<p>{escape(explain_cause(packet))} <code>{escape(packet['id'])}</code>,"
            f" content id <code>{escape(packet['content_id'])}</code></p>"
            f"{_render_split(packet['cause'])}{drawing}</section>"
        )
    return "\n".join(parts)


def _render_split(cause: dict[str, Any]) -> str:
    split = describe_split(cause)
    return f"<p>{escape(split)}</p>" if split else ""


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
    """Returns a table, header first; nothing if it has only a header."""
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
