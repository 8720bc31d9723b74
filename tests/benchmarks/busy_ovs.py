# SPDX-License-Identifier: Apache-2.0
"""For bench_testpmd.py: Debian's ovs-vswitchd-dpdk that forwards a capture file for ever.

One polling thread, from a port that plays packets out of memory to one that throws them away; the probes are those
that `nfprobe attach PID` chooses when nobody names any.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.target.target import Target
from tests.benchmarks.measured_session import choose_by_trial
from tests.support.ovs_dpdk import OvsDpdk
from tests.support.probed import wait_until

PACKETS_FIRST = 1_000_000  # until the polling thread has had more of the processor than the thread that set it up


class OvsForwarder:
    """A running switch."""

    def __init__(self, capture: Path) -> None:
        self._folder = tempfile.mkdtemp()
        self._switch = OvsDpdk(Path(self._folder), capture, None, is_endless=True)
        self.pid = self._switch.pid
        try:
            if not wait_until(lambda: self.packets() > PACKETS_FIRST and self._polls_most(), 60):
                raise SystemExit("Open vSwitch does not forward the packets of the capture file")
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def is_installed() -> bool:
        return OvsDpdk.is_installed()

    def packets(self) -> int:
        """Packets that its polling thread has received; asked without a program in between, which would take long."""
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(str(self._switch.folder / "vs.ctl"))
            control.sendall(json.dumps({"id": 0, "method": "dpif-netdev/pmd-stats-show", "params": []}).encode())
            answer = b""
            while not _is_whole(answer):
                answer += control.recv(1 << 16)
        return sum(int(number) for number in re.findall(r"packets received: (\d+)", json.loads(answer)["result"]))

    def choose(self, target: Target) -> Choice:
        return choose_by_trial("ovs", target)

    def drain_output(self) -> None:
        """It prints nothing."""

    def stop(self) -> None:
        self._switch.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _polls_most(self) -> bool:
        tasks: dict[str, int] = {}
        for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat"):
            tasks[(path.parent / "comm").read_text()] = int(path.read_text().split()[0])
        return max(tasks, key=lambda name: tasks[name]).startswith("pmd-c")


def _is_whole(answer: bytes) -> bool:
    try:
        whole: Any = json.loads(answer)
    except ValueError:
        return False
    return isinstance(whole, dict)
