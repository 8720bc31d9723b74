# SPDX-License-Identifier: Apache-2.0
"""A real VPP as the tests run it: no NIC, no huge pages; its packet generator makes what it receives.

It is not in Debian. NFPROBE_VPP is the prefix of an installed one: bin/vpp, bin/vppctl and a folder vpp_plugins below
lib. Its own counters (`show runtime`) are the oracle. Everything that it writes is in a folder of the test.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.rooms import need_unshare

PREFIX = os.environ.get("NFPROBE_VPP", "")
MISSING = "NFPROBE_VPP is not set: the prefix of an installed VPP (bin/vpp, bin/vppctl, lib/.../vpp_plugins)"
PLUGINS = ("acl", "nat", "memif", "ping", "af_packet")
WARM_UP = 600  # packets, so that each node has run before nfprobe comes
START_S, SETTLE_S, QUIET_S = 60.0, 60.0, 0.3
# One row of `show runtime`: name, state, calls, vectors, suspends, clocks, vectors per call.
_ROW = re.compile(r"^(\S+) +(?:active|polling|disabled|interrupt wa|event wait|done|any wait|time wait) +(\d+) +(\d+) ")
_COUNTER = re.compile(r"(rx packets|tx packets|drops|punt|tx-error) +(\d+)")
Counts = dict[str, tuple[int, int]]  # calls and vectors of each node
# Two interfaces of the generator, with a neighbour each.
TWO = """
    create packet-generator interface pg0
    create packet-generator interface pg1
    set interface mac address pg0 02:00:00:00:00:01
    set interface mac address pg1 02:00:00:00:00:02
    set interface ip address pg0 10.0.0.1/24
    set interface ip address pg1 10.1.0.1/24
    set interface state pg0 up
    set interface state pg1 up
    set ip neighbor pg1 10.1.0.2 02:00:00:00:00:99
    set ip neighbor pg0 10.0.0.2 02:00:00:00:00:aa
"""


def packet(destination: str, protocol: str = "UDP", source: str = "10.0.0.2", options: str = "") -> str:
    """Its headers, in the generator's words."""
    ports = "UDP: 1000 -> 2000 " if protocol == "UDP" else ""
    ethernet = "IP4: 02:00:00:00:00:aa -> 02:00:00:00:00:01"
    return f"{ethernet} {protocol}: {source} -> {destination} {options}{ports}incrementing 30"


ROUTED = packet("10.1.0.2")


@dataclass(frozen=True)
class Stream:
    """Packets of one stream of the generator.

    Attributes:
        data: their headers, in the generator's words.
        frame: the most packets in a frame.
        rate: packets in a second; 0: as many as it can.
        capture: a file with the packets, instead of `data` and `size`.
    """

    data: str
    frame: int = 256
    rate: int = 0
    size: int = 100
    interface: str = "pg0"
    worker: int = 0
    capture: Path | None = None

    def describe(self, name: str) -> str:
        """As `packet-generator new` takes it, on one line."""
        rate = f"rate {self.rate} " if self.rate else ""
        packets = f"size {self.size}-{self.size} data {{ {self.data} }}"
        if self.capture is not None:
            packets = f"pcap {self.capture}"
        return (
            f"packet-generator new {{ name {name} limit 64 {rate}maxframe {self.frame} worker {self.worker}"
            f" interface {self.interface} node ethernet-input {packets} }}"
        )


class RealVpp:
    """A running VPP.

    Args:
        folder: for its sockets and files; its path is short, as those of sockets must be.
        workers: threads beside the main one, of which there may be as many as processors beside the first.
        prepare: shell commands that are run before it, in its network namespace, which is its own then.
    """

    def __init__(self, folder: Path, spawn: Callable[..., Any], workers: int = 0, prepare: str = "") -> None:
        self.folder = folder
        self._prefix = Path(PREFIX)
        self._streams = 0
        (folder / "startup.conf").write_text(self._make_configuration(workers))
        words: tuple[object, ...] = (self._prefix / "bin" / "vpp", "-c", folder / "startup.conf")
        if prepare:
            words = (*need_unshare("--net"), "sh", "-c", f'{prepare} && exec "$@"', "sh", *words)
        with (folder / "log").open("wb") as log:
            self.process = spawn(*words, stdout=log, stderr=log)
        self.pid = self.process.pid
        wait_for(lambda: (folder / "cli").exists() and "vpp v" in self.ask("show version"), START_S, self._where)

    def ask(self, line: str) -> str:
        """What VPP answers to a line."""
        words = [str(self._prefix / "bin" / "vppctl"), "-s", str(self.folder / "cli"), line]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False).stdout.replace("\r", "")

    def configure(self, text: str) -> None:
        """Lines that answer nothing when they are right, or a name."""
        for line in filter(None, map(str.strip, text.splitlines())):
            answer = self.ask(line)
            assert not re.search(r"unknown|error|failed|invalid|not found", answer), f"{line}: {answer}"

    def add_streams(self, streams: Sequence[Stream]) -> None:
        for stream in streams:
            self.configure(stream.describe(f"s{self._streams}"))
            assert f"s{self._streams}" in self.ask("show packet-generator"), self._where()
            self._streams += 1

    def play(self, count: int) -> None:
        """Each stream makes so many packets. Returns when VPP has done what it does with them."""
        for number in range(self._streams):
            self.ask(f"packet-generator configure s{number} limit {count}")
        self.ask("packet-generator enable")
        self.settle()
        self.ask("packet-generator disable")

    def keep_playing(self) -> None:
        """Each stream makes packets until the generator is disabled."""
        for number in range(self._streams):
            self.ask(f"packet-generator configure s{number} limit 0")
        self.ask("packet-generator enable")

    def settle(self) -> None:
        """Waits until no stream is enabled and no vector is counted any more."""
        wait_for(lambda: not re.search(r"\bYes\b", self.ask("show packet-generator")), SETTLE_S, self._where)
        before: Counts = {}
        deadline = time.monotonic() + SETTLE_S
        while (now := self.vectors()) != before:
            assert time.monotonic() < deadline, self._where()
            before = now
            time.sleep(QUIET_S)

    def clear(self) -> None:
        """All counts are 0."""
        for what in ("runtime", "interfaces", "errors"):
            self.ask(f"clear {what}")

    def runtime(self) -> Counts:
        """Calls and vectors of each node, of all threads."""
        found: Counts = {}
        for line in self.ask("show runtime").splitlines():
            if row := _ROW.match(line):
                calls, vectors = found.get(row[1], (0, 0))
                found[row[1]] = calls + int(row[2]), vectors + int(row[3])
        return found

    def vectors(self) -> Counts:
        """Of nodes that had packets."""
        return {name: (0, vectors) for name, (_, vectors) in self.runtime().items() if vectors}

    def interfaces(self) -> dict[str, int]:
        """The sums over all interfaces of each counter of packets."""
        found: dict[str, int] = {}
        for name, count in _COUNTER.findall(self.ask("show interface")):
            found[name] = found.get(name, 0) + int(count)
        return found

    def _where(self) -> str:
        return f"{(self.folder / 'log').read_text()[-2000:]}\n{self.ask('show errors')}"

    def _make_configuration(self, workers: int) -> str:
        (plugins,) = (self._prefix).glob("lib*/**/vpp_plugins")
        names = [f"{name}_plugin.so" for name in PLUGINS] + [path.name for path in plugins.glob("*crypto*")]
        enabled = " ".join(f"plugin {name} {{ enable }}" for name in names)
        cpus = sorted(os.sched_getaffinity(0))
        own = f"main-core {cpus[-1]}"
        if workers:
            own = f"main-core {cpus[0]} corelist-workers {','.join(map(str, cpus[1 : 1 + workers]))}"
        folder = self.folder
        return f"""
            unix {{ nodaemon cli-listen {folder}/cli runtime-dir {folder} log {folder}/vpp.log }}
            api-segment {{ prefix nfp{os.getpid()} }}
            socksvr {{ socket-name {folder}/api }}
            statseg {{ socket-name {folder}/stats size 32M page-size 4K }}
            memory {{ main-heap-size 512M main-heap-page-size 4K }}
            buffers {{ buffers-per-numa 32768 page-size 4K }}
            cpu {{ {own} }}
            plugins {{ path {plugins}:{plugins.parent}/vpp_crypto_engines plugin default {{ disable }} {enabled} }}
        """


def wait_for(is_true: Callable[[], bool], seconds: float, where: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, where()
        time.sleep(0.05)
