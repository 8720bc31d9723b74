# SPDX-License-Identifier: Apache-2.0
"""The difference of two recordings as text for a terminal; in each pair of values the first is of recording A."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.report.views.numbers import format_count, format_duration
from otel_nfprobe.report.views.table import align_columns

CAUSES = 8
SIDES = ("a", "b")


def render_diff(diff: Mapping[str, Any]) -> str:
    """Returns the whole difference, ending with a newline."""
    diff = printable_value(diff)
    sections = [
        "\n".join(_format_recording(diff, side) for side in SIDES),
        _format_changes(diff),
        _format_functions(diff),
        *(_format_only(diff[f"only_{side}"], side.upper(), diff["unit"]) for side in SIDES),
        _format_work(diff),
        _format_causes(diff["causes"]),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _format_recording(diff: Mapping[str, Any], side: str) -> str:
    recording, packets = diff["recordings"][side], diff["packets"][side]
    program = PurePath(recording["executable"]).name or "unknown program"
    words = f"{side.upper()}  {recording['file']}: {program}, pid {recording['pid']}"
    words += f", {format_count(packets['received'])} packets"
    lost = sum(diff["lost"][side].values())
    return words + (f", {format_count(lost)} records lost" if lost else "")


def _format_changes(diff: Mapping[str, Any]) -> str:
    """Returns one sentence for each function that stands out."""
    lines = []
    for function in diff["functions"]:
        key = {"usual": "usual_ns_per_unit", "mean": "self_ns_per_unit"}.get(function["stands_out"])
        if key is None:
            continue
        before, after = function["a"][key], function["b"][key]
        words = "usually takes" if key == "usual_ns_per_unit" else "takes, on average,"
        more = "more" if after > before else "less"
        times = f", {after / before:.1f} times as long" if before and after > before else ""
        lines.append(
            f"{function['name']} {words} {format_small(abs(after - before))} {more} per {diff['unit']} in B"
            f" ({format_small(before)} > {format_small(after)}{times})."
        )
    return "\n".join(lines) or "No function's own time changed by more than it does within each recording."


def _format_functions(diff: Mapping[str, Any]) -> str:
    unit = diff["unit"]
    rows = [["function", "change", "noise", f"self/{unit}", f"total/{unit}", f"calls/{unit}", "calls", "p50", "p99"]]
    for function in diff["functions"]:
        mark = " *" if function["stands_out"] else ""
        change = function["change_ns"]
        sign = "+" if change > 0 else "-"
        rows.append(
            [
                function["name"] + mark,
                sign + format_small(abs(change)),
                format_small(max(function["noise_ns"], function["error_ns"])),
                _pair(function, "self_ns_per_unit", format_small),
                _pair(function, "total_ns_per_unit", format_small),
                _pair(function, "calls_per_unit", "{:.3g}".format),
                _pair(function, "calls", format_count),
                _pair(function, "p50_ns", format_duration),
                _pair(function, "p99_ns", format_duration),
            ]
        )
    return align_columns(rows) if len(rows) > 1 else "No function was called in both."


def _pair(sides: Mapping[str, Any], key: str, text: Callable[[Any], str]) -> str:
    return " > ".join(text(sides[side][key]) for side in SIDES)


def _format_only(functions: list[dict[str, Any]], name: str, unit: str) -> str:
    if not functions:
        return ""
    rows = [[f"only in {name}", "calls", f"self/{unit}", "p50", "p99"]]
    for function in functions:
        times = [format_duration(function[key]) for key in ("p50_ns", "p99_ns")]
        calls = format_count(function["calls"])
        rows.append([function["name"], calls, format_small(function["self_ns_per_unit"]), *times])
    return align_columns(rows)


def _format_work(diff: Mapping[str, Any]) -> str:
    """Returns rows of batches and packets."""
    rows = [["", "count", "mean size", "p50", "p99", "p999", "max"]]
    for name, counted in (("batches", "count"), ("packets", "received")):
        both = diff[name]
        if not any(both[side][counted] for side in SIDES):
            continue
        latency = {side: both[side]["latency_ns"] for side in SIDES}
        times = [_pair(latency, key, _format_known) for key in ("p50", "p99", "p999", "max")]
        sizes = " > ".join(_mean_size(both[side]) for side in SIDES) if name == "batches" else ""
        rows.append([f"{name}: latency", _pair(both, counted, format_count), sizes, *times])
    return align_columns(rows) if len(rows) > 1 else ""


def _mean_size(batches: Mapping[str, Any]) -> str:
    packets = sum(size * count for size, count in batches["size_histogram"])
    return f"{packets / batches['count']:.1f}" if batches["count"] else "-"


def _format_known(duration_ns: int | None) -> str:
    return "-" if duration_ns is None else format_duration(duration_ns)


def _format_causes(causes: list[dict[str, Any]]) -> str:
    if not causes:
        return ""
    rows = [["what made the latest packets late", "function", "share"]]
    for cause in causes[:CAUSES]:
        rows.append([cause["kind"], cause["function"] or "-", f"{cause['a']:.1%} > {cause['b']:.1%}"])
    return align_columns(rows)


def format_small(duration_ns: float) -> str:
    """As format_duration, with fractions of a nanosecond: a function's cost per packet may be that small."""
    return f"{duration_ns:.1f} ns" if duration_ns < 99.95 else format_duration(duration_ns)
