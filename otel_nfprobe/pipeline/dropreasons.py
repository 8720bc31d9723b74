# SPDX-License-Identifier: Apache-2.0
"""Drop reasons: how many packets were dropped for which reason, where the NF says so in a packet's buffer.

They are those of packets that were identified: with `--packets all` every one that was dropped. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import DROPPED, Columns

SHOWN = 10  # reasons that have a row
NOT_KNOWN = "not known"


class DropReasons:
    """Packets by the number of why they were dropped."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, columns: Columns) -> None:
        """Takes the packets of one delivery."""
        numbers = columns.packets["done_number"][columns.packets["disposition"] == DROPPED]
        for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
            self._counts[int(number)] += int(count)

    def describe(self, reasons: Mapping[int, str]) -> list[dict[str, Any]]:
        """Packets of each reason, most first, `reason` None where it is not known; empty where no reason is.

        Args:
            reasons: as the NF calls them, by number.
        """
        by_reason: Counter[str | None] = Counter()
        for number, count in self._counts.items():
            by_reason[reasons.get(number - 1) if number else None] += count
        if not any(by_reason):
            return []
        found = sorted(by_reason.items(), key=lambda item: (-item[1], item[0] is None, item[0] or ""))
        return [{"reason": reason, "packets": count} for reason, count in found]


def drop_rows(reasons: Sequence[Mapping[str, Any]], dropped: int) -> Iterable[list[str]]:
    """A table of reasons, its head first; nothing without any.

    Args:
        reasons: as `describe` gives them.
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
