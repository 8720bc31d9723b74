# SPDX-License-Identifier: Apache-2.0
"""The kernel's own trace, with which benchmarks compare causes: lines of perf in, noise out."""

from __future__ import annotations

from tests.support.kernel_trace import TraceReader

TID = 71


def read(*events: tuple[int, int, str]) -> TraceReader:
    """A trace of such lines: us, thread, event."""
    reader = TraceReader(TID)
    for at_us, tid, text in events:
        reader.take(f" {tid} [001] {5}.{at_us * 1000:09d}: {text}")
    return reader


def test_an_interrupt_is_without_those_that_interrupted_it() -> None:
    noise = read(
        (100, TID, "irq:irq_handler_entry: irq=4 name=nic"),
        (110, TID, "irq_vectors:local_timer_entry: vector=236"),
        (150, TID, "irq_vectors:local_timer_exit: vector=236"),
        (160, TID, "irq:irq_handler_exit: irq=4 ret=handled"),
    ).noise
    start = 5_000_000_000
    assert noise.by_name["local_timer"] == [(start + 110_000, start + 150_000, 40_000)]
    assert noise.by_name["irq_handler"] == [(start + 100_000, start + 160_000, 20_000)]
    assert noise.during("interrupt", start, start + 200_000) == 60_000


def test_a_softirq_of_a_system_call_interrupts_nobody() -> None:
    noise = read(
        (50, TID, "irq:softirq_entry: vec=3 [action=NET_RX]"),
        (60, TID, "irq:softirq_exit: vec=3 [action=NET_RX]"),
        (100, TID, "irq_vectors:local_timer_entry: vector=236"),
        (110, TID, "irq_vectors:local_timer_exit: vector=236"),
        (112, TID, "irq:softirq_entry: vec=1 [action=TIMER]"),
        (120, TID, "irq:softirq_exit: vec=1 [action=TIMER]"),
        (121, TID, "irq:softirq_entry: vec=9 [action=RCU]"),
        (125, TID, "irq:softirq_exit: vec=9 [action=RCU]"),
        (140, TID, "irq:softirq_entry: vec=3 [action=NET_RX]"),
        (142, TID, "irq:softirq_exit: vec=3 [action=NET_RX]"),
    ).noise
    assert [row[2] for row in noise.spans["interrupt"]] == [10_000, 8_000, 4_000]
    assert [row[2] for row in noise.spans["softirq"]] == [10_000, 2_000]
    assert noise.by_name["softirq NET_RX"] == noise.spans["softirq"]


def test_ends_that_were_lost_and_other_threads() -> None:
    noise = read(
        (10, TID, "irq:softirq_exit: vec=3 [action=NET_RX]"),
        (20, TID, "irq_vectors:reschedule_entry: vector=253"),
        (30, TID, "irq_vectors:local_timer_entry: vector=236"),
        (50, TID, "irq_vectors:local_timer_exit: vector=236"),
        (60, 22, "irq_vectors:local_timer_entry: vector=236"),
        (90, 22, "irq_vectors:local_timer_exit: vector=236"),
    ).noise
    assert [row[2] for row in noise.by_name["local_timer"]] == [20_000]


def test_who_else_ran_and_what_was_stolen() -> None:
    noise = read(
        (
            0,
            TID,
            f"sched:sched_switch: prev_comm=nf prev_pid={TID} prev_state=R ==> next_comm=hog next_pid=9 next_prio=1",
        ),
        (
            30,
            9,
            f"sched:sched_switch: prev_comm=hog prev_pid=9 prev_state=S ==> next_comm=nf next_pid={TID} next_prio=1",
        ),
        (130, TID, f"sched:sched_stat_runtime: comm=nf pid={TID} runtime=60000 [ns]"),
        (140, TID, f"sched:sched_switch: prev_comm=nf prev_pid={TID} prev_state=S ==> next_comm=swapper next_pid=0 x"),
        (150, 0, f"sched:sched_switch: prev_comm=swapper prev_pid=0 prev_state=R ==> next_comm=nf next_pid={TID} next"),
    ).noise
    assert [row[2] for row in noise.spans["switched out"]] == [30_000]
    assert [row[2] for row in noise.spans["steal"]] == [40_000]
    assert [row[2] for row in noise.spans["slept"]] == [10_000]
