# SPDX-License-Identifier: Apache-2.0
"""A generator of packets of one flow at about a rate, and faults of a process with their own log in ticks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from otel_nfprobe.base.clock import sample_pair
from tests.support.probed import wait_until

STEP_S = 0.001


class Flood(threading.Thread):
    """Sends until it is ended; a step that comes late sends no more for that.

    Args:
        outlet: connected or bound; closed at the end.
        per_step: packets in each millisecond.
        packet: what is sent.

    Attributes:
        sent: packets, those among them that did not fit into a queue.
    """

    def __init__(self, outlet: socket.socket, per_step: int, packet: bytes = bytes(range(100))) -> None:
        super().__init__()
        self.per_step = per_step
        self.sent = 0
        self._packet = packet
        self._ending = threading.Event()
        self._socket = outlet

    @classmethod
    def to_port(cls, port: int, per_step: int) -> Flood:
        """To a UDP port of 127.0.0.1."""
        outlet = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        outlet.connect(("127.0.0.1", port))
        return cls(outlet, per_step)

    def run(self) -> None:
        while not self._ending.wait(STEP_S):
            for _ in range(self.per_step):
                self.sent += 1
                with suppress(OSError):  # a full queue of an interface: ENOBUFS
                    self._socket.send(self._packet)

    def end(self) -> None:
        self._ending.set()
        self.join()
        self._socket.close()


def log_fault(act: Callable[[], None]) -> tuple[int, int]:
    """Returns when a fault began and had ended, in ticks."""
    begin = sample_pair().ticks
    act()
    return begin, sample_pair().ticks


def stop_for(pid: int, seconds: float, is_enough: Callable[[], bool] = lambda: True) -> None:
    """Stops a process by signals for a time, and until it is enough: a generator may have no processor meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: _state(pid) == "T")
    time.sleep(seconds)
    assert wait_until(is_enough)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: _state(pid) != "T")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
