# SPDX-License-Identifier: Apache-2.0
"""The generic names of `perf list`, and their numbers in the kernel's perf interface. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from otel_nfprobe.base.lateregex import compile_late

TYPE_HARDWARE, TYPE_SOFTWARE, TYPE_CACHE, TYPE_RAW = 0, 1, 3, 4

# PERF_COUNT_HW_*, in their order; the first name of each is the displayed one.
_HARDWARE = (
    ("cycles", "cpu-cycles"),
    ("instructions",),
    ("cache-references",),
    ("cache-misses",),
    ("branches", "branch-instructions"),
    ("branch-misses",),
    ("bus-cycles",),
    ("stalled-cycles-frontend", "idle-cycles-frontend"),
    ("stalled-cycles-backend", "idle-cycles-backend"),
    ("ref-cycles",),
)
# PERF_COUNT_SW_*; those without meaning for a thread (dummy, bpf-output) are left out.
_SOFTWARE = {
    0: ("cpu-clock",),
    1: ("task-clock",),
    2: ("page-faults", "faults"),
    3: ("context-switches", "cs"),
    4: ("cpu-migrations", "migrations"),
    5: ("minor-faults",),
    6: ("major-faults",),
    7: ("alignment-faults",),
    8: ("emulation-faults",),
    11: ("cgroup-switches",),
}
_LOADS, _STORES, _PREFETCHES = 0, 1, 2
# PERF_COUNT_HW_CACHE_*: names, and the operations that the kernel defines for each.
_CACHES = (
    (("L1-dcache", "l1-d", "l1d", "L1-data"), (_LOADS, _STORES, _PREFETCHES)),
    (("L1-icache", "l1-i", "l1i", "L1-instruction"), (_LOADS, _PREFETCHES)),
    (("LLC", "L2"), (_LOADS, _STORES, _PREFETCHES)),
    (("dTLB", "d-tlb", "Data-TLB"), (_LOADS, _STORES, _PREFETCHES)),
    (("iTLB", "i-tlb", "Instruction-TLB"), (_LOADS,)),
    (("branch",), (_LOADS,)),
    (("node",), (_LOADS, _STORES, _PREFETCHES)),
)
_OPERATIONS = (("loads", "load"), ("stores", "store"), ("prefetches", "prefetch"))
_RAW = compile_late(r"r([0-9a-fA-F]{1,16})\Z")


def _cache_names() -> Iterable[tuple[str, str, int]]:
    # name, displayed name, config
    for cache, (names, operations) in enumerate(_CACHES):
        for operation in operations:
            plural, singular = _OPERATIONS[operation]
            config = cache | operation << 8
            for name in names:
                yield f"{name}-{plural}", f"{names[0]}-{plural}", config
                yield f"{name}-{singular}-misses", f"{names[0]}-{singular}-misses", config | 1 << 16


def _all() -> dict[str, tuple[str, int, int]]:
    found: dict[str, tuple[str, int, int]] = {}
    for config, names in enumerate(_HARDWARE):
        found |= {name.lower(): (names[0], TYPE_HARDWARE, config) for name in names}
    for config, names in _SOFTWARE.items():
        found |= {name.lower(): (names[0], TYPE_SOFTWARE, config) for name in names}
    for name, shown, config in _cache_names():
        found[name.lower()] = (shown, TYPE_CACHE, config)
    return found


_NAMES = _all()


def find_generic(name: str) -> tuple[str, int, int] | None:
    """Returns displayed name, perf type and config of a generic name or raw code, case-insensitive."""
    raw = _RAW.match(name)
    return (name.lower(), TYPE_RAW, int(raw[1], 16)) if raw else _NAMES.get(name.lower())


def generic_names() -> list[str]:
    """Returns the displayed names of all generic counters."""
    return sorted({shown for shown, _, _ in _NAMES.values()})


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Returns up to three known names similar to `name`, the nearest first."""
    by_folded = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), list(by_folded), 3, 0.5)
    return [by_folded[folded] for folded in found]
