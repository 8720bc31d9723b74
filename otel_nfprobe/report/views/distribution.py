# SPDX-License-Identifier: Apache-2.0
"""One function's statistics as text: the numbers, then a histogram with its cumulative curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_nfprobe.base.printable import printable
from otel_nfprobe.report.views.numbers import format_count, format_duration

KERNEL_STRATEGIES = ("fentry", "tracepoints")  # of kernel functions
BAR_CHARACTERS = 32
CURVE_CHARACTERS = 20
NUMBERS = ("min", "mean", "p50", "p90", "p95", "p99", "max", "mad")


def render_distribution(found: dict[str, Any], bins: Sequence[tuple[float, int]]) -> str:
    """The statistics object of `nfprobe stats`, and lower edge in ns and count of each bin."""
    lines = [f"{printable(found['function'])}: {format_count(found['count'])} calls in {found['seconds']:.1f} s"]
    if found["count"]:
        lines.append("  ".join(f"{name} {_duration(found[f'{name}_ns'])}" for name in NUMBERS))
        lines += ["", *_histogram(bins)]
        lines += ["", *_counters(found["counters"])]
    lines += _notes(found)
    return "\n".join(lines) + "\n"


def _duration(duration_ns: float) -> str:
    return f"{duration_ns:.1f} ns" if duration_ns < 100 else format_duration(duration_ns)


def _histogram(bins: Sequence[tuple[float, int]]) -> list[str]:
    total, largest = sum(count for _, count in bins), max(count for _, count in bins)
    lines, so_far = [f"{'from':>9}  {'calls':>12}  {'':<{BAR_CHARACTERS}}  {'so far':>6}"], 0
    for lowest_ns, count in bins:
        so_far += count
        bar = "#" * max(1, round(BAR_CHARACTERS * count / largest)) if count else ""
        # The curve reaches the top only when all values were counted.
        curve = "." * (CURVE_CHARACTERS if so_far == total else min(CURVE_CHARACTERS - 1, _part(so_far, total)))
        share = f"{so_far / total:6.1%}"
        lines.append(
            f"{_duration(lowest_ns):>9}  {format_count(count):>12}  {bar:<{BAR_CHARACTERS}}  {share}  {curve}*"
        )
    return lines


def _part(so_far: int, total: int) -> int:
    return CURVE_CHARACTERS * so_far // total


def _counters(counters: dict[str, Any]) -> list[str]:
    if not counters:
        return []
    lines = []
    for name, value in counters.items():
        if isinstance(value, dict):
            invalid = f", {format_count(value['invalid'])} calls not counted" if value["invalid"] else ""
            mean = "not counted" if value["mean"] is None else f"{value['mean']:,.1f} a call"
            own = value.get("probe", {}).get("inside")
            taken_off = f" (without {own:,} of its probe)" if own else ""
            lines.append(f"{name}: {mean}{taken_off}{invalid}")
        else:
            lines.append(f"{name}: {value:.3f}")
    return [*lines, ""]


def _notes(found: dict[str, Any]) -> list[str]:
    probe = found["probe_ns"]
    lines = [f"left out as warm-up: {format_count(found['warm_up'])} calls, the first ones of each thread"]
    lines.append(f"resolution of the clock: {found['resolution_ns']:.2f} ns")
    in_kernel = found.get("strategy") in KERNEL_STRATEGIES
    what = "the kernel's programs at entry and exit cost" if in_kernel else "the probe costs"
    lines.append(
        f"{what} {probe['whole']:.0f} ns a call; the {probe['inside']:.0f} ns of it inside the"
        " measured time are taken off"
    )
    if found.get("open"):
        lines.append(f"{format_count(found['open'])} calls had not returned")
    if found["below_resolution"]:
        lines.append("below resolution: a call takes less than three times what its probe costs")
    lost = sum(found["lost"].values())
    if lost:
        lines.append(f"{format_count(lost)} records were lost: a larger --ring-size holds more")
    return lines
