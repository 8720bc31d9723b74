# SPDX-License-Identifier: Apache-2.0
"""Drop reasons: how many packets were dropped for which reason, if the NF stores it in a packet's buffer.

Counts identified packets: with `--packets all`, every dropped one. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import DROPPED, Columns

SHOWN = 10  # reasons with a row
NOT_KNOWN = "not known"


class DropReasons:
    """Packet counts by number of the drop reason."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, columns: Columns) -> None:
        """Adds drained packets."""
        numbers = columns.packets["done_number"][columns.packets["disposition"] == DROPPED]
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self._counts[int(number)] += int(count)

    def describe(self, reasons: Mapping[int, str]) -> list[dict[str, Any]]:
        """Returns packets per reason, most first, `reason` None if unknown; empty if no reason is known.

        Args:
            reasons: the NF's names, by number.
        """
        by_reason: Counter[str | None] = Counter()
        for number, count in self._counts.items():
            by_reason[reasons.get(number - 1) if number else None] += count
        if not any(by_reason):
            return []
        found = sorted(by_reason.items(), key=lambda item: (-item[1], item[0] is None, item[0] or ""))
        return [{"reason": reason, "packets": count} for reason, count in found]


def drop_rows(reasons: Sequence[Mapping[str, Any]], dropped: int) -> Iterable[list[str]]:
    """Yields a table of reasons, header first; nothing if there are none.

    Args:
        reasons: result of `describe`.
        dropped: all packets that were dropped, identified or not.
    """
    if not reasons:
        return
    looked_at = sum(reason["packets"] for reason in reasons)
    yield ["dropped, because of", "packets"]
    for reason in reasons[:SHOWN]:
        yield [reason["reason"] or NOT_KNOWN, f"{reason['packets']:,}"]
    if others := sum(reason["packets"] for reason in reasons[SHOWN:]):
        yield [f"{len(reasons) - SHOWN} more reasons", f"{others:,}"]
    if dropped > looked_at:
        yield ["packets that were not identified", f"{dropped - looked_at:,}"]
