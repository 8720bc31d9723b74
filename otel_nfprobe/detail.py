# SPDX-License-Identifier: Apache-2.0
"""Detail: when the inner functions of a batch are timed. The target decides it batch by batch (native/probe/detail.c).

Used by monitor.py, which tells the target by what rule, and by the command line.
"""

from __future__ import annotations

from dataclasses import dataclass

from otel_nfprobe.clock import Clock
from otel_nfprobe.session import GATE_AUTO, Session

ALWAYS, AUTO = "always", "auto"
ONE_IN = 64  # batches: one of them is detailed, so that what is usual is known


@dataclass(frozen=True)
class Detail:
    """The rule of `--detail auto`.

    Attributes:
        slow_ns: batches after one of this age are detailed; None: a slow batch alone does not matter.
        one_in: one of so many batches is.
    """

    slow_ns: int | None = None
    one_in: int = ONE_IN


def choose_detail(session: Session, detail: Detail | None, clock: Clock) -> int:
    """Tells the target when to time inner functions, before its gates are opened. Returns gate bits to open, too."""
    if detail is None:
        return 0
    session.header.detail_slow_ticks = clock.find_ticks(detail.slow_ns) if detail.slow_ns else 0
    session.header.detail_one_in = detail.one_in
    return GATE_AUTO
