# SPDX-License-Identifier: Apache-2.0
"""ovs-vswitchd as the tests run it: a private instance whose two ports exist in its memory only.

Frames come in by its control socket, so that their number is exact; its flow and port counters are the oracle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.support.probed import wait_until
from tests.support.switch_processes import SCHEMA, SwitchProcesses

BINARIES = ("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk", "/usr/sbin/ovs-vswitchd")
FRAME = (
    "in_port(1),eth(src=50:54:00:00:00:09,dst=50:54:00:00:00:0a),eth_type(0x0800),"
    "ipv4(src=10.0.0.{source},dst=10.0.0.1,proto=17,tos=0,ttl=64,frag=no),udp(src=80,dst={port})"
)


class OpenVswitch:
    """A running switch that forwards UDP from port 1 to port 2 with one time to live less, and drops the rest.

    Args:
        folder: where its database, sockets and logs are.
        launcher: words before the command, of what starts it; what that says is in `said_by_launcher`.
    """

    def __init__(self, folder: Path, launcher: Sequence[str] = ()) -> None:
        self.folder = folder
        self._processes = SwitchProcesses(folder)
        self._run, self._configure = self._processes.run, self._processes.configure
        self._run(*self._configure, "--no-wait", "init")
        binary = next(name for name in BINARIES if Path(name).exists())
        switch = self._processes.start(*launcher, binary, self._processes.socket, "--enable-dummy=override", "vs.ctl")
        self.pid = switch.pid
        self._add_bridge()

    @staticmethod
    def is_installed() -> bool:
        return SCHEMA.exists() and any(Path(name).exists() for name in BINARIES)

    def _add_bridge(self) -> None:
        bridge = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail-mode=secure"]
        for port in (1, 2):
            bridge += ["--", "add-port", "br0", f"p{port}", "--", "set", "Interface", f"p{port}"]
            bridge += ["type=dummy", f"ofport_request={port}"]
        self._run(*self._configure, *bridge)
        flow = "in_port=1,udp,actions=dec_ttl,mod_dl_src:02:00:00:00:00:01,output:2"
        self._run("ovs-ofctl", "add-flow", self.folder / "br0.mgmt", flow)

    def said_by_launcher(self) -> str:
        """What was said on standard error."""
        return self._processes.said.read_text()

    def receive(self, frames: int) -> str:
        """Sends so many different frames into port 1; returns its counters: how many there were, and came out."""
        before = self.counters()
        for i in range(frames):
            frame = FRAME.format(source=i % 200 + 1, port=i + 1)
            self._run("ovs-appctl", "-t", self.folder / "vs.ctl", "netdev-dummy/receive", "p1", frame)
        wait_until(lambda: self.counters()[0] - before[0] >= frames)  # flow counters come a little later
        after = self.counters()
        return repr([late - early for early, late in zip(before, after, strict=True)])

    def counters(self) -> tuple[int, int, int, int]:
        """Packets and bytes of the flow, packets received by port 1 and sent by port 2."""
        flow = self._run("ovs-ofctl", "dump-flows", self.folder / "br0.mgmt", "udp")
        ports = self._run("ovs-ofctl", "dump-ports", self.folder / "br0.mgmt")
        packets, octets = re.search(r"n_packets=(\d+)", flow), re.search(r"n_bytes=(\d+)", flow)
        received = re.search(r"port +1: rx pkts=(\d+)", ports)
        sent = re.search(r"port +2: rx.*\n.*tx pkts=(\d+)", ports)
        found = [int(match[1]) for match in (packets, octets, received, sent) if match is not None]
        assert len(found) == 4, flow + ports
        return found[0], found[1], found[2], found[3]

    def stop(self) -> None:
        self._processes.stop()
