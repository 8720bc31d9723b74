# SPDX-License-Identifier: Apache-2.0
"""Change: other counters for a session that runs. Its probes stay as they are, and its target's code the same bytes.

Order: all threads' counters are taken back -> what they have written is drained -> what probes count by themselves is
measured with the new ones -> readings are the new ones' -> threads get them. A call that is open meanwhile is not
counted. Called by control.py, in the thread that drains.
"""

from __future__ import annotations

from otel_nfprobe.counters.choice import Counter, CounterChoice, name_counters
from otel_nfprobe.counters.compensation import Compensation, costs_of
from otel_nfprobe.counters.sets import CounterSet
from otel_nfprobe.monitor.monitor import Monitor

TURN_S = 0.005  # how long the drain may pause


def change_counters(monitor: Monitor, choice: CounterChoice) -> list[str]:
    """Reads these counters from now on. Returns what a person should know of it.

    Args:
        choice: hardware counters that this machine has, and software counters.

    Raises:
        NfprobeError: the target does not answer; nothing is counted any more.
    """
    said: list[str] = []

    def tell(sentence: str) -> None:
        said.append(sentence)
        monitor.say(sentence)

    while not monitor.attachment.follower.turn.acquire(timeout=TURN_S):
        monitor.drain.round()
    try:
        monitor.counting.say = monitor.software.say = tell
        _count_anew(monitor, choice)
        monitor.counting.follow()
    finally:
        monitor.counting.say = monitor.software.say = monitor.say
        monitor.attachment.follower.turn.release()
    return said


def _count_anew(monitor: Monitor, choice: CounterChoice) -> None:
    counting, drain = monitor.counting, monitor.drain
    hardware: tuple[Counter, ...] = ()
    compensation = Compensation()
    try:
        monitor.software.begin_anew(choice.software)
        if counting.begin_anew(choice.hardware):
            module = monitor.attachment.probes[0].request.plan.module
            hardware, compensation = choice.hardware, counting.calibrate(monitor.attachment.arenas, module, drain.round)
            monitor.attachment.session.leave_out_polls(compensation.of_empty_polls(monitor.attachment.probes))
    finally:
        drain.round()
        monitor.counters, monitor.software_counters, monitor.compensation = hardware, choice.software, compensation
        costs = costs_of(list(monitor.attachment.probes), compensation)
        drain.set_counter_set(CounterSet(counting.change, name_counters(hardware), costs))
