# SPDX-License-Identifier: Apache-2.0
"""A real VPP replays a capture file: the ids of its packets are those of the file, and of what `pcap trace` of VPP
writes at receive, at transmit and at drop."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, Columns, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.integration.test_testpmd import wait_until_armed
from tests.support.real_vpp import MISSING, PREFIX, RealVpp, Stream
from tests.support.traffic import make_frames, write_pcap

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PREFIX, reason=MISSING)]

COUNT = 5_000
LENGTHS = (60, 74, 590, 1514)
KINDS_BY_SETUP = {"forward": ("udp4", "tcp4", "udp6", "icmp4"), "nat44": ("udp4", "tcp4", "icmp4")}
SETUP = """
    create packet-generator interface pg0
    create packet-generator interface pg1
    set interface mac address pg0 02:00:00:00:00:02
    set interface mac address pg1 02:00:00:00:00:03
    set interface ip address pg0 10.0.0.100/24
    set interface ip address pg1 10.7.0.1/24
    enable ip6 interface pg0
    set interface ip address pg1 fd00:7::1/64
    set interface state pg0 up
    set interface state pg1 up
    set ip neighbor pg1 10.7.0.2 02:00:00:00:00:99
    set ip neighbor pg1 fd00:7::2 02:00:00:00:00:99
    ip route add 10.1.0.0/16 via 10.7.0.2 pg1
    ip route add fd00:1::/64 via fd00:7::2 pg1
"""
SETUPS = {
    "forward": SETUP,
    "nat44": f"""{SETUP}
        nat44 plugin enable sessions 1000
        nat44 add interface address pg1
        set interface nat44 in pg0 out pg1""",
    "acl": f"""{SETUP}
        set acl-plugin acl deny proto 6, permit, ipv6 permit
        set acl-plugin interface pg0 input acl 0""",
}
WAYS = (TRANSMITTED, DROPPED)
OPTIONS = {"all": ("--packets", "all"), "slow": ("--packets", "slow", "--slower-than", "0us")}


def read_ids(nfprobe: Any, path: Path) -> Counter[str]:
    """Content ids of the packets of a capture file, as a user asks for them."""
    document = nfprobe.json("ids", path)
    assert document["damage"] is None
    return Counter(packet["content_id"] for packet in document["packets"])


def replay_packets(path: Path) -> Columns:
    reader = RecordingReader(path)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return concatenate(list(replay(reader, facts, pipeline)))


def ids_of(digests: Any) -> Counter[str]:
    return Counter(f"{digest:016x}" for digest in digests.tolist())


class Replaying(RealVpp):
    """A VPP that replays a capture file, and writes what it receives, transmits or drops of it."""

    def __init__(self, folder: Path, spawn: Callable[..., Any], setup: str) -> None:
        super().__init__(folder, spawn)
        self.played = folder / "in.pcap"
        kinds = KINDS_BY_SETUP.get(setup, KINDS_BY_SETUP["forward"])
        write_pcap(self.played, make_frames(COUNT, kinds=kinds, lengths=LENGTHS), unit_ns=1000)
        self.configure(SETUPS[setup])
        self.add_streams([Stream("", capture=self.played)])
        self.play(COUNT)  # each flow is known, and each node has run

    def write(self, way: str) -> Path:
        """Plays the file, and returns what was written of it."""
        name = f"nfprobe-{self.folder.name}.pcap"  # VPP puts it there, and takes no folder
        self.configure(f"pcap trace {way} max {4 * COUNT} max-bytes-per-pkt 2048 intfc any file {name}")
        self.play(COUNT)
        self.ask("pcap trace off")
        return Path(shutil.move(Path("/tmp") / name, self.folder / f"{way}.pcap"))


@pytest.fixture
def vpp(setup: str, spawn: Callable[..., Any]) -> Iterator[Replaying]:
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:
        yield Replaying(Path(folder), spawn, setup)


@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize(("setup", "way"), [("forward", "rx"), ("forward", "tx"), ("nat44", "tx"), ("acl", "drop")])
def test_ids_of_captures(vpp: Replaying, way: str, mode: str, nfprobe: Any) -> None:
    recording = vpp.folder / "vpp.nfprobe"
    words = ("--ring-size", "64MiB", "--record", recording, "--json", *OPTIONS[mode])
    monitor = nfprobe.start("attach", vpp.pid, *words)
    wait_until_armed(nfprobe, vpp.pid, monitor)
    written = read_ids(nfprobe, vpp.write(way))
    summary = nfprobe.end(monitor)
    assert not any(summary["records"]["lost"].values())
    packets = replay_packets(recording).packets
    assert ids_of(packets["digest"]) == read_ids(nfprobe, vpp.played)
    assert np.all(packets["flags"] == 0)
    came, left = ids_of(packets["digest"]), ids_of(packets["done_digest"])
    assert came == left  # nothing that a content id covers was changed
    gone = {disposition: ids_of(packets["done_digest"][packets["disposition"] == disposition]) for disposition in WAYS}
    assert sum(gone.values(), Counter()) == left
    assert written == {"rx": came, "tx": gone[TRANSMITTED], "drop": gone[DROPPED]}[way]
    assert written.total() > COUNT // 8
