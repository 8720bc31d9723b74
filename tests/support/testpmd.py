# SPDX-License-Identifier: Apache-2.0
"""dpdk-testpmd as the tests run it: without a NIC, without huge pages, and with its own counters as oracle."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Testpmd:
    __test__ = False
    """A running testpmd. Interactive when it is driven by commands, else it forwards from its start.

    Args:
        binary: path of dpdk-testpmd.
        prefix: EAL file prefix, unique among running ones.
        vdev: the virtual device with its arguments; several: separated by spaces.
        mode: forward mode.
        interactive: wait for commands.
        lcores: EAL core map.
        launcher: words before the command, of what starts it.
        topology: which port sends what another one received: loop, paired.
        is_locked: its memory stays in memory, as is its default.
    """

    def __init__(
        self,
        binary: str,
        prefix: str,
        vdev: str,
        mode: str = "macswap",
        interactive: bool = True,
        lcores: str = "0,1",
        launcher: Sequence[str] = (),
        topology: str = "loop",
        is_locked: bool = True,
    ) -> None:
        self.prefix = prefix
        words = [*launcher, binary, "--lcores", lcores, "--no-huge", "-m", "512", "--no-pci", f"--file-prefix={prefix}"]
        words += [*(f"--vdev={device}" for device in vdev.split()), "--"]
        words += ["-i"] if interactive else ["--stats-period=1"]
        words += ["--nb-cores=1", "--total-num-mbufs=16384", f"--forward-mode={mode}"]
        words += [f"--port-topology={topology}", "--no-flush-rx", *([] if is_locked else ["--no-mlockall"])]
        # On a pipe its C library would keep the answers back until 4 KiB are full.
        self._terminal, slave = pty.openpty()
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=slave, stderr=slave, bufsize=0)
        os.close(slave)
        self.output = ""
        self._wait_for("testpmd>" if interactive else "Port statistics", 120)

    @property
    def pid(self) -> int:
        return self.process.pid

    def _wait_for(self, text: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        start = len(self.output)
        while text not in self.output[start:]:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._terminal], [], [], max(0.0, left))
            chunk = self._read() if ready else b""
            if not chunk:
                raise AssertionError(f"testpmd did not say {text!r}:\n{self.output[-2000:]}")
            self.output += chunk.decode(errors="replace")
        return self.output[start:]

    def rest(self) -> str:
        """What it prints until it has ended."""
        start = len(self.output)
        while chunk := self._read():
            self.output += chunk.decode(errors="replace")
        return self.output[start:]

    def drain_output(self) -> None:
        """Takes what it has printed, so that its pipe never fills."""
        while select.select([self._terminal], [], [], 0)[0]:
            chunk = self._read()
            if not chunk:
                return
            self.output += chunk.decode(errors="replace")

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:  # it has ended
            return b""

    def command(self, text: str, answer: str = "testpmd>") -> str:
        """Types a command and returns what it prints up to `answer`."""
        assert self.process.stdin is not None
        self.drain_output()
        self.process.stdin.write(text.encode() + b"\n")
        return self._wait_for(answer, 120)

    def counters(self) -> tuple[int, int]:
        """Packets received and transmitted by `show port stats all`."""
        text = self.command("show port stats all", "Tx-bps")
        received, transmitted = re.search(r"RX-packets: (\d+)", text), re.search(r"TX-packets: (\d+)", text)
        assert received is not None
        assert transmitted is not None
        return int(received[1]), int(transmitted[1])

    def telemetry(self, port: int = 0) -> tuple[int, int]:
        """Packets received and transmitted by the telemetry socket, which takes no turn of the prompt."""
        stats: dict[str, Any] = self._ask_telemetry(f"/ethdev/stats,{port}")["/ethdev/stats"]
        return int(stats["ipackets"]), int(stats["opackets"])

    def _ask_telemetry(self, command: str) -> dict[str, Any]:
        deadline = time.monotonic() + 120
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
                client.connect(f"/var/run/dpdk/{self.prefix}/dpdk_telemetry.v2")
                # Who comes while the threads of ten earlier questions have not ended yet is turned away.
                if client.recv(1 << 16):
                    client.send(command.encode())
                    answer: dict[str, Any] = json.loads(client.recv(1 << 20))
                    return answer
            assert time.monotonic() < deadline, "testpmd answers no question"
            time.sleep(0.02)

    def wait_for_packets(self, transmitted: int, seconds: float = 120) -> None:
        """Waits until it has transmitted so many."""
        deadline = time.monotonic() + seconds
        while self.telemetry()[1] < transmitted:
            assert time.monotonic() < deadline, f"testpmd transmitted {self.telemetry()[1]} of {transmitted}"
            time.sleep(0.02)

    def wait_for_received(self, received: int, seconds: float = 120) -> None:
        """Waits until it has received so many."""
        deadline = time.monotonic() + seconds
        while self.telemetry()[0] < received:
            assert time.monotonic() < deadline, f"testpmd received {self.telemetry()[0]} of {received}"
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        os.close(self._terminal)


def pcap_device(path: Path, infinite: bool = False) -> str:
    """The vdev argument for a capture file, played once or for ever."""
    return f"net_pcap0,rx_pcap={path}" + (",infinite_rx=1" if infinite else "")
