# SPDX-License-Identifier: Apache-2.0
"""The table of causes: packets by their largest part, and of each owner the time that it took of all late packets."""

from __future__ import annotations

import numpy as np

from otel_nfprobe.base.columns import NONE, Columns
from otel_nfprobe.causes.causes import CauseTally, LateCauses
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.pipeline.absences import no_absences
from tests.unit.causes.test_latency_causes import BASELINE, RX, TX, WORK, Story
from tests.unit.causes.test_split import preempt


def tally_of(*stories: Story, threshold_ticks: int = 1000) -> CauseTally:
    rows = np.concatenate([no_absences(), *(row for story in stories for row in story.rows)])
    tally = CauseTally(LateCauses(threshold_ticks, BASELINE, rows))
    for story in stories:
        tally.add(story.columns())
    tally.add(Columns())
    return tally


def test_packets_by_largest_part_and_the_time_of_all() -> None:
    first, second = Story(), Story()
    first.batch(1000, (100, 100 + 3000, 100 + 700))
    first.batch(20_000, (100, 100, 100))  # not late
    first.batch(30_000, (100, 100 + 900, 100 + 2000))
    second.batch(40_000, (100, 100 + 6000, 100 + 500))
    second.rows.append(preempt(40_110, 46_110))
    tally = tally_of(first, second)
    assert tally.judged == 3
    found = {(count.kind, count.function): count for count in tally.counts()}
    sums = {key: (count.packets, count.excess_ticks, count.total_ticks) for key, count in found.items()}
    assert sums == {
        (CauseKind.OWN, WORK): (1, 3000, 3900),
        (CauseKind.OWN, TX): (1, 2000, 3200),
        (CauseKind.PREEMPTION, NONE): (1, 6000, 6000),
    }
    rows = tally.describe(["rx", "work", "tx"].__getitem__, 0.5)
    assert [(row["kind"], row["function"], row["total_ns"]) for row in rows] == [
        ("preemption", None, 3000),
        ("own", "work", 1950),
        ("own", "tx", 1600),
    ]


def test_what_never_has_the_largest_part_is_listed_if_it_is_large() -> None:
    story = Story()
    story.batch(1000, (100 + 1500, 100 + 3000, 100 + 60))
    story.batch(20_000, (100, 100 + 3000, 100), arrival=19_500)  # what it waited for is not known
    found = {(count.kind, count.function): count for count in tally_of(story).counts()}
    assert found.keys() == {(CauseKind.OWN, WORK), (CauseKind.OWN, RX), (CauseKind.UNKNOWN, NONE)}
    assert (found[CauseKind.OWN, RX].packets, found[CauseKind.OWN, RX].total_ticks) == (0, 1500)
    assert (found[CauseKind.UNKNOWN, NONE].packets, found[CauseKind.UNKNOWN, NONE].total_ticks) == (0, 500)
