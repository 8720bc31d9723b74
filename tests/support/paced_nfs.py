# SPDX-License-Identifier: Apache-2.0
"""Network functions that nobody here wrote, beside examples/firewall, each with packets at an even pace: one thread on
a CPU of its own that is most of the time idle, so that what makes a packet late is what somebody does to it.

Senders run on another CPU. Each yields a `PacedNf` while it runs.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.mqtt import Broker, Client
from tests.support.ovs_dpdk import start_wired_switch, wire_port
from tests.support.switch_processes import SwitchProcesses
from tests.support.testpmd import Testpmd
from tests.support.wired_chain import LAUNCHER, Sender, run_at_once

FIREWALL = Path(__file__).resolve().parents[2] / "examples" / "firewall"
FIREWALL_RATE = 60_000
EACH_MS = 16  # frames, of those that are fed by a sender
MESSAGES_EACH_MS = 4
PRIORITY = -10  # of the group that the target's session is for the scheduler


@dataclass(frozen=True)
class PacedNf:
    """A running network function.

    Attributes:
        tid: of the thread that has the packets; cpu: where it runs.
        options: of `nfprobe attach`.
        log: what examples/firewall writes of its queue (faults.c); None: others write none.
        sends: whether its packets leave by sendto, where a debugger can wait for it.
        polls: it never sleeps.
    """

    name: str
    pid: int
    tid: int
    cpu: int
    options: tuple[str, ...] = ()
    log: Path | None = None
    sends: bool = False
    polls: bool = True


def _find_thread(pid: int, mark: str) -> int:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it may just have ended
            if mark in (task / "comm").read_text():
                return int(task.name)
    return 0


@contextmanager
def _kept_to(nf: PacedNf) -> Iterator[PacedNf]:
    """Its CPU is the target's: this thread, and what it starts, keeps to others; what runs there all the same waits."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before - {nf.cpu} or before)
    prefer(nf.pid)
    try:
        yield nf
    finally:
        os.sched_setaffinity(0, before)


def prefer(pid: int) -> None:
    """Before what else runs on the machine, which is no part of the experiment."""
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(PRIORITY))


@contextmanager
def paced_firewall(cpu: int) -> Iterator[PacedNf]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["make", "-s", "-C", str(FIREWALL), f"BUILD={folder}"], check=True)
        log = Path(folder, "faults")
        words = [f"{folder}/firewall", "--rate", str(FIREWALL_RATE), "--slow-every", "0", "--worker-cpu", str(cpu)]
        process = subprocess.Popen(
            [*words, "--faults", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )  # it writes the log line by line
        try:
            while not (tid := _find_thread(process.pid, "fw-worker")):
                time.sleep(0.01)
            options = ("--adapter", str(FIREWALL / "firewall.yaml"))
            with _kept_to(PacedNf("firewall", process.pid, tid, cpu, options, log)) as nf:
                yield nf
        finally:
            process.kill()
            process.wait()


@contextmanager
def paced_testpmd(cpu: int) -> Iterator[PacedNf]:
    devices = "net_af_packet0,iface=a0,framecnt=2048 net_af_packet1,iface=a1,framecnt=2048"
    other = min(os.sched_getaffinity(0))
    testpmd = Testpmd(
        "dpdk-testpmd", f"nfppaced{os.getpid()}", devices, "macswap", False, f"0@{other},1@{cpu}", LAUNCHER,
        topology="paired", is_locked=False,
    )  # fmt: skip
    try:
        tid = _find_thread(testpmd.pid, "worker")
        with _kept_to(PacedNf("testpmd", testpmd.pid, tid, cpu, sends=True)) as nf, _fed(nf):
            yield nf
    finally:
        testpmd.stop()


@contextmanager
def _fed(nf: PacedNf) -> Iterator[None]:
    sender = Sender(nf.pid, EACH_MS)
    sender.start()
    try:
        yield
    finally:
        sender.end()


@contextmanager
def paced_ovs(cpu: int) -> Iterator[PacedNf]:
    with tempfile.TemporaryDirectory() as folder:
        switch = SwitchProcesses(Path(folder))
        try:
            ports = {"p1": wire_port(1, "a0"), "p2": wire_port(2, "a1")}
            pid = start_wired_switch(switch, LAUNCHER, cpu, ports, "output:2")
            with _kept_to(PacedNf("ovs", pid, _find_thread(pid, "pmd"), cpu, sends=True)) as nf, _fed(nf):
                yield nf
        finally:
            switch.stop()


class _Publisher(threading.Thread):
    """Publishes so many messages each ms, and throws away what a subscriber gets."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._subscriber, self._publisher = Client(port, "subscriber"), Client(port, "publisher")
        self._subscriber.subscribe(b"paced")
        self._ending = threading.Event()

    def run(self) -> None:
        run_at_once()
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        due, number = time.monotonic(), 0
        while reader.is_alive() and not self._ending.wait(max(0.0, due - time.monotonic())):
            due = max(due + 0.001, time.monotonic() - 0.005)
            for _ in range(MESSAGES_EACH_MS):
                number += 1
                self._publisher.publish(b"paced", number.to_bytes(8, "big"))
        self._publisher.close()
        self._subscriber.close()
        reader.join(5)

    def _read(self) -> None:
        with suppress(OSError):
            while self._subscriber.socket.recv(1 << 16):
                pass

    def end(self) -> None:
        self._ending.set()
        self.join()


@contextmanager
def paced_mosquitto(cpu: int) -> Iterator[PacedNf]:
    with tempfile.TemporaryDirectory() as folder:
        broker = Broker(Path(folder))
        os.sched_setaffinity(broker.pid, {cpu})
        try:
            with _kept_to(PacedNf("mosquitto", broker.pid, broker.pid, cpu, polls=False)) as nf:
                publisher = _Publisher(broker.port)
                publisher.start()
                try:
                    yield nf
                    assert publisher.is_alive()
                finally:
                    publisher.end()
        finally:
            broker.end()


PACED: dict[str, Callable[[int], AbstractContextManager[PacedNf]]] = {
    "firewall": paced_firewall,
    "testpmd": paced_testpmd,
    "ovs": paced_ovs,
    "mosquitto": paced_mosquitto,
}
