# SPDX-License-Identifier: Apache-2.0
"""Packets that Debian's Open vSwitch with DPDK, unmodified, loses while it stands still: told with the queue that was
full, and as many as are missing in its own counters. The fault comes from outside, with its own log."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.linux.namespaces import run_in_network
from tests.integration.test_queue_drops import events_near, report_of
from tests.integration.test_testpmd import wait_until_armed
from tests.support.culprit import Debugger
from tests.support.flood import Flood, log_fault, stop_for
from tests.support.ovs_dpdk import OvsDpdk, dpdk_port, start_wired_switch
from tests.support.probed import wait_until
from tests.support.switch_processes import SwitchProcesses
from tests.support.traffic import make_frames

pytestmark = pytest.mark.integration

PER_STEP = 20  # packets in a millisecond
STALL_S = 0.15
COUNTED_S = 3.0  # a counter of a flow is updated every 0.5 s, or 1 s, or a little later
RIGHT_SHARE = 0.95
SILENT = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
WIRE = "ip link add nfpwire type veth peer name nfpend && ip link set nfpwire up && ip link set nfpend up"


class Switch:
    """A running switch, flooded at its first port; what comes there is thrown away by the second one.

    Args:
        folder: for sockets and its database.
        launcher: words before the command, of what starts it.
        name, settings: of its first port's interface.
        inlet: interface that the frames are sent into.
    """

    def __init__(self, folder: Path, launcher: Sequence[str], name: str, settings: Sequence[str], inlet: str) -> None:
        self.folder = folder
        self._processes = SwitchProcesses(folder)
        ports = {name: settings, "p2": dpdk_port("net_null2,no-rx=1")}
        try:
            cpu = max(os.sched_getaffinity(0))
            self.pid = start_wired_switch(self._processes, launcher, cpu, ports, "output:2")
            outlet = run_in_network(self.pid, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            outlet.bind((inlet, 0))
        except BaseException:
            self.stop()
            raise
        self.flood = Flood(outlet, PER_STEP, next(iter(make_frames(1))))

    def forwarded(self) -> int:
        """Packets by the counter of its only flow."""
        flows = self._processes.run("ovs-ofctl", "dump-flows", self.folder / "br0.mgmt")
        (packets,) = re.findall(r"n_packets=(\d+)", flows)
        return int(packets)

    def wait_for_forwarded(self, packets: int) -> None:
        assert wait_until(lambda: self.forwarded() >= packets, 60), f"{self.forwarded()} of {packets}"

    def wait_for_silence(self) -> None:
        """Until its counter, which it updates now and then, says the same for some time."""
        seen, since = self.forwarded(), time.monotonic()
        while time.monotonic() < since + COUNTED_S:
            if self.forwarded() != seen:
                seen, since = self.forwarded(), time.monotonic()
            time.sleep(0.1)

    def find_thread(self, mark: str) -> int:
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(OSError):  # one of the others may just have ended
                if (task / "comm").read_text().startswith(mark):
                    return int(task.name)
        raise AssertionError(f"no thread {mark}")

    def stop(self) -> None:
        self._processes.stop()


def launcher(*commands: str) -> tuple[str, ...]:
    return ("unshare", "--net", "sh", "-c", " && ".join((SILENT, *commands, 'exec "$@"')), "sh")


def stop_process(switch: Switch) -> None:
    stop_for(switch.pid, STALL_S)


def stop_polling_thread(switch: Switch) -> None:
    """Only this one: the others go on, and answer."""
    Debugger(switch.find_thread("pmd-c"), lambda: True, STALL_S, 1.0, 0).pause_now()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Switch]]:
    if not OvsDpdk.is_installed():
        pytest.skip("openvswitch-switch-dpdk is not installed: scripts/set-up test")
    started: list[Switch] = []

    def start(*words: Any) -> Switch:
        started.append(Switch(tmp_path, launcher(WIRE), *words, "nfpwire"))
        return started[0]

    yield start
    for switch in started:
        switch.stop()


@pytest.mark.parametrize(
    ("name", "settings", "queue", "kind", "fault"),
    [
        ("nfpend", ("type=system",), "packet socket on nfpend", "packet", stop_process),
        ("p1", dpdk_port("net_pcap1,rx_iface=nfpend"), "port 0 net_pcap1", "port", stop_polling_thread),
    ],
    ids=["system port", "polled port"],
)
def test_what_a_standing_switch_loses(
    nfprobe: Any,
    start: Callable[..., Switch],
    tmp_path: Path,
    name: str,
    settings: Sequence[str],
    queue: str,
    kind: str,
    fault: Callable[[Switch], None],
) -> None:
    """A port of the kernel is read by the main thread, one of DPDK by a polling one."""
    switch, recording = start(name, settings), tmp_path / "ovs.nfprobe"
    monitor = nfprobe.start("attach", switch.pid, "--record", recording, "--trial", "0", "--json")
    wait_until_armed(nfprobe, switch.pid, monitor)
    switch.flood.start()
    switch.wait_for_forwarded(400 * PER_STEP)  # what is usual must be known
    faults = []
    for _ in range(2):
        faults.append(log_fault(lambda: fault(switch)))
        switch.wait_for_forwarded(switch.forwarded() + 300 * PER_STEP)
    switch.flood.end()
    switch.wait_for_silence()
    lost, summary = switch.flood.sent - switch.forwarded(), nfprobe.end(monitor)
    assert lost > 100
    assert summary["queue_drops"] == [{"queue": queue, "kind": kind, "packets": lost}]
    document = report_of(nfprobe, recording)
    named = [event for times in faults for event in events_near(document, recording, times)]
    right = sum(event["packets"] for event in named if event["cause"]["kind"] in ("absent", "function", "preemption"))
    assert right >= RIGHT_SHARE * lost, json.dumps([faults, document["queue_drops"]], indent=1)
    assert {event["thread"]["name"][:4] for event in named} == {"pmd-" if kind == "port" else "ovs-"}
    text = nfprobe.run("report", recording).stdout
    assert re.search(rf"what dropped packets .*\n{queue} ", text, re.DOTALL), text
