# SPDX-License-Identifier: Apache-2.0
"""One slow packet's timeline as SVG: the packet, the batches of its thread, and the calls in them, nested.

The call that made the packet late stands in its own colour, mostly in an earlier batch. Where the packet's
own batch is short beside the wait, it is drawn again, enlarged. Hovering shows names and times.
"""

from __future__ import annotations

from html import escape

from otel_nfprobe.report.report import Timeline, TimelineBatch, TimelineCall
from otel_nfprobe.report.views.numbers import format_count, format_duration

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
    """The drawing as one or two <svg> elements, `description` for those who cannot see them."""
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
    # Time in ns (0 is the packet's arrival) to the drawing's units, over the given batches and moments.
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
    # A thin line of background between neighbours; a call too short for the scale stays visible.
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
