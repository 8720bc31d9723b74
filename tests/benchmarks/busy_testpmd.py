# SPDX-License-Identifier: Apache-2.0
"""For benchmarks: a testpmd that forwards as fast as it can, and monitors of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import make_frames, write_pcap

FRAMES = 1024


@contextmanager
def busy_testpmd(mode: str = "macswap") -> Iterator[Testpmd]:
    """Plays the same frames for ever."""
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder, "frames.pcap")
        write_pcap(capture, make_frames(FRAMES))
        testpmd = Testpmd("dpdk-testpmd", f"nfpb{os.getpid()}", pcap_device(capture, infinite=True), mode, False)
        try:
            yield testpmd
        finally:
            testpmd.stop()


def packets_per_second(testpmd: Testpmd, seconds: float = 1.0) -> float:
    """Transmitted, by its own counters."""
    begun, before = time.monotonic(), testpmd.telemetry()[1]
    time.sleep(seconds)
    return (testpmd.telemetry()[1] - before) / (time.monotonic() - begun)


ATTACH_PATIENCE_S = 120.0


class Session:
    """`nfprobe attach` with these options, from when its probes are in place.

    Raises:
        SystemExit: it has ended instead, and said why.
    """

    def __init__(self, pid: int, *options: object) -> None:
        words = [sys.executable, "-m", "otel_nfprobe", "attach", pid, "--json", "--trial", "0s", *options]
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  a pipe would be full after some minutes
        self.process = subprocess.Popen(list(map(str, words)), stdout=self._output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + ATTACH_PATIENCE_S
        while f"attached to {pid}:" not in self._read():
            self.check()
            if time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"nfprobe attach has not attached in {ATTACH_PATIENCE_S:.0f} s:\n{self._read()}")
            time.sleep(0.05)

    def _read(self) -> str:
        return os.pread(self._output.fileno(), 1 << 24, 0).decode(errors="replace")

    def check(self) -> None:
        """Raises SystemExit when it has ended by itself."""
        if self.process.poll() is not None:
            raise SystemExit(f"nfprobe attach has ended with status {self.process.returncode}:\n{self._read()}")

    def end(self) -> dict[str, Any]:
        """As Ctrl-C does. Returns the summary; the status is not 0 where spans were dropped."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(120)
        output = self._read()
        self._output.close()
        found = [line for line in output.splitlines() if line.startswith("{")]
        assert found, output
        summary: dict[str, Any] = json.loads(found[-1])
        return summary


def resident_mib(pid: int) -> float:
    """What a process holds in memory now, without what it shares of other processes' rings."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
