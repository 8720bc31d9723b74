# SPDX-License-Identifier: Apache-2.0
"""Queue watch: reads the drop counters of a target's queues some dozen times per second, and who reads these queues.

The counters are the kernel's (queue_counters.py), in which case nothing runs in the target, and those of DPDK's ports,
which a thread of the target tells (dpdk_ports.py). A reading takes at most a small share of
one processor: where there are many sockets it is done less often, and the rows say between which two readings the
packets were dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from otel_nfprobe.base.clock import sample_pair
from otel_nfprobe.base.columns import NONE, Rows
from otel_nfprobe.linux.queue_counters import Queue, QueueCounters, QueueKind
from otel_nfprobe.monitor.dpdk_ports import DpdkPorts, PortReading
from otel_nfprobe.monitor.queue_readers import QueueReaders
from otel_nfprobe.pipeline.queue_drops import DropFlag, count_increase, make_row, no_queue_drops
from otel_nfprobe.target.target import Target

READING_S = 0.025  # between two readings
READING_SHARE = 0.02  # of one processor, for readings
LOOK_S = 1.0  # interval of finding the target's queues
READERS_S = 0.2  # interval of looking at what its threads wait for


class QueueWatch:
    """Watches the queues of one target.

    Args:
        target: its process.

    Attributes:
        uncounted: sockets of the target whose drops the kernel does not tell.
    """

    def __init__(self, target: Target) -> None:
        self._queues = QueueCounters(target.pid)
        self._ports = DpdkPorts(target.pid)
        self._ports_before: dict[Queue, PortReading] = {}
        self._readers = QueueReaders(target)
        self._look_at = self._readers_at = self._due_at = 0.0
        self._before: dict[Queue, int] = {}
        self._read_ticks = 0  # before the last reading

    @property
    def uncounted(self) -> int:
        """Number of sockets whose drops cannot be read."""
        return self._queues.uncounted

    def read_if_due(self, index_of: Callable[[], Mapping[int, int]]) -> Rows:
        """Reads the counters if it is time to. Returns rows of dtype QUEUE_DROP, of queues that dropped packets.

        Args:
            index_of: called if there are any: maps thread IDs to indexes in the thread table.
        """
        now = time.monotonic()
        if now < self._due_at:
            return no_queue_drops()
        spent_s = time.thread_time()
        rows = self.read(index_of)
        self._due_at = now + max(READING_S, (time.thread_time() - spent_s) / READING_SHARE)
        return rows

    def read(self, index_of: Callable[[], Mapping[int, int]]) -> Rows:
        """As `read_if_due`, at once."""
        self._look()
        begin = sample_pair().ticks
        fresh = self._queues.read()
        end = sample_pair().ticks
        parts: list[Rows] = []
        for queue, drops in fresh.items():
            if queue not in self._before:  # what it dropped before it was seen first has no time
                continue
            if drops != self._before[queue]:
                reader = self._find_reader(queue, index_of)
                parts += _make_increase(queue, (self._before[queue], drops), (self._read_ticks, end), *reader)
        self._before, self._read_ticks = fresh, begin
        parts += self._read_ports()
        return np.concatenate(parts) if parts else no_queue_drops()

    def _read_ports(self) -> list[Rows]:
        parts: list[Rows] = []
        for reading in self._ports.read():
            before = self._ports_before.get(reading.queue)
            self._ports_before[reading.queue] = reading
            if before is None:
                continue
            if reading.missed != before.missed:
                span = before.since_ticks, reading.until_ticks
                parts += _make_increase(reading.queue, (before.missed, reading.missed), span)
        return parts

    def close(self) -> None:
        """Closes what it reads from."""
        self._queues.close()
        self._ports.close()

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._queues.look()
            found = self._queues.descriptors
            self._ports.look(found.sockets)
            self._readers.keep(
                {number for part in (found.sockets, found.taps) for at in part.values() for number in at}
            )
        if now >= self._readers_at:
            self._readers_at = now + READERS_S
            self._readers.look()

    def _find_reader(self, queue: Queue, index_of: Callable[[], Mapping[int, int]]) -> tuple[int, DropFlag]:
        found = self._queues.descriptors
        named = found.taps.get(queue.name.removeprefix("tap "), []) if queue.kind == QueueKind.TAP else []
        readers = self._readers.of([*named, *found.sockets.get(queue.number, [])])
        if len(readers) != 1:
            return NONE, DropFlag.SHARED if readers else DropFlag(0)
        return index_of().get(readers.pop(), NONE), DropFlag(0)


def _make_increase(
    queue: Queue, counts: tuple[int, int], span: tuple[int, int], thread: int = NONE, flags: int = 0
) -> list[Rows]:
    """Returns the row of two readings of a counter, or none if no packet was dropped between them."""
    packets, was_reset = count_increase(queue.kind, *counts)
    return [make_row(queue, span, packets, thread, flags | (DropFlag.AT_LEAST if was_reset else 0))] if packets else []
