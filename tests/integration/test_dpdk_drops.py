# SPDX-License-Identifier: Apache-2.0
"""Packets that a stripped testpmd frees instead of sending: dropped, each of them, equal to its own counters."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import DROPPED, TRANSMITTED
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.integration.test_testpmd import ROOM, assert_nothing_missing, wait_until_armed
from tests.support.dpdk_examples import BURST
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import make_frames, write_pcap

pytestmark = pytest.mark.integration

PACKETS = 20_000


def measure(nfprobe: Any, testpmd: Testpmd, *options: object) -> dict[str, Any]:
    """All of a capture file, from the first packet on."""
    monitor = nfprobe.start("attach", testpmd.pid, "--trial", "0s", "--packets", "all", *ROOM, *options, "--json")
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_received(PACKETS)
    testpmd.command("stop", "Done")
    summary = nfprobe.end(monitor)
    assert_nothing_missing(summary)
    return summary


def test_all_is_dropped_by_code_without_a_function(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    """Its frees are inlined: they are told by the buffers, which hold other packets later. The last ones do not."""
    testpmd = start_testpmd(pcap_device(capture(PACKETS)), mode="rxonly")
    packets = measure(nfprobe, testpmd)["packets"]
    assert testpmd.counters() == (PACKETS, 0)
    assert (packets["received"], packets["transmitted"]) == (PACKETS, 0)
    assert packets["dropped"] + packets["unknown"] == PACKETS
    assert 0 < packets["unknown"] <= 2 * BURST


def test_what_is_no_echo_request_is_dropped_by_a_function(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd], tmp_path: Path
) -> None:
    testpmd = start_testpmd(pcap_device(capture(PACKETS)), mode="icmpecho")
    recording = tmp_path / "echo.nfprobe"
    summary = measure(nfprobe, testpmd, "--record", recording)
    received, transmitted = testpmd.counters()
    assert received == PACKETS > transmitted > 0
    dropped = PACKETS - transmitted
    assert summary["packets"] == {
        "received": PACKETS, "transmitted": transmitted, "dropped": dropped, "unknown": 0
    }  # fmt: skip
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    is_request = (packets["protocol"] == 1) & (packets["ip_version"] == 4)
    assert np.array_equal(packets["disposition"] == TRANSMITTED, is_request)
    assert np.array_equal(packets["disposition"] == DROPPED, ~is_request)
    names = {facts.function_names[index] for index in packets["done_function"][~is_request]}
    assert {name.split("+")[0] for name in names} == {"dpdk-testpmd"}
    assert np.all(packets["done_ticks"] > packets["receive_ticks"])


def test_what_the_interface_refuses_is_dropped(
    nfprobe: Any, tmp_path: Path, start_testpmd: Callable[..., Testpmd], narrow_interface: str
) -> None:
    """An interface with a small MTU: the driver accepts a burst up to the first packet that is too long."""
    path = tmp_path / "long.pcap"
    write_pcap(path, make_frames(PACKETS, lengths=(*[96] * 40, 1000)))
    testpmd = start_testpmd(f"net_pcap0,rx_pcap={path},tx_iface={narrow_interface}")
    summary = measure(nfprobe, testpmd)
    packets = summary["packets"]
    received, transmitted = testpmd.counters()
    refused = int(re.findall(r"TX-dropped: +(\d+)", testpmd.output)[-1])
    assert received == PACKETS == transmitted + refused
    assert refused > BURST
    assert (packets["received"], packets["transmitted"]) == (received, transmitted)
    assert packets["dropped"] + packets["unknown"] == refused
    assert packets["unknown"] <= 2 * BURST
    (short,) = summary["queue_drops"]
    assert (short["packets"], short["kind"]) == (refused, "transmit")


@pytest.fixture
def narrow_interface() -> Iterator[str]:
    """One that sends nothing longer than 514 bytes."""
    name = f"nfp{os.getpid()}"
    done = subprocess.run(
        ["ip", "link", "add", name, "mtu", "500", "type", "veth", "peer", "name", f"{name}p", "mtu", "500"],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"no interface can be made here: {done.stderr}")
    subprocess.run(["ip", "link", "set", name, "up"], check=True)
    yield name
    subprocess.run(["ip", "link", "del", name], check=True)
