# SPDX-License-Identifier: Apache-2.0
"""Each kind of cause on columns made by hand: batches of one thread, every 1000 ticks, 100 ticks per call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from otel_nfprobe.base.columns import BATCH, CALL, HANDOVER, NONE, PACKET, BatchFlag, Columns, HandoverFlag, Rows
from otel_nfprobe.causes.baseline import Baseline, BatchSample
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, no_absences
from tests.support.absences import make_interrupt, make_steal, make_switches

RX, WORK, TX = 0, 1, 2
# Three functions of 100 ticks each, nothing outside of them.
BASE = np.array([100.0, 100.0, 100.0, 0.0, 300.0])
BASELINE = Baseline(BASE, np.zeros(5), 300, 300, 4, gap_ticks=20, idle_ticks=100, batches=1000)
# The same in a function whose batches take 10 ticks per packet.
PER_PACKET = Baseline(np.zeros(5), np.array([0.0, 10.0, 0.0, 0.0, 10.0]), 40, 40, 4, 0, 100, 1000)


def _fill(array: np.ndarray, names: tuple[str, ...], rows: list) -> None:
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        array[name] = values


class Story:
    """Batches one after another: each receives, works and transmits; one packet each."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int, int, int]] = []  # function, start, end, batch, thread
        self.batches: list[tuple[int, int, int, int, int]] = []  # start, end, size, thread, flags
        self.absences: list[tuple[int, int, int]] = []  # out, in, flags
        self.rows: list[Rows] = []  # other absences
        self.packets: list[tuple[int, int, int]] = []  # arrival, done, batch
        self.earliest: dict[int, int] = {}  # by batch: when its queue was seen empty, else 0

    def batch(
        self,
        start: int,
        ticks: tuple[int, ...],
        arrival: int = 0,
        size: int = 4,
        thread: int = 0,
        full: bool = False,
    ) -> None:
        at, index = start, len(self.batches)
        for function, duration in enumerate(ticks):
            self.calls.append((function, at, at + duration, index, thread))
            at += duration
        self.batches.append((start, at, size, thread, BatchFlag.FULL if full else 0))
        self.packets.append((arrival, at, index))

    def columns(self) -> Columns:
        calls = np.zeros(len(self.calls), CALL)
        batches, packets = np.zeros(len(self.batches), BATCH), np.zeros(len(self.packets), PACKET)
        _fill(calls, ("function", "start_ticks", "end_ticks", "batch", "thread"), self.calls)
        calls["self_ticks"], calls["parent"] = calls["end_ticks"] - calls["start_ticks"], NONE
        _fill(batches, ("start_ticks", "end_ticks", "size", "thread", "flags"), self.batches)
        batches["id"] = np.arange(len(batches)) + 100
        batches["earliest_ticks"] = [self.earliest.get(index, 0) for index in range(len(batches))]
        batches["first_call"] = np.searchsorted(calls["batch"], np.arange(len(batches)))
        batches["calls"] = np.bincount(calls["batch"])
        batches["first_packet"], batches["packets"] = np.arange(len(batches)), 1
        _fill(packets, ("arrival_ticks", "done_ticks", "batch"), self.packets)
        packets["flags"], packets["disposition"] = packets["arrival_ticks"] > 0, 1
        return Columns(calls, batches, packets)

    def preempt(self, out: int, back: int, flags: int = AbsenceFlag.PREEMPTED) -> None:
        self.absences.append((out, back, flags))

    def cause(self, packet: int, baseline: Baseline = BASELINE) -> np.void:
        absences = np.concatenate(
            (make_switches([(out, back, 0, flags) for out, back, flags in self.absences]), *self.rows)
        )
        return find_causes(self.columns(), np.array([packet]), baseline, absences)[0]


def read(cause: np.void, *names: str) -> tuple[object, ...]:
    return tuple(cause[name].item() for name in names)


def test_own() -> None:
    story = Story()
    story.batch(1000, (100, 900, 100))
    cause = story.cause(0)
    assert read(cause, "kind", "function", "excess_ticks", "batch_id", "batch", "call", "share") == (
        CauseKind.OWN,
        WORK,
        800,
        100,
        0,
        1,
        1.0,
    )


def test_queue() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100), arrival=1500)
    cause = story.cause(1)
    assert (cause["kind"], cause["function"], cause["batch"], cause["batch_id"]) == (
        CauseKind.QUEUE,
        TX,
        0,
        100,
    )
    assert cause["excess_ticks"] == min(4900, 6500 - 1500 - 300)
    assert cause["share"] == 1.0


def test_queue_behind_several_batches_names_the_slow_one() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.batch(1300, (100, 4000, 100))
    story.batch(5500, (100, 100, 100))
    story.batch(5800, (100, 100, 100), arrival=1200)
    cause = story.cause(3)
    assert (cause["kind"], cause["batch"], cause["function"]) == (CauseKind.QUEUE, 1, WORK)


def test_batch_that_ended_before_the_arrival_is_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=6300)
    assert story.cause(2)["kind"] == CauseKind.UNKNOWN


def test_other_threads_are_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000), thread=1)
    story.batch(6200, (100, 100, 100), arrival=1500)
    assert read(story.cause(1), "kind", "function", "excess_ticks", "batch", "share") == (
        CauseKind.UNKNOWN,
        NONE,
        0,
        NONE,
        0.0,
    )


def test_call_after_the_packet_was_done_is_not_to_blame() -> None:
    story = Story()
    story.batch(1000, (100, 1000, 100, 9000))
    story.packets[0] = (0, 2200, 0)
    assert story.cause(0)["function"] == WORK


def test_batching() -> None:
    story = Story()
    story.batch(1000, (0, 320, 0), size=32)
    cause = story.cause(0, PER_PACKET)
    assert read(cause, "kind", "function", "excess_ticks", "batch", "share") == (CauseKind.BATCHING, NONE, 280, 0, 1.0)


def test_punctual_and_unfinished_packets_have_no_cause() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    assert story.cause(0)["kind"] == CauseKind.UNKNOWN
    columns = story.columns()
    columns.packets["done_ticks"], columns.packets["disposition"] = 0, 0
    assert find_causes(columns, np.array([0]), BASELINE, no_absences())["kind"][0] == CauseKind.UNKNOWN
    assert len(find_causes(columns, np.array([], np.int64), BASELINE)) == 0


@pytest.mark.parametrize("order", [1, -1])
def test_batches_may_come_in_any_order(order: int) -> None:
    story = Story()
    batches = [(1000, (100, 100, 5000), 0), (6200, (100, 100, 100), 1500)][::order]
    for start, ticks, arrival in batches:
        story.batch(start, ticks, arrival)
    late = 1 if order == 1 else 0
    assert story.cause(late)[["kind", "batch"]].tolist() == (CauseKind.QUEUE, 1 - late)


def test_preemption_is_not_blamed_on_the_function() -> None:
    story = Story()
    story.batch(1000, (100, 5000, 100))
    story.preempt(1200, 6000)
    assert read(story.cause(0), "kind", "function", "excess_ticks", "batch") == (CauseKind.PREEMPTION, NONE, 4800, 0)
    story.batch(6220, (100, 100, 100), arrival=1500)
    assert read(story.cause(1), "kind", "batch", "call") == (CauseKind.PREEMPTION, 0, NONE)


def test_a_function_that_gave_up_its_cpu_is_blamed() -> None:
    story = Story()
    story.batch(1000, (100, 5000, 100))
    story.preempt(1200, 6000, flags=0)
    assert read(story.cause(0), "kind", "function") == (CauseKind.OWN, WORK)


def test_preemption_between_polls_that_find_nothing() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.preempt(5000, 9000)
    story.batch(9010, (100, 100, 100), arrival=5100)
    assert read(story.cause(1), "kind", "batch") == (CauseKind.PREEMPTION, 1)


def test_the_larger_of_preemption_and_function() -> None:
    story = Story()
    story.batch(1000, (100, 9000, 100))
    story.preempt(1200, 3200)
    assert read(story.cause(0), "kind", "function", "excess_ticks") == (CauseKind.OWN, WORK, 6900)


def test_preemption_of_another_thread() -> None:
    story = Story()
    story.batch(1000, (100, 5000, 100), thread=1)
    story.preempt(1200, 6000)
    assert story.cause(0)["kind"] == CauseKind.OWN


def test_burst() -> None:
    story = Story()
    at = 1000
    for _ in range(10):
        story.batch(at, (0, 320, 0), arrival=990, size=32, full=True)
        at += 320
    cause = story.cause(9, PER_PACKET)
    assert read(cause, "kind", "function", "batch", "saturated") == (CauseKind.BURST, NONE, 9, 1)
    assert cause["excess_ticks"] == pytest.approx(9 * 320, abs=400)
    assert cause["flow_share"] == 1.0


def test_a_function_that_is_slow_in_many_batches_is_charged_for_all() -> None:
    story = Story()
    at = 1000
    story.batch(at, (0, 40, 0), size=4)
    at += 40
    for _ in range(10):
        story.batch(at, (0, 960, 0), arrival=1001, size=32, full=True)
        at += 960
    assert read(story.cause(10, PER_PACKET), "kind", "function") == (CauseKind.QUEUE, WORK)


def test_slow_code_outside_of_probed_functions() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.calls[1] = (WORK, 1100, 1200, 0, 0)
    story.calls[2] = (TX, 9000, 9100, 0, 0)
    story.batches[0] = (1000, 9100, 4, 0, 0)
    story.packets[0] = (0, 9100, 0)
    assert read(story.cause(0), "kind", "function", "call") == (CauseKind.OWN, NONE, NONE)


def test_an_idle_gap_ends_the_period() -> None:
    story = Story()
    story.batch(1000, (100, 9000, 100), full=True)
    story.batch(11000, (100, 100, 100), full=True)
    story.batch(11310, (100, 900, 100), arrival=11020)
    assert read(story.cause(2), "kind", "function", "batch", "saturated") == (CauseKind.OWN, WORK, 2, 0)


def test_a_gap_while_packets_wait_is_not_idle() -> None:
    story = Story()
    story.batch(1000, (100, 100, 100), full=True)
    story.batch(9000, (100, 100, 100), arrival=1200, full=True)
    story.batch(9320, (100, 100, 100), arrival=1250)
    cause = story.cause(2)
    assert read(cause, "kind", "function", "batch", "call") == (CauseKind.QUEUE, NONE, 0, NONE)
    assert cause["excess_ticks"] == pytest.approx(9000 - 1300 - 20, abs=30)


def test_nothing_is_unusual_before_enough_was_seen() -> None:
    story = Story()
    story.batch(1000, (100, 9000, 100))
    sample = BatchSample()
    sample.add(story.columns())
    assert not sample.baseline().is_known
    assert story.cause(0, sample.baseline())["kind"] == CauseKind.UNKNOWN


def test_baseline_times_grow_with_the_batch() -> None:
    random, sample = np.random.default_rng(1), BatchSample()
    for take in range(20):
        story, at = Story(), 1000 + take * 10**6
        for _ in range(100):
            size = int(random.integers(1, 33))
            slow = 10**5 if random.random() < 0.05 else 0
            ticks = (60, 200 + 30 * size + slow, 100) if size % 8 else (60, 200 + 30 * size, 100, 7)
            story.batch(at, ticks, size=size, full=size == 32)
            at += sum(ticks) + (50 if size == 32 else 700)
        sample.add(story.columns())
    baseline = sample.baseline()
    assert baseline.batches == 2000
    for size in (1, 8, 16, 32):
        usual = baseline.function_ticks(np.array([RX, WORK, TX, 3, 99, NONE]), size)
        assert usual == pytest.approx([60, 200 + 30 * size, 100, 0, 0, 0], rel=0.15, abs=20)
        assert baseline.batch_ticks(np.array([size]))[0] == pytest.approx(360 + 30 * size, rel=0.15)
    assert baseline.gap_ticks == 50
    assert baseline.idle_ticks == 3 * 50
    assert 14 <= baseline.batch_size <= 19
    assert baseline.latency_ticks == baseline.own_ticks == pytest.approx(360 + 30 * 16, rel=0.15)


def test_samples_are_bounded() -> None:
    story = Story()
    for number in range(3000):
        story.batch(1000 + number * 400, (100, 100, 100))
    sample, columns = BatchSample(), story.columns()
    for _ in range(40):
        sample.add(columns)
    assert len(sample._kept.sizes) <= 8192
    assert len(sample._latencies) <= 32768
    assert sample.baseline().function_ticks(np.array([RX, WORK, TX]), 4).tolist() == pytest.approx([100, 100, 100])


def test_bounds_from_polls_show_the_victims() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000))
    story.batch(6200, (100, 100, 100), full=True)
    story.batch(6500, (100, 100, 100))
    story.earliest = {1: 1000, 2: 1000}  # the slow batch's own poll had left the queue empty
    for packet in (1, 2):
        assert read(story.cause(packet), "kind", "function", "batch", "saturated") == (CauseKind.QUEUE, TX, 0, 0)


def test_an_empty_poll_ends_the_period() -> None:
    story = Story()
    story.batch(1000, (100, 100, 5000), full=True)
    story.batch(6215, (100, 900, 100))
    story.earliest = {1: 6205}  # between two batches that follow each other at once
    assert read(story.cause(1), "kind", "function", "batch", "saturated") == (CauseKind.OWN, WORK, 1, 0)


def test_a_packet_that_waited_for_another_thread() -> None:
    """Its receiver was slow before and had a queue; what it waited for is a batch of the thread that took it over."""
    story = Story()
    for start in (100, 2000):
        story.batch(start, (100, 100, 100))
    story.batch(2100, (0, 0, 9000), thread=1)
    story.batch(11_200, (100, 100, 100), thread=1)
    columns = story.columns()
    columns.packets["done_ticks"][1] = 11_500
    columns.handovers = np.array([(1, 3, 0, 0)], HANDOVER)
    columns.batches["earliest_ticks"][3] = 2000
    (cause,) = find_causes(columns, np.array([1]), BASELINE)
    assert read(cause, "kind", "function", "batch_id") == (CauseKind.QUEUE, TX, 102)
    again = np.array([(1, 0, 0, HandoverFlag.AGAIN)], HANDOVER)
    moved = replace(columns, handovers=again, reemitted_batches=columns.batches[3:4].copy())
    assert find_causes(moved, np.array([1]), BASELINE) == cause
    alone = replace(columns, handovers=again[:0])
    assert find_causes(alone, np.array([1]), BASELINE)[0]["kind"] == CauseKind.UNKNOWN


def test_an_interrupt_is_the_cause_and_not_the_function_that_it_hit() -> None:
    story = Story()
    story.batch(1000, (100, 5100, 100))
    story.rows.append(make_interrupt(AbsenceKind.SOFTIRQ, 3, 1150, 4150))
    story.rows.append(make_interrupt(AbsenceKind.VECTOR, 0, 4150, 4160))
    cause = story.cause(0)
    assert read(cause, "kind", "by", "function") == (CauseKind.INTERRUPT, b"softirq NET_RX", NONE)
    # What it cost beside its own time is its, too, but for the gap of 20 ticks that is usual.
    assert cause["excess_ticks"] == 5000 - 20


def test_an_interrupt_excuses_no_more_than_its_own_time_again() -> None:
    story = Story()
    story.batch(1000, (100, 5100, 100))
    story.rows.append(make_interrupt(AbsenceKind.VECTOR, 0, 1150, 2150))
    cause = story.cause(0)
    assert read(cause, "kind", "function") == (CauseKind.OWN, WORK)
    assert cause["excess_ticks"] == 5000 - 2 * 1000


def test_the_task_that_ran_instead_is_named() -> None:
    story = Story()
    story.batch(1000, (100, 100, 9000))
    story.batch(10_300, (100, 100, 100), arrival=1500)
    row = make_switches([(1300, 10_000, 0, AbsenceFlag.PREEMPTED)])
    row["code"], row["name"] = 71, b"kworker/1:2"
    story.rows.append(row)
    cause = story.cause(1)
    assert read(cause, "kind", "by", "batch") == (CauseKind.PREEMPTION, b"kworker/1:2 (tid 71)", 0)


@pytest.mark.parametrize(("stolen", "kind"), [(5000, CauseKind.HOST), (1000, CauseKind.OWN), (3000, CauseKind.HOST)])
def test_steal_time_is_laid_on_the_batch_that_stood_still(stolen: int, kind: CauseKind) -> None:
    """Of an excess of 5,000 ticks the hypervisor explains so much, in an interval of the scheduler around it."""
    story = Story()
    for number in range(4):
        story.batch(1000 + 400 * number, (100, 100, 100))
    story.batch(2600, (100, 5100, 100))
    story.rows.append(make_steal(1000, 9000, stolen))
    assert story.cause(4)["kind"] == kind
    # A gap of 20 ticks between two batches is usual, too.
    assert 0 <= max(stolen, 5000 - stolen) - int(story.cause(4)["excess_ticks"]) <= 20
    assert story.cause(3)["kind"] == CauseKind.UNKNOWN  # its batch took its time


def test_steal_time_within_an_interrupt_is_the_hosts() -> None:
    story = Story()
    for number in range(4):
        story.batch(1000 + 400 * number, (100, 100, 100))
        story.rows.append(make_interrupt(AbsenceKind.VECTOR, 0, 1110 + 400 * number, 1120 + 400 * number))
    story.batch(2600, (100, 5100, 100))
    story.rows.append(make_interrupt(AbsenceKind.VECTOR, 0, 2710, 7710))
    story.rows.append(make_steal(2000, 9000, 4900))
    cause = story.cause(4)
    assert read(cause, "kind", "by", "batch", "excess_ticks") == (CauseKind.HOST, b"", 4, 4900)
    assert cause["parts"]["kind"][1] == CauseKind.INTERRUPT


def test_steal_time_of_which_no_batch_shows_much_is_nobodys() -> None:
    story = Story()
    story.batch(1000, (100, 1100, 100))
    story.rows.append(make_steal(900, 90_000, 60_000))  # it fell into the time without packets
    assert read(story.cause(0), "kind", "function") == (CauseKind.OWN, WORK)


def test_steal_time_in_which_no_batch_ran_delayed_what_came_then() -> None:
    """The thread polled and found nothing, then stood still; the packet came meanwhile, and nothing was before it."""
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=4200)
    story.rows.append(make_steal(2000, 9400, 4600))
    cause = story.cause(1)
    assert read(cause, "kind", "function", "batch_id", "excess_ticks") == (CauseKind.HOST, NONE, 101, 4600)
    assert read(cause, "late_ticks", "rest_ticks") == (9300 - 4200 - 300, 200)


@pytest.mark.parametrize("arrival", [4200, 9000])
def test_a_page_fault_of_a_poll_delays_what_came_meanwhile(arrival: int) -> None:
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=arrival)
    for out, back in ((4000, 8000), (8100, 8900)):
        story.rows.append(make_switches([(out, back, 0, AbsenceFlag.MAJOR)]))
        story.rows[-1]["kind"], story.rows[-1]["text"] = AbsenceKind.FAULT, b"/usr/bin/nf"
    cause = story.cause(1)
    if arrival == 9000:
        assert cause["kind"] == CauseKind.UNKNOWN
        return
    assert read(cause, "kind", "function", "by") == (CauseKind.FAULT, NONE, b"major page fault of /usr/bin/nf")
    assert cause["excess_ticks"] == 8000 - 4200 + 800


@pytest.mark.parametrize(("flags", "kind"), [(AbsenceFlag.STOPPED, CauseKind.FAULT), (0, CauseKind.UNKNOWN)])
def test_a_stop_between_two_batches_is_said_to_be_one(flags: int, kind: CauseKind) -> None:
    """A sleep there is a wait for work."""
    story = Story()
    story.batch(1000, (100, 100, 100))
    story.batch(9000, (100, 100, 100), arrival=4200)
    story.preempt(4000, 8900, flags)
    cause = story.cause(1)
    assert (cause["kind"], cause["function"]) == (kind, NONE)
    assert cause["by"] == (b"stopped by a signal or a debugger" if flags else b"")
