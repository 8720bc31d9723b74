# SPDX-License-Identifier: Apache-2.0
"""For bench_testpmd.py: the double of VPP (tests/targets/vpp), which is given packets for ever.

One worker runs the graph of the newer release; the probes are those that `nfprobe attach PID` chooses.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from otel_nfprobe.probes.probe_selection import Choice
from otel_nfprobe.target.target import Target
from tests.benchmarks.measured_session import choose_by_trial
from tests.support.probed import Talker
from tests.support.vpp_double import RELEASES, build_double

AT_ONCE = 1 << 13  # packets of one command: it answers about a thousand times a second, so its count is as exact
COUNT_BITS = 32  # of its counter


class VppDoubleForwarder:
    """A running double."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp()
        program = build_double(Path(self._folder), RELEASES[-1])
        process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._talker = Talker(process)
        self.pid = process.pid
        self._received = 0
        self._ending = threading.Event()
        self._feeder = threading.Thread(target=self._feed)
        self._feeder.start()

    def _feed(self) -> None:
        while not self._ending.is_set():
            received = int(self._talker.ask(str(AT_ONCE)).split()[0])
            self._received += (received - self._received) % (1 << COUNT_BITS)

    def packets(self) -> int:
        """Packets that it has received, up to its last answer."""
        return self._received

    def choose(self, target: Target) -> Choice:
        return choose_by_trial("vpp", target)

    def drain_output(self) -> None:
        """Each line is an answer that has been read."""

    def stop(self) -> None:
        self._ending.set()
        self._feeder.join()
        self._talker.process.kill()
        self._talker.process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
