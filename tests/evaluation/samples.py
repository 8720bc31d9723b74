# SPDX-License-Identifier: Apache-2.0
"""What was measured, one row for each round, and the Parquet files that keep it: build/evaluation/TABLE.parquet.

A round in which a tool lost records, or that could not be measured, is a row whose value is not a number; a tool that
cannot be had is one row with the reason. The pages are made from these rows alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.rounds import NO_FIGURE, Spread, spread

MACHINE = b"machine"  # key of the file's metadata: what it was measured on
FIELDS = pa.schema(
    [
        ("case", pa.string()),
        ("tool", pa.string()),
        ("figure", pa.string()),
        ("round", pa.int32()),
        ("value", pa.float64()),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True)
class Sample:
    """One figure of one round.

    Attributes:
        case: what was done; tool: by whom; figure: what was measured, with its unit.
        value: not a number where there is none.
        note: why not, or what has to be known of it; a fact in words where `value` is none.
    """

    case: str
    tool: str
    figure: str
    round: int
    value: float
    note: str = ""


def missing(case: str, tool: str, figure: str, reason: str) -> Sample:
    """The row of a tool that cannot be had."""
    return Sample(case, tool, figure, 0, NO_FIGURE, reason)


class Rows:
    """The samples of one table, in the order in which they were taken."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    def cases(self) -> list[str]:
        return list(dict.fromkeys(sample.case for sample in self.samples))

    def tools(self, case: str, figure: str) -> list[str]:
        """Those that have a row there."""
        of = (sample for sample in self.samples if sample.case == case and sample.figure == figure)
        return list(dict.fromkeys(sample.tool for sample in of))

    def select(self, case: str, tool: str, figure: str) -> list[Sample]:
        return [sample for sample in self.samples if (sample.case, sample.tool, sample.figure) == (case, tool, figure)]

    def spread(self, case: str, tool: str, figure: str) -> Spread:
        """Median and quartiles of the rounds that count."""
        return spread(sample.value for sample in self.select(case, tool, figure))

    def values(self, case: str, tool: str, figure: str) -> list[float]:
        """Of the rounds that count."""
        return [sample.value for sample in self.select(case, tool, figure) if not math.isnan(sample.value)]

    def values_of(self, tool: str, figure: str) -> list[float]:
        """Those of all cases."""
        return [value for case in self.cases() for value in self.values(case, tool, figure)]

    def added(self, case: str, tool: str, to: str, figure: str) -> Spread:
        """What a tool adds to another one's figure, in pairs of the same round."""
        before = {sample.round: sample.value for sample in self.select(case, to, figure)}
        found = self.select(case, tool, figure)
        return spread(sample.value - before.get(sample.round, NO_FIGURE) for sample in found)

    def notes(self, case: str, tool: str, figure: str) -> list[str]:
        """Each once."""
        return list(dict.fromkeys(sample.note for sample in self.select(case, tool, figure) if sample.note))


def write(path: Path, samples: Sequence[Sample], machine: Mapping[str, str]) -> None:
    """With what it was measured on: names and versions."""
    table = pa.Table.from_pylist([asdict(sample) for sample in samples], schema=FIELDS)
    pq.write_table(table.replace_schema_metadata({MACHINE: json.dumps(dict(machine)).encode()}), path)


def read(path: Path) -> tuple[Rows, dict[str, str]]:
    """What `write` has written."""
    table = pq.read_table(path)
    machine: dict[str, str] = json.loads((table.schema.metadata or {}).get(MACHINE, b"{}"))
    return Rows(Sample(**row) for row in table.to_pylist()), machine
