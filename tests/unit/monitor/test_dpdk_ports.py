# SPDX-License-Identifier: Apache-2.0
"""What is asked of a DPDK application's telemetry socket, and what is believed of its answers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from otel_nfprobe.linux.queue_counters import Queue, QueueKind, read_descriptors
from otel_nfprobe.monitor import dpdk_ports
from otel_nfprobe.monitor.dpdk_ports import SOCKET, DpdkPorts, PortReading
from otel_nfprobe.pipeline.queue_drops import NAME_BYTES
from tests.support.probed import wait_until

Answer = Callable[[str], bytes]
GREETING = json.dumps({"version": "DPDK 22.11", "pid": 1, "max_output_len": 16384}).encode()


class Application:
    """Listens as a DPDK application does, in this process."""

    def __init__(self, folder: Path, answer: Answer) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A path in an address has 107 characters at most, and the folder's may be longer.
        self._folder = os.open(folder, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{self._folder}/{SOCKET}")
        self._listener.listen()
        self.inode = os.fstat(self._listener.fileno()).st_ino
        self.asked: list[str] = []
        self._answer = answer
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, suppress(OSError):  # nobody hears it any more
                client.send(GREETING)
                while command := client.recv(1024).decode():
                    self.asked.append(command)
                    client.send(self._answer(command))

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        os.close(self._folder)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], Application]]:
    monkeypatch.setattr(dpdk_ports, "ASK_S", 0.0)
    # What /proc/net/unix has is the path of bind.
    monkeypatch.setattr(dpdk_ports, "_find_sockets", lambda pid: [(inode, f"{tmp_path}/{SOCKET}") for inode in inodes])
    started: list[Application] = []
    inodes: list[int] = []

    def start_(answer: Answer) -> Application:
        started.append(Application(tmp_path, answer))
        inodes.append(started[-1].inode)
        return started[-1]

    yield start_
    for application in started:
        application.end()


def answer_of(missed: list[int]) -> Answer:
    """Two ports; the second one has missed so many, one number after the other."""
    left = iter(missed)

    def answer(command: str) -> bytes:
        path, _, port = command.partition(",")
        body: object = [0, 3]
        if path == "/ethdev/info":
            body = {"name": f"0000:0{port}:00.0"}
        elif path == "/ethdev/stats":
            body = {"ipackets": 9, "imissed": next(left, missed[-1]) if port == "3" else 0}
        return json.dumps({path: body}).encode()

    return answer


def read_until(ports: DpdkPorts, wanted: Callable[[list[PortReading]], bool]) -> list[PortReading]:
    found: list[PortReading] = []
    assert wait_until(lambda: bool(found.extend(ports.read())) or wanted(found))
    return found


def test_counts_of_each_port(start: Callable[[Answer], Application]) -> None:
    application = start(answer_of([5, 5, 12, 12]))
    ports = DpdkPorts(os.getpid())
    ports.look({application.inode})
    second = Queue(QueueKind.PORT, 3, "port 3 0000:03:00.0")
    found = read_until(ports, lambda readings: sum(one.queue == second for one in readings) >= 4)
    assert [one.missed for one in found if one.queue == second][:4] == [5, 5, 12, 12]
    assert {one.missed for one in found if one.queue != second} == {0}
    assert all(one.since_ticks < one.until_ticks for one in found)
    assert application.asked[0] == "/ethdev/list"
    ports.close()


@pytest.mark.parametrize(
    "answer",
    [
        lambda command: b"no object",
        lambda command: b"[" * 60_000,
        lambda command: b"{}",
        lambda command: json.dumps({command.partition(",")[0]: 7}).encode(),
        lambda command: answer_of([-1])(command),
        lambda command: answer_of([1 << 62])(command),
        lambda command: answer_of([1])(command).replace(b'"imissed": 1', b'"imissed": "1"'),
        lambda command: answer_of([1])(command).replace(b'"name"', b'"names"'),
        lambda command: b"",
    ],
)
def test_answers_that_cannot_be_end_the_connection(start: Callable[[Answer], Application], answer: Answer) -> None:
    application = start(answer)
    ports = DpdkPorts(os.getpid())
    ports.look({application.inode})
    found = read_until(ports, lambda readings: ports._socket is None)
    assert all(0 <= one.missed < 1 << 62 for one in found)
    asked = len(application.asked)
    ports.look({application.inode})
    assert ports.read() == []
    assert len(application.asked) == asked


def test_more_than_a_person_would_read(start: Callable[[Answer], Application]) -> None:
    def answer(command: str) -> bytes:
        path = command.partition(",")[0]
        bodies = {"/ethdev/list": list(range(5000)), "/ethdev/info": {"name": "x" * 50_000}}
        return json.dumps({path: bodies.get(path, {"imissed": 1})}).encode()

    ports = DpdkPorts(os.getpid())
    ports.look({start(answer).inode})
    found = read_until(ports, lambda readings: len(readings) > 3)
    assert len(ports._ports) == dpdk_ports.PORTS_MAX
    assert max(len(one.queue.name) for one in found) < NAME_BYTES + 16
    ports.close()


def test_an_answer_that_does_not_come_is_not_waited_for(start: Callable[[Answer], Application]) -> None:
    silent = threading.Event()

    def answer(command: str) -> bytes:
        silent.wait()
        return answer_of([1])(command)

    application = start(answer)
    ports = DpdkPorts(os.getpid())
    ports.look({application.inode})
    assert wait_until(lambda: ports.read() == [] and bool(application.asked))
    for _ in range(100):
        assert ports.read() == []
    assert len(application.asked) == 1
    silent.set()
    read_until(ports, lambda readings: bool(readings))
    ports.close()


def test_another_process_that_listens_there_is_not_asked(start: Callable[[Answer], Application]) -> None:
    application = start(answer_of([1]))
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        ports = DpdkPorts(other.pid)
        ports.look({application.inode})
        assert ports.read() == []
        assert ports._socket is None
    assert application.asked == []


def test_sockets_are_found_in_the_kernels_table(tmp_path: Path) -> None:
    folder = Path("/tmp", f"nfp{os.getpid()}")
    folder.mkdir()
    listener, other = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    try:
        other.bind(f"{folder}/other")
        other.listen()
        listener.bind(f"{folder}/{SOCKET}")
        inode = os.fstat(listener.fileno()).st_ino
        own = read_descriptors(os.getpid()).sockets
        assert inode in own
        assert [path for found, path in dpdk_ports._find_sockets(os.getpid()) if found in own] == []
        listener.listen()
        assert [(found, path) for found, path in dpdk_ports._find_sockets(os.getpid()) if found in own] == [
            (inode, f"{folder}/{SOCKET}")
        ]
    finally:
        listener.close()
        other.close()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
