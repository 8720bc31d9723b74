# SPDX-License-Identifier: Apache-2.0
"""Somebody sets the machine's clock while a session runs: for the monitor, which a preloaded library tells it."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.integration.test_described_handover import DESCRIPTION, PACKETS, follow, start_relay
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker

pytestmark = pytest.mark.integration

HOUR_NS = 3600 * 10**9
AHEAD_NS = (0, HOUR_NS, -2 * HOUR_NS)
ADVANCE_S = 1.5  # the monitor looks at the clock once a second


def test_times_go_on_as_they_began(
    nfprobe: Any, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    relay: Talker = start_relay(compile_target, spawn, tmp_path)
    recording, ahead, description = tmp_path / "clock.nfprobe", tmp_path / "ahead", tmp_path / "relay.yaml"
    ahead.write_bytes(struct.pack("<q", 0))
    description.write_text(yaml.safe_dump(DESCRIPTION))
    library = compile_target("clock_steps", "-shared", "-fPIC")
    words = ("--adapter", description, "--packets", "all", "--ring-size", "64MiB", "--record", recording, "--json")
    variables = {**os.environ, "LD_PRELOAD": str(library), "NFPROBE_TEST_CLOCK": str(ahead)}
    began_ns = time.time_ns()
    monitor = nfprobe.start("attach", relay.pid, *words, env=variables)
    wait_until_armed(nfprobe, relay.pid, monitor)
    sent = 0
    with ahead.open("r+b", buffering=0) as file:
        for offset_ns in AHEAD_NS:
            os.pwrite(file.fileno(), struct.pack("<q", offset_ns), 0)
            time.sleep(ADVANCE_S)
            sent += PACKETS // 10
            assert relay.ask(str(PACKETS // 10)) == str(sent)
        time.sleep(ADVANCE_S)
    summary = nfprobe.end(monitor)
    ended_ns = time.time_ns()
    assert abs(summary["clock"]["set_ns"] - AHEAD_NS[-1]) < 100_000_000
    assert summary["clock"]["error_ns"] < 100_000_000

    columns, counts, facts = follow(recording)
    assert len(columns.packets) == counts.taken_over == sent
    clock = facts.make_clock()
    for name in ("receive_ticks", "done_ticks"):
        times_ns = clock.convert(np.sort(columns.packets[name])).astype(np.int64)
        assert began_ns < times_ns[0] <= times_ns[-1] < ended_ns
        assert (np.diff(times_ns) >= 0).all()
    assert monitor.returncode == 0
    relay.process.send_signal(signal.SIGKILL)
