# SPDX-License-Identifier: Apache-2.0
"""Counters as text: per call of each function, and per packet (divided over the packets of its batch)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_nfprobe.report.views.numbers import format_count


def list_counters(functions: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the counters that any function was counted with, in their order."""
    found: dict[str, None] = {}
    for function in functions:
        found |= dict.fromkeys(_entries(function))
    return list(found)


def _entries(function: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is known of each counter of a function. Where they were changed meanwhile it may have some of them only."""
    return {name: value for name, value in function.get("counters", {}).items() if isinstance(value, dict)}


def counter_rows(functions: Sequence[dict[str, Any]]) -> list[list[str]]:
    """A table of what a call counts on average, the function with most of the first counter first; empty without any.

    The first row names the columns.
    """
    names = list_counters(functions)
    if not names:
        return []
    ratios = [key for function in functions for key, value in function.get("counters", {}).items() if _is_ratio(value)]
    derived = list(dict.fromkeys(ratios))
    counted = [function for function in functions if _entries(function)]
    counted.sort(key=lambda function: -(function["counters"].get(names[0], {}).get("total") or 0))
    is_compensated = any(
        entry.get("probe", {}).get("whole") for function in counted for entry in _entries(function).values()
    )
    title = "counters per call, without the probes" if is_compensated else "counters per call"
    rows = [[title, "counted", "not counted", *names, *(name.replace("_", " ") for name in derived)]]
    for function in counted:
        counters, entries = function["counters"], _entries(function).values()
        calls, invalid = (max(entry[key] for entry in entries) for key in ("calls", "invalid"))
        cells = [_format_mean(counters.get(name, {}).get("mean")) for name in names]
        cells += [f"{counters[name]:.3f}" if name in counters else "-" for name in derived]
        rows.append([function["name"], format_count(calls), format_count(invalid), *cells])
    return rows


def describe_batches(batches: dict[str, Any]) -> str:
    """What a packet's share of its batch counts, in one line; empty without counters."""
    counters = batches.get("counters") or {}
    shares = {key: value for key, value in counters.items() if key.endswith("_per_packet")}
    if not shares:
        return ""
    words = [f"{key.removesuffix('_per_packet')} {value:,.1f}" for key, value in shares.items()]
    left = f"; {format_count(counters['invalid_batches'])} batches not counted" if counters["invalid_batches"] else ""
    return f"per packet, divided over the packets of its batch: {', '.join(words)}{left}"


def _is_ratio(value: Any) -> bool:
    return isinstance(value, float)


def _format_mean(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:,.1f}"
