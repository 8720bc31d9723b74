# SPDX-License-Identifier: Apache-2.0
"""A real VPP by its own counters: what nfprobe says of packets and of each graph node equals `show runtime`."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_testpmd import wait_until_armed
from tests.support.real_vpp import MISSING, PREFIX, ROUTED, TWO, WARM_UP, RealVpp, Stream, packet

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PREFIX, reason=MISSING)]

MODES = ("all", "slow", "none")
COUNT = 20_000  # of each stream
BRIDGE = """
    create packet-generator interface pg0
    create packet-generator interface pg1
    create packet-generator interface pg2
    set interface l2 bridge pg0 7
    set interface l2 bridge pg1 7
    set interface l2 bridge pg2 7
    set interface state pg0 up
    set interface state pg1 up
    set interface state pg2 up
"""
MEMIF = """
    create memif socket id 1 filename {folder}/memif
    create memif socket id 2 filename {folder}/memif
    create interface memif id 0 socket-id 1 master
    create interface memif id 0 socket-id 2 slave
    ip table add 1
    set interface ip table memif2/0 1
    set interface ip address memif1/0 10.2.0.1/24
    set interface ip address memif2/0 10.3.0.1/24
    set interface mac address memif2/0 02:00:00:00:00:03
    set interface state memif1/0 up
    set interface state memif2/0 up
    set ip neighbor memif1/0 10.2.0.2 02:00:00:00:00:03
    ip route add 10.4.0.0/16 via 10.2.0.2 memif1/0
    ip route add 10.4.0.0/16 table 1 via 10.1.0.2 pg1
"""
PIPE = """
    pipe create
    ip table add 1
    set interface ip table pipe0.1 1
    set interface ip address pipe0.0 10.2.0.1/24
    set interface ip address pipe0.1 10.3.0.1/24
    set interface state pipe0 up
    set interface state pipe0.0 up
    set interface state pipe0.1 up
    set ip neighbor pipe0.0 10.2.0.2 02:00:00:00:00:03
    ip route add 10.4.0.0/16 via 10.2.0.2 pipe0.0
    ip route add 10.4.0.0/16 table 1 via 10.1.0.2 pg1
"""
MULTICAST = """
    create packet-generator interface pg2
    set interface ip address pg2 10.2.0.1/24
    set interface state pg2 up
    ip mroute add 10.0.0.2 239.1.1.1 via pg0 Accept
    ip mroute add 10.0.0.2 239.1.1.1 via pg1 Forward
    ip mroute add 10.0.0.2 239.1.1.1 via pg2 Forward
"""
ESP = (
    "esp crypto-alg aes-cbc-128 crypto-key 4a506a794f574265564551694d653768"
    " integ-alg sha1-96 integ-key 4339314b55523947594d6d3547666b45764e6a58"
)
INPUTS = ("pg-input", "memif-input")  # nodes that receive
HANDS_ON = re.compile(r"(loop|pipe)\d+-tx|adj-midchain-tx")  # those of interfaces without a device, and of tunnels


THROUGH = packet("10.4.0.2")
REPLICATED = "IP4: 02:00:00:00:00:aa -> 01:00:5e:01:01:01 UDP: 10.0.0.2 -> 239.1.1.1 UDP: 1000 -> 2000 incrementing 30"
FLOODED = "IP4: 02:00:00:00:00:aa -> 02:00:00:00:00:77 UDP: 10.0.0.2 -> 10.1.0.2 UDP: 1000 -> 2000 incrementing 30"


@dataclass(frozen=True)
class Scenario:
    """What VPP does with each packet of each stream.

    Attributes:
        received, sent, dropped: how often it is received, transmitted and dropped; None: VPP alone says.
        is_replaced: VPP sends others in its place.
    """

    setup: str
    streams: tuple[Stream, ...]
    received: int = 1
    sent: int | None = 1
    dropped: int | None = 0
    is_replaced: bool = False
    workers: int = 0
    count: int = COUNT


SCENARIOS = {
    "forward": Scenario(TWO, (Stream(ROUTED),)),
    "forward one a frame": Scenario(TWO, (Stream(ROUTED, frame=1),), count=5_000),
    "three streams": Scenario(TWO, (Stream(ROUTED, rate=100_000),) * 3),
    "bridge with flooding": Scenario(BRIDGE, (Stream(FLOODED, rate=100_000),), sent=2),
    "acl drop": Scenario(
        f"""{TWO}
        set acl-plugin acl deny proto 17
        set acl-plugin interface pg0 input acl 0""",
        (Stream(ROUTED),),
        sent=0,
        dropped=1,
    ),
    "nat44": Scenario(
        f"""{TWO}
        nat44 plugin enable sessions 1000
        nat44 add interface address pg1
        set interface nat44 in pg0 out pg1""",
        (Stream(ROUTED),),
    ),
    "ipsec": Scenario(
        f"""{TWO}
        ipsec sa add 10 spi 1000 {ESP}
        ipsec sa add 20 spi 2000 {ESP}
        create ipip tunnel src 10.1.0.1 dst 10.1.0.2
        ipsec tunnel protect ipip0 sa-in 20 sa-out 10
        set interface unnumbered ipip0 use pg1
        set interface state ipip0 up
        ip route add 10.9.0.0/16 via ipip0""",
        (Stream(packet("10.9.0.2"), rate=50_000),),
    ),
    "time to live expired": Scenario(
        TWO, (Stream(packet("10.1.0.2", options="ttl 1 "), rate=100_000),), sent=None, dropped=None
    ),
    "no neighbour": Scenario(TWO, (Stream(packet("10.1.0.77"), rate=100_000),), sent=None, dropped=None),
    "fragmentation": Scenario(
        f"""{TWO}
        set interface mtu packet 576 pg1""",
        (Stream(ROUTED, size=1000, rate=50_000),),
        sent=None,
        is_replaced=True,
    ),
    "loopback": Scenario(
        f"""{TWO}
        create packet-generator interface pg2
        create loopback interface
        set interface l2 bridge loop0 7 bvi
        set interface l2 bridge pg2 7
        set interface state pg2 up
        set interface state loop0 up
        set interface ip address loop0 10.5.0.1/24
        set ip neighbor loop0 10.5.0.2 02:00:00:00:00:55
        l2fib add 02:00:00:00:00:55 7 pg2""",
        (Stream(packet("10.5.0.2"), rate=100_000),),
    ),
    "memif": Scenario(f"{TWO}{MEMIF}", (Stream(THROUGH, rate=100_000),), received=2, sent=2),
    "pipe": Scenario(f"{TWO}{PIPE}", (Stream(THROUGH, rate=100_000),)),
    "multicast": Scenario(f"{TWO}{MULTICAST}", (Stream(REPLICATED, rate=100_000),), sent=2),
    "nobody listens": Scenario(TWO, (Stream(packet("10.0.0.1"), rate=50_000),), sent=None, dropped=None),
    "punt": Scenario(TWO, (Stream(packet("10.0.0.1", "ICMP"), rate=50_000),), sent=0, dropped=0),
    "handoff": Scenario(
        f"""{TWO}
        set interface handoff pg0 workers 0""",
        (Stream(ROUTED, rate=100_000),),
        workers=1,
    ),
}


@pytest.fixture
def scenario(name: str) -> Scenario:
    return SCENARIOS[name]


@pytest.fixture
def vpp(scenario: Scenario, spawn: Callable[..., Any]) -> Iterator[RealVpp]:
    if len(os.sched_getaffinity(0)) <= scenario.workers:
        pytest.skip("a worker needs a processor beside the main thread's")
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:
        vpp = RealVpp(Path(folder), spawn, scenario.workers)
        vpp.configure(scenario.setup.replace("{folder}", folder))
        vpp.add_streams(scenario.streams)
        vpp.play(WARM_UP)
        yield vpp


def sum_vectors(runtime: dict[str, tuple[int, int]], is_one: Callable[[str], bool]) -> int:
    return sum(vectors for name, (_, vectors) in runtime.items() if is_one(name))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_becomes_of_packets(vpp: RealVpp, scenario: Scenario, mode: str, nfprobe: Any) -> None:
    slow = ("--slower-than", "0us") if mode == "slow" else ()
    monitor = nfprobe.start("attach", vpp.pid, "--packets", mode, "--ring-size", "64MiB", "--json", *slow)
    wait_until_armed(nfprobe, vpp.pid, monitor)
    vpp.clear()
    vpp.play(scenario.count)
    runtime, interfaces = vpp.runtime(), vpp.interfaces()
    summary = nfprobe.end(monitor)
    packets, count = summary["packets"], scenario.count * len(scenario.streams)
    received = sum_vectors(runtime, lambda name: name in INPUTS)
    sent = sum_vectors(runtime, lambda name: name.endswith("-tx") and not HANDS_ON.fullmatch(name))
    dropped = sum_vectors(runtime, lambda name: name == "drop")
    punted = sum_vectors(runtime, lambda name: name == "punt")
    made = max(0, sent + dropped + punted - received)  # by VPP: clones, fragments, ICMP errors, ARP requests
    assert received == scenario.received * count
    assert scenario.sent is None or sent == scenario.sent * count
    assert scenario.dropped is None or dropped == scenario.dropped * count
    assert interfaces["rx packets"] >= count
    assert not any(summary["records"]["lost"].values())
    found = {name: packets.get(name, 0) for name in ("received", "transmitted", "dropped", "punted")}
    assert found == {"received": received, "transmitted": sent, "dropped": dropped, "punted": punted}
    ended = sent + dropped + punted + packets.get("absorbed", 0) + packets["unknown"]
    assert ended == received + packets.get("generated", made)
    # Of input nodes VPP counts the calls that returned nothing, too.
    known = {node["name"]: (node["calls"], node["vectors"]) for node in summary["nodes"] if node["name"] not in INPUTS}
    assert known == {name: counts for name, counts in runtime.items() if name not in INPUTS and counts[1]}
    if mode == "slow":
        assert summary["identified"]["differing"] == 0
        assert summary["identified"]["unplaced"] <= made + count * scenario.is_replaced
