# SPDX-License-Identifier: Apache-2.0
"""The split: to whom a packet's excess belongs. Pure: charges in, the largest parts out, with what nobody explains.

What is charged can exceed the time in which it delayed the packet: a stall makes a queue that then drains, and who
comes late into it waits for less than the stall lasted. All charges of that time are then scaled by the same factor,
since any of them could have drained first. So parts never exceed the excess, and with the rest they equal it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import NONE

PARTS_MAX = lib.NFP_TAIL_PARTS_MAX
PART_SHARE_MIN = 0.01  # of the excess: smaller parts are within what a median is uncertain by

PART = np.dtype(
    [
        ("ticks", "<u8"),
        ("batch_ticks", "<u8"),
        ("batch_id", "<u8"),
        ("batch", "<u4"),
        ("call", "<u4"),
        ("function", "<u4"),
        ("kind", "<u4"),
        ("by", f"S{lib.NFP_TAIL_BY_BYTES}"),
    ]
)
"""kind: CauseKind; 0 after the last part. function, call (index in calls): NONE if there is none. batch, batch_id: in
which most of it happened, batch_ticks: how much there. by: what the CPU did instead of the thread for most of the time
(UTF-8).
"""


class Owner(NamedTuple):
    """Whom time is charged to: a function (ID; NONE: what runs outside of all probed ones), or else a kind alone."""

    kind: int
    function: int = NONE


@dataclass
class Charge:
    """Ticks of one owner; of all batches the one with the most, how many there, and its call. By name: for how long."""

    ticks: float = 0.0
    longest: float = 0.0
    batch: int = NONE
    call: int = NONE
    names: dict[str, float] = field(default_factory=dict)

    @property
    def by(self) -> str:
        """The name with the most ticks; empty where none is known."""
        return max(self.names, key=lambda name: self.names[name], default="")

    def join(self, other: Charge, factor: float) -> None:
        """Adds so much of another charge of the same owner."""
        self.ticks += other.ticks * factor
        if other.longest * factor > self.longest:
            self.longest, self.batch, self.call = other.longest * factor, other.batch, other.call
        for name, ticks in other.names.items():
            self.names[name] = self.names.get(name, 0.0) + ticks * factor


class Charges:
    """What a time is charged to, by owner."""

    def __init__(self) -> None:
        self.by_owner: dict[Owner, Charge] = {}

    @property
    def total(self) -> float:
        """The sum, in ticks."""
        return sum(charge.ticks for charge in self.by_owner.values())

    def of(self, owner: Owner) -> float:
        """Returns the ticks of one owner."""
        charge = self.by_owner.get(owner)
        return charge.ticks if charge else 0.0

    def add(self, owner: Owner, ticks: float, batch: int, call: int = NONE, name: str = "") -> None:
        """Charges an owner for what happened in one batch; nothing without ticks."""
        if ticks > 0:
            charge = Charge(ticks, ticks, batch, call, {name: ticks} if name else {})
            self.by_owner.setdefault(owner, Charge()).join(charge, 1.0)

    def join(self, other: Charges, factor: float) -> None:
        """Adds so much of each of the others."""
        if factor > 0:
            for owner, charge in other.by_owner.items():
                self.by_owner.setdefault(owner, Charge()).join(charge, factor)

    def largest(self, excess_ticks: int) -> list[tuple[Owner, Charge]]:
        """Returns the largest charges, the largest first, scaled to no more than the excess in total."""
        factor = fit(self.total, excess_ticks)
        least = max(PART_SHARE_MIN * excess_ticks, 1.0)
        parts = Charges()
        for owner, charge in self.by_owner.items():
            if charge.ticks * factor >= least:
                parts.by_owner[owner] = Charge()
                parts.by_owner[owner].join(charge, factor)
        return sorted(parts.by_owner.items(), key=lambda part: -part[1].ticks)[:PARTS_MAX]


def fit(ticks: float, room_ticks: float) -> float:
    """Returns the factor, at most 1, by which ticks >= 0 fit into the room; nothing fits into one that is negative."""
    room_ticks = max(room_ticks, 0.0)
    return 1.0 if ticks <= room_ticks else room_ticks / ticks


def fill_parts(rows: np.ndarray, parts: Iterable[tuple[Owner, Charge]], batch_ids: np.ndarray) -> int:
    """Writes parts to rows of dtype PART, in their order; returns the sum of their ticks.

    Args:
        batch_ids: by index of the batch.
    """
    total = 0
    for number, (owner, charge) in enumerate(parts):
        ticks = int(charge.ticks)
        batch_id = int(batch_ids[charge.batch])
        where = int(charge.longest), batch_id, charge.batch, charge.call
        rows[number] = ticks, *where, owner.function, owner.kind, cut_name(charge.by)
        total += ticks
    return total


def cut_name(text: str) -> bytes:
    """Returns UTF-8 that fits into PART, whole characters only."""
    return text.encode()[: lib.NFP_TAIL_BY_BYTES - 1].decode("utf-8", "ignore").encode()
