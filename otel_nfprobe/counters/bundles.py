# SPDX-License-Identifier: Apache-2.0
"""Bundles: named sets of counters, and the columns derived from their counts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

BUNDLES: Mapping[str, tuple[str, ...]] = {
    "cache": ("instructions", "L1-dcache-loads", "L1-dcache-load-misses", "cache-references", "cache-misses"),
    "frontend": ("cycles", "instructions", "L1-icache-load-misses", "iTLB-load-misses"),
    "branch": ("cycles", "instructions", "branches", "branch-misses"),
}
TOPDOWN = "topdown-l1"  # its counters depend on the processor
BUNDLE_NAMES = (*BUNDLES, TOPDOWN)


class Part(NamedTuple):
    """A counter of a bundle: its displayed name, its terms in the core device, and the multiplier of its counts."""

    label: str
    terms: str
    scale: int = 1


# TOPDOWN.SLOTS_P and its parts, since Ice Lake. The PERF_METRICS register cannot be read as a counter.
_INTEL = (
    Part("slots-all", "event=0xa4,umask=0x1"),
    Part("slots-backend", "event=0xa4,umask=0x2"),
    Part("slots-frontend", "event=0x9c,umask=0x1"),
    Part("slots-retired", "event=0xc2,umask=0x2"),
)
# Dispatch slots, since Zen 4; the number is slots per cycle.
_AMD = (
    Part("slots-backend", "event=0x1a0,umask=0x1e"),
    Part("slots-frontend", "event=0x1a0,umask=0x1"),
    Part("slots-dispatched", "event=0xaa,umask=0x7"),
    Part("slots-retired", "event=0xc1"),
)
_ZEN_4_MODELS = (*range(0x10, 0x20), *range(0x60, 0xB0))  # of family 0x19; other models are Zen 3
_ZEN_4_WIDTH, _ZEN_5_WIDTH = 6, 8
_CYCLES = "event=0x76"


def find_topdown(cpuinfo: str, core_events: Mapping[str, str]) -> tuple[Part, ...]:
    """Returns the counters of topdown-l1 on this processor; empty: it has none that can be read.

    Args:
        cpuinfo: text of /proc/cpuinfo.
        core_events: events of the core device, by name.
    """
    vendor, family, model = (_first(cpuinfo, name) for name in ("vendor_id", "cpu family", "model"))
    if vendor == "GenuineIntel":
        return _INTEL if "slots" in core_events else ()
    if vendor != "AuthenticAMD" or not family.isdigit() or not model.isdigit():
        return ()
    if int(family) == 0x1A:
        return (Part("slots-all", _CYCLES, _ZEN_5_WIDTH), *_AMD)
    if int(family) == 0x19 and int(model) in _ZEN_4_MODELS:
        return (Part("slots-all", _CYCLES, _ZEN_4_WIDTH), *_AMD)
    return ()


def _first(cpuinfo: str, name: str) -> str:
    found = re.search(rf"^{name}\s*: *(.*)$", cpuinfo, re.M)
    return found[1].strip() if found else ""


Counts = Mapping[str, float]
Formula = Callable[[Counts], float]


def _ratio(part: str) -> Formula:
    return lambda counts: counts[part]


def _wasted_slots(counts: Counts) -> float:
    """Returns the slots of operations that did not retire."""
    if "slots-dispatched" in counts:
        return max(0.0, counts["slots-dispatched"] - counts["slots-retired"])
    used = counts["slots-frontend"] + counts["slots-backend"] + counts["slots-retired"]
    return max(0.0, counts["slots-all"] - used)


# column: divisor, counters of the dividend, dividend
_DERIVED: Mapping[str, tuple[str, tuple[str, ...], Formula]] = {
    "ipc": ("cycles", ("instructions",), _ratio("instructions")),
    "branch_miss_ratio": ("branches", ("branch-misses",), _ratio("branch-misses")),
    "cache_miss_ratio": ("cache-references", ("cache-misses",), _ratio("cache-misses")),
    "l1d_miss_ratio": ("L1-dcache-loads", ("L1-dcache-load-misses",), _ratio("L1-dcache-load-misses")),
    "llc_miss_ratio": ("LLC-loads", ("LLC-load-misses",), _ratio("LLC-load-misses")),
    "frontend_bound": ("slots-all", ("slots-frontend",), _ratio("slots-frontend")),
    "backend_bound": ("slots-all", ("slots-backend",), _ratio("slots-backend")),
    "retiring": ("slots-all", ("slots-retired",), _ratio("slots-retired")),
    "bad_speculation": ("slots-all", ("slots-frontend", "slots-backend", "slots-retired"), _wasted_slots),
}


def derive(*counts: Counts) -> dict[str, float]:
    """Returns the derived columns of counts; those whose divisor is 0 or was not counted are left out.

    Args:
        counts: sums by displayed counter name, each over the same set of calls.
    """
    found = {}
    for name, (divisor, needs, formula) in _DERIVED.items():
        fitting = [part for part in counts if divisor in part and all(need in part for need in needs)]
        sums = add_counts(fitting)
        if sums.get(divisor, 0) > 0:
            found[name] = formula(sums) / sums[divisor]
    return found


def add_counts(parts: Iterable[Counts]) -> dict[str, float]:
    """Returns sums by name."""
    sums: dict[str, float] = {}
    for part in parts:
        for name, count in part.items():
            sums[name] = sums.get(name, 0) + count
    return sums


def per_packet(counts: Counts, packets: int) -> dict[str, float]:
    """Returns counts of batches divided by their packets, the best estimate for a single packet; empty without
    packets.
    """
    return {f"{name}_per_packet": value / packets for name, value in counts.items()} if packets else {}
