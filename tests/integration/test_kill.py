# SPDX-License-Identifier: Apache-2.0
"""kill -9 on either side, at random moments: the target goes on, nothing committed is lost."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.shared]

KILLS = [8, pytest.param(40, marks=pytest.mark.long)]


def assert_forwards(testpmd: Testpmd) -> None:
    testpmd.drain_output()
    assert testpmd.process.poll() is None
    before = testpmd.telemetry()[1]
    assert wait_until(lambda: testpmd.telemetry()[1] != before), "testpmd stands still"


@pytest.mark.parametrize("kills", KILLS)
def test_monitor_killed_at_random_moments(
    kills: int, nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd], tmp_path: Path
) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    target = Target(testpmd.pid)
    modules = target.modules()
    text = text_digests(target, modules)
    rng = random.Random(7)
    for number in range(kills):
        monitor = nfprobe.start(
            "attach", testpmd.pid, "--trial", "0s", "--packets", "none", "--record", tmp_path / "killed.nfprobe"
        )
        time.sleep(rng.uniform(0.2, 2.0))
        monitor.kill()
        monitor.wait()
        assert_forwards(testpmd)
        if number % 2:
            done = nfprobe.run("detach", testpmd.pid)
            assert done.returncode == 0, done.stderr
            assert text_digests(target, modules) == text
    summary = nfprobe.json("attach", testpmd.pid, "--trial", "0s", "--packets", "none", "--for", "0.5s")
    assert summary["packets"]["received"] > 0
    assert text_digests(target, modules) == text
    assert_forwards(testpmd)


def test_gates_close_when_the_monitor_dies(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    monitor = nfprobe.start("attach", testpmd.pid, "--trial", "0s", "--packets", "none")
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    monitor.kill()
    monitor.wait()

    def status() -> Any:
        return json.loads(nfprobe.run("status", testpmd.pid, "--json").stdout)

    assert wait_until(lambda: [(state["state"], state["monitor"]) for state in status()] == [("silent", None)])
    states = status()
    assert states[0]["probes"] > 0
    assert nfprobe.json("detach", testpmd.pid)["restored"] == states[0]["probes"]
    assert_forwards(testpmd)


def test_target_killed(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd], tmp_path: Path
) -> None:
    """What was committed when the target died is in the recording, and the summary says that it ended."""
    testpmd = start_testpmd(pcap_device(capture(200_000)))
    recording = tmp_path / "dead.nfprobe"
    monitor: subprocess.Popen[str] = nfprobe.start(
        "attach", testpmd.pid, "--trial", "0s", "--record", recording, "--json"
    )
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(200_000)
    testpmd.process.send_signal(signal.SIGKILL)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["target_ended"] is True
    assert summary["packets"]["received"] == summary["packets"]["transmitted"] == 200_000
    report = nfprobe.json("report", recording)
    assert report["batches"]["count"] == 6_250
    assert report["packets"]["transmitted"] == 200_000
    reader = RecordingReader(recording)
    assert sum(len(block.payload) // 16 for block in reader.blocks() if block.type == 1) == summary["records"]["read"]
    assert reader.complete
    assert reader.summary["target_ended"] is True
