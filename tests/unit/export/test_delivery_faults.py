# SPDX-License-Identifier: Apache-2.0
"""Delivery under faults, counted by the receiver: delivered + spooled + dropped = produced, exactly.

Receiver and monitor are processes that are killed and paused at random. Every span has a number, so what became of each
is known.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.export.otlp import DROPPED_DISK_FULL, Exporter
from otel_nfprobe.export.spool import Spool, SpoolSettings, describe_endpoint
from tests.support.otlp_receiver import Receiver, find_dead_endpoint
from tests.unit.export.producer import TIMEOUT_S, encode

HERE = Path(__file__).resolve().parent
PATIENCE_S = 300.0


@dataclass
class Field:
    """A receiver and a monitor on a port and a spool, and what has become of all spans so far."""

    folder: Path
    seed: int
    receiver: subprocess.Popen[str] | None = None
    monitor: subprocess.Popen[str] | None = None
    produced: list[tuple[int, int]] = field(default_factory=list)
    unsure: int = 0  # spans that a killed monitor may have produced, or just not
    faults: int = 0  # each leaves the outcome of at most one request unknown
    dropped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.log = self.folder / "log"
        self.log.touch()
        self.random = random.Random(self.seed)
        self._next_id = 1
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    def start_receiver(self) -> None:
        words = [sys.executable, HERE / "faulty_receiver.py", self.port, self.log, self.random.randrange(2**32)]
        self.receiver = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)

    def kill_receiver(self) -> None:
        assert self.receiver is not None
        self.receiver.kill()
        self.receiver.communicate()
        self.faults += 1

    def pause_receiver(self, seconds: float) -> None:
        assert self.receiver is not None
        self.receiver.send_signal(signal.SIGSTOP)
        self.faults += 1 + int(seconds / TIMEOUT_S)  # requests that run out of time meanwhile
        time.sleep(seconds)
        self.receiver.send_signal(signal.SIGCONT)

    def start_monitor(self, requests: int, pause_ms: float) -> None:
        words = [
            sys.executable,
            HERE / "producer.py",
            self.port,
            self.folder / "spool",
            self._next_id,
            requests,
            pause_ms,
        ]
        self.monitor = subprocess.Popen(list(map(str, words)), stdout=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        pipe = self.monitor.stdout
        assert pipe is not None
        self._reader = threading.Thread(target=lambda: self._lines.extend(pipe))
        self._reader.start()

    def await_produced(self, requests: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self._lines) < requests:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def end_monitor(self, kill: bool) -> None:
        assert self.monitor is not None
        if kill:
            self.monitor.kill()
        self.monitor.wait(PATIENCE_S)
        self._reader.join()
        assert self.monitor.stdout is not None
        self.monitor.stdout.close()
        lines = [line.split() for line in self._lines if line.startswith("produced")]
        found = [(int(first), int(count)) for _, first, count in lines]
        self.produced += found
        if found:
            self._next_id = sum(found[-1])
        if kill:
            self.faults += 1
            self.unsure += found[-1][1] if found else 0
        else:
            self.count(json.loads(self._lines[-1]))

    def count(self, counters: dict[str, Any]) -> None:
        """The counters of a monitor that ended in order. What the receiver rejected is known from its log."""
        for part in (counters, counters["recovered"]):
            self.dropped.update(part["dropped_reasons"])

    def read_log(self) -> tuple[Counter[int], Counter[int]]:
        """How often each span was taken, and how often rejected."""
        taken: Counter[int] = Counter()
        rejected: Counter[int] = Counter()
        for line in self.log.read_text().splitlines():
            what, first, count = line.split()
            (taken if what == "took" else rejected).update(range(int(first), int(first) + int(count)))
        return taken, rejected

    def check(self) -> None:
        taken, rejected = self.read_log()
        every = {number for first, count in self.produced for number in range(first, first + count)}
        fates = taken.keys() | rejected.keys()
        assert fates <= every
        assert set(self.dropped) <= {"monitor was killed", "rejected by receiver"}
        missing = len(every - fates)
        lost = self.dropped["monitor was killed"]
        # A killed monitor had written down a request as produced just before it came to submitting it.
        assert lost <= missing <= lost + self.unsure, (missing, self.dropped, self.unsure)
        requests = Counter(line for line in self.log.read_text().splitlines() if line.startswith("took"))
        assert sum(count - 1 for count in requests.values()) <= self.faults

    def end(self) -> None:
        for process in (self.receiver, self.monitor):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def field_(tmp_path: Path) -> Iterator[Field]:
    found = Field(tmp_path, seed=5)
    yield found
    found.end()


def send_rest(field_: Field) -> None:
    """A last session, with nothing of its own, until the spool is empty."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        field_.start_monitor(0, 0)
        field_.end_monitor(kill=False)
        if not list((field_.folder / "spool").iterdir()):
            return
        assert time.monotonic() < deadline


@pytest.mark.thorough
def test_everything_at_once(field_: Field) -> None:
    field_.start_receiver()
    field_.start_monitor(10_000, 2)
    field_.await_produced(100)
    field_.kill_receiver()
    field_.await_produced(160)
    field_.end_monitor(kill=True)
    field_.start_receiver()
    field_.start_monitor(200, 2)
    field_.await_produced(100)
    field_.pause_receiver(1.0)
    field_.end_monitor(kill=False)
    send_rest(field_)
    field_.check()
    taken, rejected = field_.read_log()
    assert len(taken) > 3000
    assert rejected


@pytest.mark.long
@pytest.mark.timeout(900)
def test_five_minutes(field_: Field) -> None:
    field_.start_receiver()
    until, kills, pauses = time.monotonic() + 300, 0, 0
    while time.monotonic() < until:
        field_.start_monitor(20_000, 10)  # the receiver takes some hundreds a second
        while field_.monitor is not None and field_.monitor.poll() is None and time.monotonic() < until:
            time.sleep(field_.random.uniform(0.1, 8))
            if kills == 5 and not pauses:
                field_.pause_receiver(30)
                pauses += 1
            elif field_.random.random() < 0.6:
                field_.kill_receiver()
                time.sleep(field_.random.uniform(0, 3))
                field_.start_receiver()
                kills += 1
            else:
                break
        field_.end_monitor(kill=True)
    assert kills >= 20
    assert pauses == 1
    send_rest(field_)
    field_.check()


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A directory on a file system of this size; where none can be mounted, no file may be larger instead."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(words, capture_output=True, check=False).returncode == 0:
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk(tmp_path: Path) -> None:
    endpoint = find_dead_endpoint()
    with small_disk(tmp_path / "disk", 256 << 10) as folder:
        settings, name = SpoolSettings(folder / "spool"), describe_endpoint(endpoint)
        exporter = Exporter(endpoint, queue_bytes=100_000, spool=Spool(settings, name))
        produced, first = 0, 1
        for _ in range(200):
            request = encode(first, 100)  # of about 4 kB
            exporter.submit(request)
            produced, first = produced + 100, first + 100
            time.sleep(0.001)  # the writer must get to it before memory is full
        counters = exporter.close(0.5)
        assert counters.spooled_spans > 3000
        assert counters.dropped_spans[DROPPED_DISK_FULL] > 3000
        assert counters.spooled_spans + sum(counters.dropped_spans.values()) == produced

        receiver = Receiver()
        exporter = Exporter(receiver.endpoint(), queue_bytes=1 << 20, spool=Spool(settings, ""))
        for _ in range(100):
            exporter.submit(encode(first, 100), wait=True)
            first += 100
        last = exporter.close(PATIENCE_S)
        receiver.stop()
        # While the receiver is there, a full disk costs nothing.
        assert (last.exported_spans, last.dropped_spans) == (10_000, {})
        assert last.recovered is not None
        assert (last.recovered.exported_spans, last.recovered.dropped_spans) == (counters.spooled_spans, {})
        assert not list((folder / "spool").iterdir())
