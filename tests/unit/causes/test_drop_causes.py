# SPDX-License-Identifier: Apache-2.0
"""What filled a queue that dropped packets, on columns made by hand: 1000 ticks between batches of 300."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from otel_nfprobe.base.columns import NONE, CallFlag, Columns, Rows
from otel_nfprobe.causes.drop_causes import DropCauseKind, Why, find_drop_causes, join_drops
from otel_nfprobe.causes.drop_tally import DropTally
from otel_nfprobe.linux.queue_counters import Queue, QueueKind
from otel_nfprobe.pipeline.absences import AbsenceFlag, AbsenceKind, no_absences
from otel_nfprobe.pipeline.queue_drops import QUEUE_DROP, DropFlag, make_row
from tests.support.absences import make_interrupt, make_steal, make_switches
from tests.unit.causes.test_latency_causes import BASELINE, TX, WORK, Story

UDP = Queue(QueueKind.UDP, 71, "udp 127.0.0.1:9000")


def drop(since: int, until: int, packets: int = 10, thread: int = NONE, flags: int = 0, queue: Queue = UDP) -> Rows:
    return make_row(queue, (since, until), packets, thread, flags)


def columns_of(story: Story) -> Columns:
    columns = story.columns()
    columns.batches["requested"] = 4
    return columns


def find(story: Story, drops: Rows, absences: Rows | None = None) -> Rows:
    return find_drop_causes(columns_of(story), drops, BASELINE, absences)


def usual(story: Story, start: int, count: int, full: bool = False, every: int = 1000, thread: int = 0) -> None:
    for index in range(count):
        story.batch(start + index * every, (100, 100, 100), full=full, thread=thread)


def stalled() -> Story:
    """Usual batches at 1000, 2000, ..., but the one at 10,000 takes 20,000 ticks longer in TX."""
    story = Story()
    usual(story, 1000, 9)
    story.batch(10_000, (100, 100, 20_100))
    usual(story, 30_310, 3, full=True, every=310)
    usual(story, 32_000, 9)
    return story


def test_the_function_that_stood_while_packets_were_dropped() -> None:
    (cause,) = find(stalled(), drop(20_000, 29_000))
    assert (cause["kind"], cause["function"], cause["batch_id"]) == (DropCauseKind.FUNCTION, TX, 109)
    assert cause["start_ticks"] == 10_200
    assert cause["stall_ticks"] == pytest.approx(29_000 - 10_300, abs=500)
    assert cause["share"] > 0.9
    assert cause["thread"] == 0


def test_the_drops_are_found_late() -> None:
    """The counter is read some time after the queue is empty again."""
    (cause,) = find(stalled(), drop(29_000, 38_000))
    assert (cause["kind"], cause["function"], cause["batch_id"]) == (DropCauseKind.FUNCTION, TX, 109)


def test_drops_while_the_backlog_is_worked_off_belong_to_the_stall() -> None:
    (cause,) = find(stalled(), drop(30_400, 30_700))
    assert (cause["kind"], cause["batch_id"]) == (DropCauseKind.FUNCTION, 109)


@pytest.mark.parametrize(("since", "until"), [(1500, 9500), (34_500, 40_000)])
def test_drops_at_other_times_are_not_the_stalls(since: int, until: int) -> None:
    (cause,) = find(stalled(), drop(since, until))
    assert cause["batch_id"] != 109
    assert cause["kind"] != DropCauseKind.FUNCTION


def test_many_small_excesses_of_one_function_count_together() -> None:
    story = Story()
    usual(story, 1000, 3)
    for index in range(20):
        story.batch(5000 + 1100 * index, (100, 900, 100), full=index > 0)
    usual(story, 30_000, 3)
    (cause,) = find(story, drop(20_000, 26_000))
    assert (cause["kind"], cause["function"]) == (DropCauseKind.FUNCTION, WORK)


def test_a_burst_is_worked_off_as_usual() -> None:
    story = Story()
    usual(story, 1000, 3)
    usual(story, 5000, 40, full=True, every=320)
    usual(story, 30_000, 3)
    (cause,) = find(story, drop(8000, 12_000))
    assert (cause["kind"], cause["why"], cause["function"]) == (DropCauseKind.BURST, Why.KNOWN, NONE)
    assert cause["flow_packet"] != NONE
    assert cause["flow_share"] == 1.0


def test_what_ran_instead() -> None:
    story, rows = stalled(), make_switches([(10_250, 30_000, 0, AbsenceFlag.PREEMPTED)])
    rows["name"], rows["code"] = b"hog", 71
    (cause,) = find(story, drop(20_000, 29_000), rows)
    assert (cause["kind"], cause["by"], cause["batch_id"]) == (DropCauseKind.PREEMPTION, b"hog (tid 71)", 109)
    assert cause["function"] == NONE


def test_an_interrupt_and_the_host() -> None:
    interrupt = make_interrupt(AbsenceKind.SOFTIRQ, 3, 10_250, 29_000)
    (cause,) = find(stalled(), drop(20_000, 29_000), interrupt)
    assert (cause["kind"], cause["by"]) == (DropCauseKind.INTERRUPT, b"softirq NET_RX")
    (cause,) = find(stalled(), drop(20_000, 30_400), make_steal(9_000, 31_000, 19_900))
    assert cause["kind"] == DropCauseKind.HOST


def test_a_thread_that_is_stopped_between_two_batches() -> None:
    story = Story()
    usual(story, 1000, 5)
    usual(story, 40_000, 2, full=True, every=310)
    usual(story, 40_620, 5)
    rows = make_switches([(5_400, 15_000, 0, 0), (15_010, 39_990, 0, 0)])  # asleep in poll(), then stopped
    for since, until in ((20_000, 30_000), (16_000, 45_000), (38_000, 40_500)):
        (cause,) = find(story, drop(since, until), rows)
        assert (cause["kind"], cause["start_ticks"]) == (DropCauseKind.ABSENT, 15_010)


def test_a_thread_that_sleeps_until_packets_come_is_not_to_blame() -> None:
    story = Story()
    usual(story, 1000, 5)
    story.batch(40_000, (100, 100, 100))
    usual(story, 40_310, 30, full=True, every=310)
    usual(story, 60_000, 3)
    (cause,) = find(story, drop(39_000, 50_000), make_switches([(5_400, 39_990, 0, 0)]))
    assert cause["kind"] == DropCauseKind.BURST


def test_a_stop_inside_a_function_is_its_time() -> None:
    rows = make_switches([(10_250, 30_000, 0, 0)])
    (cause,) = find(stalled(), drop(20_000, 29_000), rows)
    assert (cause["kind"], cause["function"]) == (DropCauseKind.FUNCTION, TX)


def test_whose_queue_it_is_decides() -> None:
    story = stalled()
    usual(story, 1000, 39, thread=1)
    rows = np.concatenate(
        [
            drop(20_000, 29_000),
            drop(20_000, 29_000, flags=DropFlag.SHARED),
            *(drop(20_000, 29_000, thread=t) for t in (0, 1, 7)),
        ]
    )
    causes = find(story, rows)
    assert causes["why"].tolist()[:3] == [Why.NO_READER, Why.SEVERAL_READERS, Why.KNOWN]
    assert causes["kind"][2] == DropCauseKind.FUNCTION
    assert causes["kind"][3] != DropCauseKind.FUNCTION  # the other thread had no stall
    assert (causes["kind"][4], causes["why"][4]) == (DropCauseKind.UNKNOWN, Why.NO_BATCHES)


def test_without_batches_or_baseline_nothing_is_said() -> None:
    (cause,) = find_drop_causes(Columns(), drop(1, 2), BASELINE)
    assert (cause["kind"], cause["why"]) == (DropCauseKind.UNKNOWN, Why.NO_BATCHES)
    few = replace(BASELINE, batches=3)
    (cause,) = find_drop_causes(stalled().columns(), drop(20_000, 29_000), few)
    assert cause["kind"] == DropCauseKind.UNKNOWN
    assert len(find_drop_causes(Columns(), np.empty(0, QUEUE_DROP), BASELINE)) == 0


def test_consecutive_rows_of_one_culprit_are_one_event() -> None:
    rows = np.concatenate(
        [drop(12_000, 20_000, 3), drop(20_000, 29_000, 4), drop(29_000, 38_000, 5, flags=DropFlag.AT_LEAST)]
    )
    (event,) = join_drops(rows, find(stalled(), rows))
    assert event == (0, 12, 12_000, 38_000, True)


def test_other_queues_and_other_times_are_other_events() -> None:
    other = Queue(QueueKind.UDP, 72, "udp 127.0.0.1:9001")
    rows = np.concatenate([drop(20_000, 29_000), drop(20_000, 29_000, queue=other), drop(1500, 2500), drop(3500, 4500)])
    events = join_drops(rows, find(stalled(), rows))
    assert [event.row for event in events] == [2, 3, 0, 1]


def tally_of(drops: Rows, patience: int = 10_000) -> DropTally:
    return DropTally(lambda: BASELINE, drops, no_absences(), patience)


def test_the_tally_waits_for_the_stall_to_end() -> None:
    story = stalled()
    whole = story.columns()
    tally = tally_of(drop(20_000, 29_000))
    early = Story()
    usual(early, 1000, 9)
    tally.add(early.columns())
    assert len(tally.drops) == 0
    tally.add(whole)
    (event,) = tally.finish()
    assert tally.causes["function"][event.row] == TX
    assert tally.causes["batch"][event.row] == NONE
    assert tally.culprit(109).packet_id == 0


def test_a_tally_of_drops_at_the_end_or_without_columns() -> None:
    tally = tally_of(drop(50_000, 60_000, 7))
    tally.add(stalled().columns())
    (event,) = tally.finish()
    assert event.packets == 7
    (event,) = tally_of(drop(1, 2)).finish()
    assert event.packets == 10


def test_rows_that_cannot_be_are_left_out() -> None:
    """A recording may hold anything."""
    random = np.random.default_rng(5)
    wild = np.frombuffer(random.bytes(QUEUE_DROP.itemsize * 200), QUEUE_DROP).copy()
    wild["since_ticks"][:100] %= np.uint64(40_000)
    wild["until_ticks"][:100] = wild["since_ticks"][:100] + np.uint64(5000)
    wild["packets"][:100] %= np.uint64(100)
    wild["thread"][:50] = 0
    backwards = drop(29_000, 20_000)
    tally = tally_of(np.concatenate([wild, backwards, drop(20_000, 1 << 63), drop(1, 2, 1 << 63)]))
    tally.add(stalled().columns())
    tally.finish()
    assert 100 <= len(tally.drops) <= 200


# ---- transmit calls that left packets -------------------------------------------------------------------------------


SENDING = Queue(QueueKind.TRANSMIT, TX, "transmit eth_tx")


def sending(offered: list[int], taken: list[int]) -> Columns:
    """A batch every 1000 ticks, each sent by one call."""
    story = Story()
    usual(story, 1000, len(offered))
    columns = columns_of(story)
    sends = np.flatnonzero(columns.calls["function"] == TX)
    columns.calls["flags"][sends] |= np.uint16(CallFlag.TRANSMIT | CallFlag.VALUE)
    columns.calls["value"][sends] = np.array(taken, np.uint64) | np.array(offered, np.uint64) << np.uint64(32)
    return columns


def test_a_receiver_that_took_nothing() -> None:
    columns = sending([4] * 80, [4] * 40 + [0] * 30 + [4] * 10)
    drops = drop(41_200, 70_300, 120, thread=0, queue=SENDING)
    (cause,) = find_drop_causes(columns, drops, BASELINE)
    assert (cause["kind"], cause["why"], cause["function"]) == (DropCauseKind.RECEIVER, Why.KNOWN, NONE)
    assert (cause["batch_id"], cause["stall_ticks"]) == (columns.batches["id"][40], 29_100)
    assert cause["share"] == pytest.approx(29.1 / 30, abs=0.05)
    assert cause["by"] == b"the receiver took 0 packets"


def test_more_than_a_receiver_usually_takes_is_the_senders() -> None:
    """It takes as many as before, of a burst."""
    columns = sending([4] * 40 + [40] * 10, [4] * 50)
    (cause,) = find_drop_causes(columns, drop(41_200, 50_300, 360, thread=0, queue=SENDING), BASELINE)
    assert cause["kind"] != DropCauseKind.RECEIVER


def test_of_few_calls_it_is_not_known_what_a_receiver_usually_takes() -> None:
    columns = sending([4] * 40, [4] * 20 + [0] * 20)
    (cause,) = find_drop_causes(columns, drop(21_200, 40_300, 80, thread=0, queue=SENDING), BASELINE)
    assert cause["kind"] != DropCauseKind.RECEIVER
