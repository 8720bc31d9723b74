# SPDX-License-Identifier: Apache-2.0
"""All functions at once, of network functions while they forward: no packet more or less by their own counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.openvswitch import OpenVswitch
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.whole import LADDER, assert_covered, probe_each_way, probe_everything

pytestmark = pytest.mark.integration

FRAMES = 12
CALLS_OF_THREADS = 60  # six threads, each in a few nested calls
PACKETS = 5000


@pytest.fixture
def switch(tmp_path: Path) -> Iterator[OpenVswitch]:
    if not OpenVswitch.is_installed():
        pytest.skip("Open vSwitch is not installed: scripts/set-up test")
    switch = OpenVswitch(tmp_path)
    yield switch
    switch.stop()


def test_open_vswitch(switch: OpenVswitch) -> None:
    def work() -> str:
        counted = switch.receive(FRAMES)
        assert counted == repr([FRAMES, FRAMES * 106, FRAMES, FRAMES])
        return counted

    ways = ("in-stack", "relocated", LADDER)
    rounds = probe_each_way(switch.pid, ["ovs-vswitchd*:*"], work, ways, begun_before=CALLS_OF_THREADS)
    assert_covered(rounds)


EVERYTHING = ("dpdk-testpmd:*", "librte_*:*")
ITS_WAY = ("dpdk-testpmd:*", "librte_ethdev.so*:*", "librte_net_pcap.so*:*", "librte_mbuf.so*:*", "librte_mempool*:*")


@pytest.mark.parametrize(
    ("strategy", "globs"),
    [*((strategy, ITS_WAY) for strategy in ("in-stack", "relocated", "got", "entry")), (LADDER, EVERYTHING)],
)
def test_testpmd_and_its_libraries(
    strategy: str, globs: Sequence[str], capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    """It polls more often than can be recorded at such detail: what is lost is counted, the packets are right."""
    testpmd = start_testpmd(pcap_device(capture(PACKETS)))

    def forward() -> str:
        testpmd.command("start")
        testpmd.wait_for_packets(PACKETS)
        testpmd.command("stop")
        return repr(testpmd.counters())

    whole = probe_everything(testpmd.pid, globs, strategy, forward)
    assert whole.answer == repr((PACKETS, PACKETS))
    assert_covered([whole])
    testpmd.command("start")  # all of it, with nothing left of the probes
    testpmd.command("stop")
    assert testpmd.counters() == (PACKETS, PACKETS)
