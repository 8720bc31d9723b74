# SPDX-License-Identifier: Apache-2.0
"""Open vSwitch with DPDK as the tests run it: no NIC, no huge pages; its ports are capture files.

A file that is put in the place of a port's capture file is played from its start when the port is configured
anew, so a test decides when its packets come. The switch's own counters are the oracle. It runs in a network namespace
of its own: its taps (br0, ovs-netdev) have the same names in every switch, and would stay.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.switch_processes import SCHEMA, SwitchProcesses

BINARY = Path("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk")
CLONE_NEWNET = 0x40000000
MEMORY = "--no-huge --legacy-mem -m 512 --no-pci"


def start_wired_switch(
    switch: SwitchProcesses, launcher: Sequence[str], cpu: int, ports: Mapping[str, Sequence[str]], actions: str
) -> int:
    """Starts a switch that forwards what its first port receives. Returns its process ID.

    Args:
        launcher: words before the command, of what starts it.
        cpu: of its polling thread.
        ports: settings of its interfaces by their names, from port 1 on.
        actions: of what comes in at port 1.
    """
    prefix = f"nfpsw{os.getpid()}x{switch.folder.name}"
    options = [f'dpdk-extra="{MEMORY} --file-prefix={prefix}"', "dpdk-init=true", "per-port-memory=true"]
    options.append(f"pmd-cpu-mask={1 << cpu:#x}")
    switch.run(*switch.configure, "--no-wait", "init")
    switch.run(*switch.configure, "--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{o}" for o in options))
    pid = switch.start(*launcher, BINARY, switch.socket, "vs.ctl").pid
    bridge = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail-mode=secure"]
    switch.run(*switch.configure, *bridge)
    for number, (name, settings) in enumerate(ports.items(), 1):
        words = ["add-port", "br0", name, "--", "set", "Interface", name, f"ofport_request={number}", *settings]
        switch.run(*switch.configure, *words)
    switch.run("ovs-ofctl", "add-flow", switch.folder / "br0.mgmt", f"in_port=1,actions={actions}")
    return pid


def dpdk_port(device: str) -> tuple[str, str]:
    """Settings of an interface that is a device of DPDK."""
    return "type=dpdk", f'options:dpdk-devargs="{device}"'


def wire_port(number: int, interface: str) -> tuple[str, str]:
    """Likewise, at the end of a wire."""
    return dpdk_port(f"net_af_packet{number},iface={interface},framecnt=2048")


class OvsDpdk:
    """A running switch that forwards from port p1, a capture file, to port p2, another one.

    Args:
        folder: for its sockets, its database and its files.
        first: capture file that p1 plays when it is made.
        sent: capture file that p2 writes; None: p2 throws away what it is sent.
        is_endless: `first` is played for ever.
    """

    def __init__(self, folder: Path, first: Path, sent: Path | None, is_endless: bool = False) -> None:
        self.folder, self._sent, self._is_endless = folder, sent, is_endless
        self.played = folder / "played.pcap"
        os.symlink(first, self.played)
        self._descriptors = 512
        self._processes = SwitchProcesses(folder)
        self._run, self._configure = self._processes.run, self._processes.configure
        core = max(os.sched_getaffinity(0))
        options = [f'dpdk-extra="{MEMORY} --file-prefix=nfp{os.getpid()}"', f"pmd-cpu-mask={1 << core:#x}"]
        options += ["dpdk-init=true", "per-port-memory=true"]
        self._run(*self._configure, "--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{o}" for o in options))
        try:
            self.pid = self._processes.start("unshare", "--net", BINARY, self._processes.socket, "vs.ctl").pid
            self._add_bridge()
        except BaseException:
            self.stop()
            raise

    @property
    def sent(self) -> Path:
        """The file that p2 writes."""
        assert self._sent is not None
        return self._sent

    @staticmethod
    def is_installed() -> bool:
        return SCHEMA.exists() and BINARY.exists()

    def _add_bridge(self) -> None:
        bridge = ["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", "fail-mode=secure"]
        self._run(*self._configure, *bridge)
        self.add_flow("in_port=1,actions=output:2")
        last = f"net_pcap2,tx_pcap={self._sent}" if self._sent else "net_null2"
        first = f"net_pcap1,rx_pcap={self.played}" + ",infinite_rx=1" * self._is_endless
        for port, device in ((2, last), (1, first)):
            words = ["add-port", "br0", f"p{port}", "--", "set", "Interface", f"p{port}", "type=dpdk"]
            words += [f"ofport_request={port}", f'options:dpdk-devargs="{device}"']
            self._run(*self._configure, *words)

    def add_flow(self, flow: str) -> None:
        self._run("ovs-ofctl", "add-flow", self.folder / "br0.mgmt", flow)

    def take_up(self, tap: str) -> None:
        """Lets a tap carry frames; the kernel sends none of its own over it."""
        silent = f"/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"
        enter = ("nsenter", f"--target={self.pid}", "--net", "sh", "-c")
        self._run(*enter, f"if [ -e {silent} ]; then echo 1 >{silent}; fi; ip link set {tap} up")

    def open_tap(self, tap: str) -> socket.socket:
        """A socket whose frames the switch receives from a tap."""
        opened: list[socket.socket] = []

        def enter() -> None:  # a namespace is a thread's
            with open(f"/proc/{self.pid}/ns/net") as namespace:
                assert ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0
            opened.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            opened[0].bind((tap, 0))

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        return opened[0]

    def written(self, tap: str) -> int:
        """Frames that the switch has written into a tap, by the kernel's count."""
        devices = Path(f"/proc/{self.pid}/net/dev").read_text()
        return int(next(line.split()[2] for line in devices.splitlines() if line.strip().startswith(f"{tap}:")))

    def ask(self, command: str) -> str:
        """The answer of the switch to a command on its control socket."""
        return self._run("ovs-appctl", "-t", self.folder / "vs.ctl", *command.split())

    def play(self, capture: Path) -> None:
        """Plays the packets of a capture file into p1."""
        fresh = self.folder / "fresh.pcap"
        os.symlink(capture, fresh)
        os.replace(fresh, self.played)
        self._descriptors = 1536 - self._descriptors
        self._run(*self._configure, "set", "Interface", "p1", f"options:n_rxq_desc={self._descriptors}")

    def polled(self) -> int:
        """Packets that its polling threads have received, by its own count."""
        found = re.findall(r"packets received: (\d+)", self.ask("dpif-netdev/pmd-stats-show"))
        return sum(map(int, found))

    def counters(self) -> tuple[int, int]:
        """Packets received by p1 and sent by p2, by the counters of the ports."""
        ports = self._run("ovs-ofctl", "dump-ports", self.folder / "br0.mgmt")
        received = re.search(r'port +"?p?1"?: rx pkts=(\d+)', ports)
        sent = re.search(r'port +"?p?2"?: rx.*\n.*tx pkts=(\d+)', ports)
        assert received is not None, ports
        assert sent is not None, ports
        return int(received[1]), int(sent[1])

    def stop(self) -> None:
        self._processes.stop()
