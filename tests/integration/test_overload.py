# SPDX-License-Identifier: Apache-2.0
"""A monitor that cannot keep up with dpdk-testpmd at full rate: what it sheds, and in which order.

Every packet of the NF becomes a trace that comes, or is shed, or lost, and counted: the rings are so small that any
machine's monitor is behind. testpmd's own counters and a receiver are the oracles.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.recording.recording import PART, RecordingReader
from tests.integration.test_testpmd import ROOM, assert_nothing_missing, check_recording, wait_until_armed
from tests.support.otlp_receiver import Receiver
from tests.support.probed import cpu_ticks, wait_until
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = pytest.mark.integration

FRAMES, BATCH = 1024, 32
PACKETS_MIN = 1_000_000  # many rings full
WORK_S = 0.5  # of the monitor's processor time: it notices after three rounds that it is behind, if it gets to them
PAUSES, HOLDS = 2, 10
LATE_S, REST_S = 0.1, 0.005
RUN_NS = 100_000  # of testpmd: some batches, far fewer than fill the ring
MEMORY_BYTES_MAX = 250_000_000  # 64 MiB of it are the queue of the exporter, which a receiver in Python fills
OPTIONS = ("--trial", "0s", "--packets", "slow", "--ring-size", "512KiB", "--spool", "none", "--json")


def count_reasons(requests: list[bytes]) -> Counter[str]:
    """Traces that came, by why they were selected."""
    found: Counter[str] = Counter()
    for request in requests:
        for part in ExportTraceServiceRequest.FromString(request).resource_spans:
            for span in (span for scope in part.scope_spans for span in scope.spans):
                if not span.parent_span_id:
                    reason = next(a.value.string_value for a in span.attributes if a.key == "nf.sampling.reason")
                    found[reason] += 1
    return found


def peak_bytes(pid: int) -> int:
    """The most that a process ever had resident."""
    return 1024 * int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def is_at_rest(pid: int) -> bool:
    """Whether the thread that drains rings pauses: it does when it has taken all that is in them."""

    def state() -> str:
        return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    return all(state() == "S" and time.sleep(REST_S) is None for _ in range(3))


def run_ns(pid: int) -> int:
    """Processor time of all threads of a process that is stopped."""
    found = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has answered a question to the telemetry may just have ended
            found += int(path.read_text().split()[0])
    return found


def hold(pid: int, monitor: int) -> None:
    """Stops testpmd for LATE_S, and until the monitor has taken what was in the ring."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(LATE_S)
    assert wait_until(lambda: is_at_rest(monitor))


def measure(nfprobe: Any, testpmd: Testpmd, endpoint: str, pauses: int, *options: object) -> dict[str, Any]:
    """A session on testpmd at full rate, begun before the first packet, ended after the last.

    Args:
        pauses: how often testpmd is held for LATE_S, again and again, so that the packets that it works on are late.
    """
    words = ("attach", testpmd.pid, *OPTIONS, "--endpoint", endpoint, *options)
    monitor: subprocess.Popen[str] = nfprobe.start(*words)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    worked_until = cpu_ticks(monitor.pid) + WORK_S * os.sysconf("SC_CLK_TCK")
    testpmd.command("start")
    for number in range(pauses):
        testpmd.wait_for_packets((number + 1) * PACKETS_MIN // (pauses + 1))
        hold(testpmd.pid, monitor.pid)
        # The ring was full, so of the batch that was held nothing may be known. Of the next ones that are held, all is;
        # every other stop comes between two batches and makes none late.
        for _ in range(HOLDS):
            ran_ns = run_ns(testpmd.pid)
            while run_ns(testpmd.pid) < ran_ns + RUN_NS:
                os.kill(testpmd.pid, signal.SIGCONT)
                time.sleep(RUN_NS / 1e9)
                hold(testpmd.pid, monitor.pid)
        os.kill(testpmd.pid, signal.SIGCONT)
    testpmd.wait_for_packets(PACKETS_MIN)
    assert wait_until(lambda: cpu_ticks(monitor.pid) > worked_until)
    testpmd.command("stop")
    assert peak_bytes(monitor.pid) < MEMORY_BYTES_MAX
    summary: dict[str, Any] = nfprobe.end(monitor, 1)
    own = testpmd.telemetry()
    assert own[0] == own[1] >= PACKETS_MIN
    assert summary["packets"] == {"received": own[0], "transmitted": own[1], "dropped": 0, "unknown": 0}
    assert summary["not_restored"] == []
    assert summary["spans"]["dropped"] == summary["spans"]["spooled"] == 0
    return summary


def assert_all_counted(summary: dict[str, Any], came: Counter[str]) -> None:
    """Every packet of the NF was selected: its trace came, was shed, or its records were lost, and each says so."""
    identified, shed = summary["identified"], summary["spans"]["dropped_traces"]
    assert identified["packets"] + identified["unheld"] == summary["packets"]["received"]
    assert identified["lost"] > 0
    missing = identified["lost"] + identified["unplaced"] + identified["unheld"]
    # A packet that was shed can come after all, to show what made others late.
    written = came.total() - came["culprit"]
    assert written + sum(shed.values()) + missing == summary["packets"]["received"], (summary, came)


def test_of_late_packets_the_slowest_are_written(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd], receiver: Receiver
) -> None:
    testpmd = start_testpmd(pcap_device(capture(FRAMES), infinite=True))
    endpoint = f"http://127.0.0.1:{receiver.port}"
    summary = measure(nfprobe, testpmd, endpoint, 0, "--slower-than", "0us")
    came = count_reasons(receiver.requests)
    assert_all_counted(summary, came)
    assert set(came) <= {"slow", "culprit"}
    assert set(summary["spans"]["dropped_traces"]) == {"slow while behind"}


def test_the_sample_is_shed_before_what_is_late(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd], receiver: Receiver
) -> None:
    testpmd = start_testpmd(pcap_device(capture(FRAMES), infinite=True))
    endpoint = f"http://127.0.0.1:{receiver.port}"
    summary = measure(nfprobe, testpmd, endpoint, PAUSES, "--slower-than", f"{LATE_S / 2}s", "--sample", "1")
    came = count_reasons(receiver.requests)
    assert_all_counted(summary, came)
    assert set(summary["spans"]["dropped_traces"]) == {"sample while behind"}
    # None of them was shed. A machine that was busy elsewhere may have let a ring fill up between two stops.
    assert came["slow"] >= BATCH


def test_a_full_ring_is_taken_in_parts(
    nfprobe: Any,
    capture: Callable[[int], Path],
    start_testpmd: Callable[..., Testpmd],
    receiver: Receiver,
    tmp_path: Path,
) -> None:
    count, recording = 200_000, tmp_path / "session.nfp"
    testpmd = start_testpmd(pcap_device(capture(count)))
    options = ("--endpoint", f"http://127.0.0.1:{receiver.port}", "--slowest", "1%", "--sample", "1%")
    words = ("--trial", "0s", "--packets", "all", *ROOM, *options, "--spool", "none", "--record", recording, "--json")
    monitor = nfprobe.start("attach", testpmd.pid, *words)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    monitor.send_signal(signal.SIGSTOP)
    testpmd.command("start")
    testpmd.wait_for_packets(count)
    monitor.send_signal(signal.SIGCONT)
    testpmd.command("stop")
    summary = nfprobe.end(monitor)
    assert_nothing_missing(summary)
    assert summary["packets"] == {"received": count, "transmitted": count, "dropped": 0, "unknown": 0}
    assert summary["recording"]["left_out"] == 0
    assert any(block.type == PART for block in RecordingReader(recording).blocks())
    check_recording(recording, capture(count), count)
    live, receiver.requests = receiver.requests, []
    done = nfprobe.run("export", recording, *options)
    assert done.returncode == 0, done.stderr
    assert count_reasons(live).total() > count // 100
    assert receiver.requests == live
