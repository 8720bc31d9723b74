# SPDX-License-Identifier: Apache-2.0
"""An unmodified, stripped dpdk-testpmd: every packet and batch is accounted for, equal to its own counters."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.support.packet_digest import describe
from tests.support.probed import wait_until
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import read_pcap

pytestmark = pytest.mark.integration

ROOM = ("--ring-size", "64MiB")  # for a whole file, however late a busy machine lets the monitor drain


def wait_until_armed(nfprobe: Any, pid: int, monitor: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 150
    while nfprobe.run("status", pid).returncode != 0:
        assert monitor.poll() is None, monitor.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def assert_nothing_missing(summary: dict[str, Any]) -> None:
    assert not any(summary["records"]["lost"].values()), summary
    assert summary["unpaired"] == {"entries": 0, "exits": 0}
    assert summary["not_restored"] == []


@pytest.mark.parametrize("count", [200_000, 199_999, 7])
def test_every_packet_of_a_file(
    count: int,
    nfprobe: Any,
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    tmp_path: Path,
) -> None:
    testpmd = start_testpmd(pcap_device(capture(count)))
    recording = tmp_path / "all.nfprobe"
    monitor = nfprobe.start(
        "attach", testpmd.pid, "--trial", "0s", "--packets", "all", *ROOM, "--record", recording, "--json"
    )
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(count)
    testpmd.command("stop")  # the last call has returned
    summary = nfprobe.end(monitor)
    assert testpmd.counters() == testpmd.telemetry() == (count, count)
    assert summary["batches"] == -(-count // 32)
    assert summary["packets"] == {"received": count, "transmitted": count, "dropped": 0, "unknown": 0}
    assert_nothing_missing(summary)
    check_recording(recording, capture(count), count)


def check_recording(recording: Path, capture_file: Path, count: int) -> None:
    """The recording holds every packet of the capture, in order, with the digest computed from the file."""
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    assert reader.complete
    assert len(packets) == count
    step = 1 if count < 1000 else 37  # the digest in Python is slow
    frames = [frame for _, frame, _ in read_pcap(capture_file)]
    expected = np.array([describe(frame).digest for frame in frames[::step]], np.uint64)
    order = np.lexsort((packets["index"], packets["receive_ticks"]))
    assert np.array_equal(packets["digest"][order][::step], expected)
    assert np.array_equal(packets["length"][order], [len(frame) for frame in frames])
    assert np.array_equal(packets["done_digest"], packets["digest"])
    assert np.all(packets["disposition"] == 1)
    assert np.all(packets["done_ticks"] > packets["receive_ticks"])


def test_endless_source_at_full_speed(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    """Attached to a forwarder at full speed: what it received in between, to within a burst at each edge."""
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True))
    monitor = nfprobe.start("attach", testpmd.pid, "--trial", "0s", "--packets", "all", *ROOM, "--json")
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    before = testpmd.telemetry()
    testpmd.command("start")
    time.sleep(5)
    testpmd.command("stop")
    after = testpmd.telemetry()
    summary = nfprobe.end(monitor)
    received, transmitted = after[0] - before[0], after[1] - before[1]
    assert received > 100_000
    assert abs(summary["packets"]["received"] - received) <= 64
    assert abs(summary["packets"]["transmitted"] - transmitted) <= 64
    assert summary["not_restored"] == []


def test_attach_and_detach_while_it_forwards(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(1024), infinite=True), interactive=False)
    before = testpmd.telemetry()
    summary = nfprobe.json("attach", testpmd.pid, "--trial", "0s", "--packets", "none", "--for", "1s")
    after = testpmd.telemetry()
    assert 0 < summary["packets"]["received"] <= after[0] - before[0]
    assert summary["not_restored"] == []
    assert wait_until(lambda: testpmd.telemetry()[1] > after[1])


@pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.long)])
def test_empty_polls_leave_no_record(
    seconds: int, nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(7)))
    testpmd.command("start")
    testpmd.wait_for_packets(7)
    summary = nfprobe.json("attach", testpmd.pid, "--trial", "0s", "--for", f"{seconds}s", timeout=seconds + 240)
    assert summary["records"]["read"] == 0
    assert summary["packets"]["received"] == 0
    polls = [thread for thread in summary["threads"] if thread["polls"]]
    assert len(polls) == 1
    assert polls[0]["empty_polls"] == polls[0]["polls"] > 100_000
