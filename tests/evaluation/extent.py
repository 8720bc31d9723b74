# SPDX-License-Identifier: Apache-2.0
"""How much a table measures, and where: an hour in all, or a moment of everything whose figures nobody judges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Extent:
    """What all tables are given.

    Attributes:
        cpus: of the monitors and recorders, and of the target.
        folder: temporary, for what is built and recorded.
        rounds: instead of each table's own number.
    """

    is_short: bool
    cpus: tuple[int, int]
    folder: Path
    rounds: int | None = None

    def count_rounds(self, usual: int) -> int:
        """Of a table: one in a moment."""
        return self.rounds or (1 if self.is_short else usual)
