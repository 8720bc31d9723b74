# SPDX-License-Identifier: Apache-2.0
"""The split of an excess, on columns of which it is known who took how long: whose each part is, and that all parts and
what is unexplained are the excess."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe.base.columns import NONE
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.causes.split import PARTS_MAX, Charges, Owner, fit
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind
from tests.support.absences import make_interrupt, make_steal, make_switches
from tests.support.marks import in_parts
from tests.unit.causes.test_latency_causes import BASELINE, PER_PACKET, RX, TX, WORK, Story, read

UNTIL = 100_000


def parts_of(cause: np.void) -> list[tuple[CauseKind, int, int]]:
    """Kind, function and ticks of each part; checks what is true of every split."""
    parts = cause["parts"][cause["parts"]["kind"] != 0]
    ticks = parts["ticks"].tolist()
    assert ticks == sorted(ticks, reverse=True)
    assert len(parts) <= PARTS_MAX
    assert sum(ticks) + cause["rest_ticks"] == cause["late_ticks"]
    if cause["kind"] != CauseKind.UNKNOWN:
        assert read(cause, "kind", "function", "batch", "excess_ticks") == read(
            parts[0], "kind", "function", "batch", "ticks"
        )
        assert ticks[0] > cause["rest_ticks"]
    return [(CauseKind(int(part["kind"])), int(part["function"]), int(part["ticks"])) for part in parts]


def preempt(out: int, back: int, tid: int = 71, name: bytes = b"stress") -> np.ndarray:
    row = make_switches([(out, back, 0, AbsenceFlag.PREEMPTED)])
    row["code"], row["name"] = tid, name
    return row


def test_each_owner_has_what_it_took() -> None:
    story = Story()
    story.batch(1000, (100, 100 + 400 + 6000, 100 + 200))
    story.rows.append(preempt(1200, 7200))
    cause = story.cause(0)
    assert cause["late_ticks"] == 6600
    assert parts_of(cause) == [
        (CauseKind.PREEMPTION, NONE, 6000),
        (CauseKind.OWN, WORK, 400),
        (CauseKind.OWN, TX, 200),
    ]
    assert cause["parts"]["by"][0] == b"stress (tid 71)"
    assert cause["rest_ticks"] == 0


def test_what_waiting_and_working_cost_is_one_sum() -> None:
    """A stall before it, its own slow function, and one that was slow in both batches."""
    story = Story()
    story.batch(1000, (100, 100 + 700, 100 + 3000))
    story.batch(5000, (100 + 900, 100 + 500, 100), arrival=1050)
    cause = story.cause(1)
    assert cause["late_ticks"] == 5000 - 1050 + 1700 - 300
    # The wait is 3,950 ticks for 3,700 of excess: the usual time of the batch before it is the rest, a burst of 230.
    kinds = [(kind, function) for kind, function, _ in parts_of(cause)]
    assert kinds == [(CauseKind.QUEUE, TX), (CauseKind.QUEUE, WORK), (CauseKind.OWN, RX), (CauseKind.BURST, NONE)]
    ticks = dict(zip(kinds, (part[2] for part in parts_of(cause)), strict=True))
    assert ticks[CauseKind.QUEUE, TX] == pytest.approx(3000, rel=0.02)
    assert ticks[CauseKind.QUEUE, WORK] == pytest.approx(1200, rel=0.02)
    assert ticks[CauseKind.OWN, RX] == pytest.approx(900, rel=0.02)


def drained(arrival: int) -> Story:
    """A stall of 6,000 ticks and a slow function of 3,000, then a full queue that drains; a packet that came late."""
    story = Story()
    story.batch(1000, (0, 40 + 6000, 0), arrival=990, full=True)
    story.rows.append(preempt(1020, 7020))
    story.batch(7040, (0, 40 + 3000, 0), arrival=995, full=True)
    at = 10_080
    for _ in range(4):
        story.batch(at, (0, 320, 0), arrival=1000, size=32, full=True)
        at += 320
    story.batch(at, (0, 40, 0), arrival=arrival)
    return story


@pytest.mark.parametrize("arrival", [3000, 8000, 11_000])
def test_parts_of_a_queue_that_drained_keep_their_proportion(arrival: int) -> None:
    """What kept the packet is shorter than what made the queue: all of the wait is theirs, two to one."""
    story = drained(arrival)
    cause = story.cause(6, PER_PACKET)
    parts = parts_of(cause)
    assert cause["late_ticks"] == 10_080 + 4 * 320 - arrival
    assert parts[0][:2] == (CauseKind.PREEMPTION, NONE)
    assert parts[1][:2] == (CauseKind.QUEUE, WORK)
    assert parts[0][2] == pytest.approx(2 * parts[1][2], rel=0.01)
    assert cause["rest_ticks"] <= 0.01 * cause["late_ticks"]


def test_what_is_usual_of_a_wait_is_no_burst() -> None:
    """Where packets usually wait, only what is beyond that has an owner."""
    story = Story()
    at = 1000
    for _ in range(10):
        story.batch(at, (0, 320, 0), arrival=990, size=32, full=True)
        at += 320
    usual = PER_PACKET.__class__(**{**PER_PACKET.__dict__, "latency_ticks": 1040})
    (kind, _, ticks) = parts_of(story.cause(9, usual))[0]
    assert kind == CauseKind.BURST
    assert ticks == pytest.approx(9 * 320 - 1000, abs=100)


def test_unknown_where_more_is_unexplained_than_any_owner_has() -> None:
    story = Story()
    story.batch(1000, (100, 1100, 100), arrival=900)
    story.batches[0] = (1000, 2300, 4, 0, 0)
    story.packets[0] = (900, 2300, 0)
    story.batch(9000, (100, 100 + 700, 100), arrival=6000)  # nothing ran in the 3,000 ticks before it
    cause = story.cause(1)
    assert cause["kind"] == CauseKind.UNKNOWN
    assert parts_of(cause) == [(CauseKind.OWN, WORK, 700)]
    assert read(cause, "late_ticks", "rest_ticks", "excess_ticks", "share") == (3700, 3000, 0, 0.0)


def test_the_largest_of_many_is_the_cause_without_half_of_it() -> None:
    story = Story()
    story.batch(1000, (100 + 400, 100 + 500, 100 + 300))
    cause = story.cause(0)
    assert [part[1:] for part in parts_of(cause)] == [(WORK, 500), (RX, 400), (TX, 300)]
    assert read(cause, "kind", "function", "excess_ticks") == (CauseKind.OWN, WORK, 500)
    assert cause["share"] == pytest.approx(500 / 1200)


@in_parts(5)
def test_random_faults_are_split_without_remainder(part: int) -> None:
    """Batches with any faults at once: every split is complete, ordered and bounded."""
    random, split = np.random.default_rng([5, part]), 0
    for _ in range(4):
        story, at = Story(), 1000
        while at < UNTIL:
            before = at
            ticks = tuple(int(100 + (random.random() < 0.2) * random.exponential(2000)) for _ in range(3))
            arrival = int(at - random.integers(0, 4000)) if random.random() < 0.7 else 0
            story.batch(at, ticks, max(arrival, 0), int(random.integers(1, 33)), full=bool(random.random() < 0.5))
            at += sum(ticks)
            if random.random() < 0.2:
                story.rows.append(preempt(before + 20, before + 20 + (at - before) // 2))
            elif random.random() < 0.2:
                story.rows.append(make_interrupt(AbsenceKind.SOFTIRQ, 3, before + 30, before + 30 + (at - before) // 3))
            at += int(random.choice([0, 20, 500]))
        for since in range(1000, UNTIL, 4000):
            story.rows.append(make_steal(since, since + 4000, int(random.integers(0, 2000))))
        for cause in find_causes(story.columns(), np.arange(len(story.packets)), BASELINE, np.concatenate(story.rows)):
            split += bool(parts_of(cause))
    assert split > 100


def test_charges_are_cut_to_the_room_there_is() -> None:
    charges = Charges()
    for function in range(10):
        charges.add(Owner(CauseKind.OWN, function), 100.0 + function, batch=0)
    charges.add(Owner(CauseKind.HOST), 0.0, batch=0)
    assert Owner(CauseKind.HOST) not in charges.by_owner
    assert fit(charges.total, 10_000) == 1.0
    assert fit(charges.total, charges.total / 4) == pytest.approx(0.25)
    assert fit(charges.total, -5) == 0.0
    parts = charges.largest(100)
    assert [owner.function for owner, _ in parts] == [9, 8, 7, 6, 5, 4]
    assert sum(charge.ticks for _, charge in parts) < 100
    assert charges.largest(10**4)[0][1].ticks == 109.0
    assert not charges.largest(10**8)  # less than a hundredth of it: as good as nothing


def test_a_name_is_cut_between_characters() -> None:
    story = Story()
    story.batch(1000, (100, 5100, 100))
    story.rows.append(preempt(1200, 6000, name=b"\xe2\x82\xac" * 5))
    (name,) = story.cause(0)["parts"]["by"][:1].tolist()
    assert name.decode().startswith("\u20ac" * 5)


def test_nothing_fits_into_less_than_nothing() -> None:
    assert fit(0.0, -5.0) == 1.0
    assert fit(3.0, -5.0) == 0.0
    assert fit(3.0, 2.0) == pytest.approx(2 / 3)
    assert fit(0.0, 0.0) == 1.0
