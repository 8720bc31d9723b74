# SPDX-License-Identifier: Apache-2.0
"""A real VPP in a network namespace, between two veth pairs whose other ends send and receive frames."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_real_vpp_ids import OPTIONS, ids_of, read_ids, replay_packets
from tests.integration.test_testpmd import wait_until_armed
from tests.support import wires
from tests.support.real_vpp import MISSING, PREFIX, RealVpp
from tests.support.traffic import make_frames, read_pcap, write_pcap

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PREFIX, reason=MISSING)]

COUNT = 8_000
LENGTHS = (60, 74, 590, 1514, 4000)  # a buffer holds 2,048 bytes
SETUP = """
    create host-interface name wire0
    create host-interface name wire1
    set interface mac address host-wire0 02:00:00:00:00:02
    set interface mac address host-wire1 02:00:00:00:00:03
    set interface ip address host-wire0 10.0.0.100/24
    set interface ip address host-wire1 10.7.0.1/24
    enable ip6 interface host-wire0
    set interface ip address host-wire1 fd00:7::1/64
    set interface state host-wire0 up
    set interface state host-wire1 up
    set ip neighbor host-wire1 10.7.0.2 02:00:00:00:00:99
    set ip neighbor host-wire1 fd00:7::2 02:00:00:00:00:99
    ip route add 10.1.0.0/16 via 10.7.0.2 host-wire1
    ip route add fd00:1::/64 via fd00:7::2 host-wire1
"""
INPUT = "af-packet-input"


class Wired(RealVpp):
    def __init__(self, folder: Path, spawn: Callable[..., Any]) -> None:
        super().__init__(folder, spawn, prepare=wires.LAY)
        self.played, self.written = folder / "in.pcap", folder / "out.pcap"
        write_pcap(self.played, make_frames(COUNT, lengths=LENGTHS))
        self.configure(SETUP)

    def forward(self) -> None:
        """What stands in one file is sent to VPP, and what VPP sends in the other one."""
        network = f"--net=/proc/{self.pid}/ns/net"
        words = [
            "nsenter",
            network,
            sys.executable,
            "-m",
            "tests.support.wires",
            "end0",
            "end1",
            self.played,
            self.written,
        ]
        subprocess.run([str(word) for word in words], cwd=ROOT, check=True, timeout=120)
        self.settle()


@pytest.fixture
def vpp(spawn: Callable[..., Any]) -> Iterator[Wired]:
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:
        vpp = Wired(Path(folder), spawn)
        vpp.forward()
        yield vpp


@pytest.mark.parametrize("mode", [*OPTIONS, "none"])
def test_packets_of_a_veth_pair(vpp: Wired, mode: str, nfprobe: Any) -> None:
    recording = vpp.folder / "vpp.nfprobe"
    words = ("--ring-size", "64MiB", "--record", recording, "--json", *OPTIONS.get(mode, ("--packets", mode)))
    monitor = nfprobe.start("attach", vpp.pid, *words)
    wait_until_armed(nfprobe, vpp.pid, monitor)
    vpp.clear()
    vpp.forward()
    runtime, interfaces = vpp.runtime(), vpp.interfaces()
    summary = nfprobe.end(monitor)
    assert len(list(read_pcap(vpp.written))) == COUNT
    assert (interfaces["rx packets"], interfaces["tx packets"], runtime[INPUT][1]) == (COUNT, COUNT, COUNT)
    packets = summary["packets"]
    assert (packets["received"], packets["transmitted"], packets.get("dropped", 0)) == (COUNT, COUNT, 0)
    assert not any(summary["records"]["lost"].values())
    known = {node["name"]: (node["calls"], node["vectors"]) for node in summary["nodes"] if node["name"] != INPUT}
    assert known == {name: counts for name, counts in runtime.items() if name != INPUT and counts[1]}
    if mode == "none":
        return
    found = replay_packets(recording).packets
    assert ids_of(found["digest"]) == read_ids(nfprobe, vpp.played)
    assert ids_of(found["done_digest"]) == read_ids(nfprobe, vpp.written)
