# SPDX-License-Identifier: Apache-2.0
"""The rows of queues whose counters do anything, and threads that wait for sockets in each way there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from otel_nfprobe.base.columns import NONE
from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.linux.queue_counters import Descriptors, Queue, QueueKind
from otel_nfprobe.monitor.queue_readers import POLLED_MAX, QueueReaders
from otel_nfprobe.monitor.queue_watch import QueueWatch
from otel_nfprobe.pipeline.queue_drops import DropFlag
from otel_nfprobe.target.target import Target
from tests.support.probed import wait_until

UDP, PACKET = Queue(QueueKind.UDP, 5, "udp 127.0.0.1:53"), Queue(QueueKind.PACKET, 6, "packet socket on eth0")


class Scripted:
    """Counters that are read one after the other from a list."""

    def __init__(self, readings: list[dict[Queue, int]]) -> None:
        self._readings = iter(readings)
        self.descriptors = Descriptors({5: [3], 6: [4]})
        self.uncounted = 0

    def look(self) -> None:
        pass

    def read(self) -> dict[Queue, int]:
        return next(self._readings)

    def close(self) -> None:
        pass


def watch(readings: list[dict[Queue, int]], seen: dict[int, set[int]] | None = None) -> QueueWatch:
    made = QueueWatch(Target(os.getpid()))
    made.close()
    made._queues = Scripted(readings)  # type: ignore[assignment]
    made._readers.look = lambda: None  # type: ignore[method-assign]
    made._readers._seen = seen or {}
    return made


def test_increases_become_rows_between_the_readings() -> None:
    watched = watch([{UDP: 7}, {UDP: 7}, {UDP: 10}, {UDP: 11, PACKET: 100}, {UDP: 11, PACKET: 103}], {3: {70}})
    rows = [watched.read(lambda: {70: 2}) for _ in range(5)]
    assert [len(part) for part in rows] == [0, 0, 1, 1, 1]
    first, second, third = (part[0] for part in rows[2:])
    assert (first["packets"], first["thread"], first["kind"], first["number"]) == (3, 2, QueueKind.UDP, 5)
    assert (third["packets"], third["thread"], third["name"]) == (3, NONE, b"packet socket on eth0")
    # A reading takes a moment: each row begins before the one before it ended.
    assert first["since_ticks"] < second["since_ticks"] < first["until_ticks"] < second["until_ticks"]


@pytest.mark.parametrize(
    ("readings", "packets", "flags"),
    [
        ([9, 4], 4, DropFlag.AT_LEAST),
        ([2**32 - 1, 1], 2, 0),
        ([5, 5], None, 0),
        ([9, 0], None, 0),  # set to 0, and nothing was dropped since
    ],
)
def test_counters_that_go_back(readings: list[int], packets: int | None, flags: int) -> None:
    watched = watch([{UDP: number} for number in readings])
    watched.read(dict)
    rows = watched.read(dict)
    assert [(row["packets"], row["flags"]) for row in rows] == ([] if packets is None else [(packets, flags)])


def test_a_queue_that_several_read_and_one_that_is_gone() -> None:
    watched = watch([{UDP: 1, PACKET: 1}, {UDP: 2}, {UDP: 2, PACKET: 50}], {3: {70, 71}})
    rows = [watched.read(lambda: {70: 0, 71: 1}) for _ in range(3)]
    assert [len(part) for part in rows] == [0, 1, 0]  # what a new socket of the same number had is not known
    assert (rows[1]["thread"][0], rows[1]["flags"][0]) == (NONE, DropFlag.SHARED)


WAITERS = """
import select, socket, sys, threading
made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(3)]
def epolls():
    epoll = select.epoll()
    epoll.register(made[1], select.EPOLLIN)
    epoll.poll()
def polls():
    poll = select.poll()
    poll.register(made[2], select.POLLIN)
    poll.register(made[0], select.POLLOUT & 0)
    poll.poll()
for work in (lambda: made[0].recv(1), epolls, polls):
    threading.Thread(target=work, daemon=True).start()
print(*[one.fileno() for one in made], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def waiters() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def test_threads_that_receive_poll_and_epoll_are_told(waiters: subprocess.Popen[str]) -> None:
    assert waiters.stdout is not None
    numbers = [int(word) for word in waiters.stdout.readline().split()]
    readers = QueueReaders(Target(waiters.pid))

    def are_found() -> bool:
        readers.look()
        return all(readers.of([number]) for number in numbers)

    assert wait_until(are_found)
    found = [readers.of([number]) for number in numbers]
    assert len(set.union(*found)) == 3
    assert waiters.pid not in set.union(*found)
    readers.keep({numbers[0]})
    assert readers.of(numbers) == found[0]


def test_what_a_poll_points_to_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A target may have any number and any address there."""
    asked: list[tuple[int, int]] = []

    class Unreadable:
        pid = os.getpid()

        def read(self, address: int, size: int) -> bytes:
            asked.append((address, size))
            raise NfprobeError("nothing is mapped there")

    readers: Any = QueueReaders(Unreadable())  # type: ignore[arg-type]
    with pytest.raises(NfprobeError):
        list(readers._list_polled(2**64 - 8, 2**63))
    assert asked == [(2**64 - 8, 8 * POLLED_MAX)]
