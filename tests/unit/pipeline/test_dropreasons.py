# SPDX-License-Identifier: Apache-2.0
"""Drop reasons: dropped packets by why they were dropped, as the report and the summary list them."""

from __future__ import annotations

from typing import Any

import numpy as np

from otel_nfprobe.base.columns import DROPPED, PACKET, TRANSMITTED, Columns, Rows
from otel_nfprobe.pipeline.dropreasons import SHOWN, DropReasons, drop_rows

REASONS = {3: "ip4-input: ip4 ttl <= 1", 7: "acl-plugin-in-ip4-fa: ACL deny packets", 9: "ip4-input: ip4 ttl <= 1"}


def packets(*rows: tuple[int, int]) -> Rows:
    """Disposition and number of each; a number is that of the reason plus 1."""
    made = np.zeros(len(rows), PACKET)
    made["disposition"], made["done_number"] = zip(*rows, strict=True)
    return made


def counted(*parts: Rows) -> list[dict[str, Any]]:
    reasons = DropReasons()
    for part in parts:
        reasons.add(Columns(packets=part))
    return reasons.describe(REASONS)


def test_dropped_packets_by_reason() -> None:
    first = packets((DROPPED, 8), (TRANSMITTED, 8), (DROPPED, 4), (DROPPED, 8), (DROPPED, 0))
    second = packets((DROPPED, 8), (DROPPED, 10), (DROPPED, 100))
    assert counted(first, packets((TRANSMITTED, 4)), second) == [
        {"reason": "acl-plugin-in-ip4-fa: ACL deny packets", "packets": 3},
        {"reason": "ip4-input: ip4 ttl <= 1", "packets": 2},  # two numbers that are called the same
        {"reason": None, "packets": 2},
    ]


def test_none_where_the_nf_gives_no_reasons() -> None:
    assert counted(packets((DROPPED, 0), (DROPPED, 0))) == []
    assert list(drop_rows([], 2)) == []


def test_rows_add_up_to_all_that_were_dropped() -> None:
    reasons = [{"reason": f"node: {number}", "packets": 10} for number in range(SHOWN + 2)]
    rows = list(drop_rows([*reasons, {"reason": None, "packets": 1}], 1000))
    assert rows[0] == ["dropped, because of", "packets"]
    assert rows[-2:] == [["3 more reasons", "21"], ["packets that were not identified", "879"]]
    assert sum(int(count) for _, count in rows[1:]) == 1000
    assert list(drop_rows([{"reason": None, "packets": 5}], 5))[1:] == [["not known", "5"]]
