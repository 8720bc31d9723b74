# SPDX-License-Identifier: Apache-2.0
"""A generator of UDP packets of one flow at about a rate, and faults of a process with their own log in ticks."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from otel_nfprobe.base.clock import sample_pair
from tests.support.probed import wait_until

STEP_S = 0.001


class Flood(threading.Thread):
    """Sends to a port of 127.0.0.1 until it is ended; a step that comes late sends no more for that.

    Args:
        port: to send to.
        per_step: packets in each millisecond.
    """

    def __init__(self, port: int, per_step: int) -> None:
        super().__init__()
        self.per_step = per_step
        self._ending = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))

    def run(self) -> None:
        while not self._ending.wait(STEP_S):
            self.send(self.per_step)

    def send(self, count: int) -> None:
        """Sends so many packets at once."""
        packet = bytes(range(100))
        for _ in range(count):
            self._socket.send(packet)

    def end(self) -> None:
        self._ending.set()
        self.join()
        self._socket.close()


def log_fault(act: Callable[[], None]) -> tuple[int, int]:
    """Returns when a fault began and had ended, in ticks."""
    begin = sample_pair().ticks
    act()
    return begin, sample_pair().ticks


def stop_for(pid: int, seconds: float) -> None:
    """Stops a process by signals for a time."""
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: _state(pid) == "T")
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)
    assert wait_until(lambda: _state(pid) != "T")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
