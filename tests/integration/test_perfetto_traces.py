# SPDX-License-Identifier: Apache-2.0
"""Perfetto traces of real network functions: as many calls, batches, packets and causes as their reports have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.dpdk_examples import wait_until_said
from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.perfetto_trace import PerfettoTrace, read_trace
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PACKETS = 20_000
KEPT = ("--packets", "all", "--trial", "0s", "--ring-size", "64MiB", "--for")


def check_trace(trace: PerfettoTrace, report: dict[str, Any]) -> None:
    functions = Counter({entry["name"]: entry["calls"] for entry in report["functions"] if entry["calls"]})
    calls = [slice for slice in trace.slices if len(slice.track) == 2]
    assert sum(functions.values()) == report["calls"] == len(calls)
    assert Counter(call.name for call in calls) == functions
    assert all(call.above.end_ns >= call.end_ns for call in calls if call.above)
    batches, packets = trace.of("batches"), trace.of("packets")
    assert len(batches) == report["batches"]["count"]
    assert sum(batch.arguments["nf.batch.size"] for batch in batches) == report["packets"]["received"]
    assert len(packets) == report["packets"]["received"] - report["packets"]["unknown"]
    late = [packet for packet in packets if "nf.tail.cause" in packet.arguments]
    assert len(late) == report["packets"]["late"]["packets"]
    kinds = Counter(packet.arguments["nf.tail.cause"] for packet in late)
    said: Counter[str] = Counter()
    for cause in report["packets"]["causes"]:
        said[cause["kind"]] += cause["packets"]
    assert kinds == +said
    slowest = report["packets"]["slowest"][0]
    found = [packet for packet in late if packet.arguments["nf.packet.id"] == slowest["id"]]
    assert max(packet.arguments["nf.packet.latency_ns"] for packet in found) == pytest.approx(
        slowest["latency_ns"], abs=2
    )


def test_firewall(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    firewall, recording, output = start_firewall(20_000), tmp_path / "fw.nfprobe", tmp_path / "fw.pftrace"
    nfprobe.json("attach", firewall.pid, "--adapter", DESCRIPTION, *KEPT, "1s", "--record", recording)
    done = nfprobe.run("report", recording, "-o", output)
    assert done.returncode == 0, done.stderr
    check_trace(read_trace(output), nfprobe.json("report", recording))


def test_testpmd(
    nfprobe: Any, start_testpmd: Callable[..., Testpmd], capture: Callable[[int], Path], tmp_path: Path
) -> None:
    testpmd = start_testpmd(pcap_device(capture(PACKETS)), mode="csum")
    recording, output = tmp_path / "pmd.nfprobe", tmp_path / "pmd.pftrace"
    monitor = nfprobe.start("attach", testpmd.pid, *KEPT, "600s", "--json", "--record", recording)
    wait_until_said(monitor, "attached to")
    testpmd.command("start")
    testpmd.wait_for_packets(PACKETS)
    assert nfprobe.end(monitor)["packets"]["received"] == PACKETS
    done = nfprobe.run("export", recording, "-o", output)
    assert done.returncode == 0, done.stderr
    check_trace(read_trace(output), nfprobe.json("report", recording))
