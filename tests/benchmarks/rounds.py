# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: their options, whose CPU is whose, which rounds count, medians with quartiles.

A round in which records or spans were lost says nothing: the target did less, or the monitor did. Its values are not
numbers (NaN), so differences from it are none either, and a `Spread` counts them. Called by all benchmarks.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.monitor.monitor import Monitor

NO_FIGURE = float("nan")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that each benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument(
        "--short",
        action="store_true",
        help="a second or two of the same, to see that it runs: no figure means anything",
    )
    return parser


def write_figures(path: Path | None, figures: Any) -> None:
    """For `--json`: spreads become objects."""
    if path is not None:
        path.write_text(json.dumps(figures, default=asdict) + "\n")


def find_cpus(is_short: bool) -> tuple[int, int]:
    """The monitor's and the target's, which are two.

    Raises:
        SystemExit: there is one only, and the round is not a short one.
    """
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2 and not is_short:
        raise SystemExit(
            "Two CPUs are needed: what a monitor takes of the target's own would count as its probes' cost."
        )
    return cpus[0], cpus[-1]


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of the rounds that count; not numbers where there is none."""

    median: float
    low: float
    high: float
    rounds: int
    dropped: int

    def describe_dropped(self) -> str:
        """For the end of a printed line."""
        if not self.dropped:
            return ""
        return f"; {self.dropped} of {self.rounds + self.dropped} rounds dropped: records or spans were lost"

    def scaled(self, factor: float) -> Spread:
        """In another unit."""
        return Spread(self.median * factor, self.low * factor, self.high * factor, self.rounds, self.dropped)


def spread(values: Iterable[float]) -> Spread:
    """Of rounds, some of which may be dropped (NaN)."""
    found = np.array(list(values), dtype=float)
    kept = found[~np.isnan(found)]
    if not len(kept):
        return Spread(NO_FIGURE, NO_FIGURE, NO_FIGURE, 0, len(found))
    low, middle, high = (float(value) for value in np.percentile(kept, [25, 50, 75]))
    return Spread(middle, low, high, len(kept), len(found) - len(kept))


def spent_s() -> float:
    """CPU time until now of this process, of all its threads, and of the children that it has waited for.

    The patching is done by a child (native/core/patch_process.c), so without them an attach seems cheaper than it is.
    """
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def lost(monitor: Monitor) -> int:
    """Records that were lost until now, of all kinds, and what a recording or an exporter had no room for."""
    recording, spans = monitor.drain.recording, monitor.drain.spans
    left_out = recording.left_out if recording else 0
    dropped = sum(spans.exporter.read_counters().total_dropped.values()) if spans else 0
    return sum(monitor.snapshot().lost.values()) + left_out + dropped


class Watch:
    """What a monitor spends and loses from here on."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._lost, self._spent_s, self._began_s = lost(monitor), spent_s(), time.monotonic()

    def has_lost(self) -> bool:
        return lost(self._monitor) > self._lost

    def spent_ns(self) -> float:
        """CPU time."""
        return (spent_s() - self._spent_s) * 1e9

    def cores(self) -> float:
        """CPU time in a second."""
        return self.spent_ns() / 1e9 / max(1e-9, time.monotonic() - self._began_s)
