# SPDX-License-Identifier: Apache-2.0
"""DPDK's own example programs, compiled unmodified, as the tests run them: no NIC, no huge pages.

Their packets come from a named pipe in place of a capture file: the test decides when they come. The programs'
telemetry is the oracle.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import shutil
import socket
import subprocess
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

SOURCES = Path("/usr/share/dpdk/examples")
TELEMETRY = "/var/run/dpdk/{}/dpdk_telemetry.v2"
PATIENCE_S = 120
OPEN_CALL_NS = 5_000_000  # processor time in which any call that only polls ends
BURST = 32  # packets that each of these programs asks for in one call
# What a static l2fwd needs; whole, because drivers and log types register themselves.
STATIC_LIBRARIES = (
    "net_pcap", "net_null", "bus_vdev", "mempool_ring", "ethdev", "mbuf", "mempool", "net", "meter",
    "telemetry", "kvargs", "ring", "rcu", "hash", "eal",
)  # fmt: skip


def examples_are_installed() -> bool:
    return (SOURCES / "l2fwd").is_dir() and shutil.which("pkg-config") is not None


def _dpdk_flags(*words: str) -> list[str]:
    done = subprocess.run(["pkg-config", *words, "libdpdk"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def build_example(folder: Path, name: str, static: bool = False) -> Path:
    """Compiles one example program, once: with DPDK as libraries, or all in one file without an exported name."""
    program = folder / (f"{name}-static" if static else name)
    if program.exists():
        return program
    sources = sorted(str(source) for source in (SOURCES / name).glob("*.c"))
    words = ["gcc", "-O2" if name != "ip_pipeline" else "-O0", "-w", "-DALLOW_EXPERIMENTAL_API"]
    words += [*_dpdk_flags("--cflags"), *sources, "-o", str(program)]
    if static:
        hidden = folder / "hidden.map"
        hidden.write_text("{ local: *; };\n")
        archives = [f"-l:librte_{library}.a" for library in STATIC_LIBRARIES]
        words += [f"-Wl,--version-script={hidden}", "-Wl,--whole-archive", *archives, "-Wl,--no-whole-archive"]
        words += ["-lpcap", "-lnuma", "-lbsd", "-lm", "-ldl", "-pthread", "-latomic"]
    else:
        words += _dpdk_flags("--libs")
    subprocess.run(words, check=True)
    return program


def wait_until_said(monitor: subprocess.Popen[str], text: str) -> str:
    """Reads what nfprobe says until a line holds the text; returns that line."""
    assert monitor.stderr is not None
    lines: list[str] = []
    for line in monitor.stderr:
        lines.append(line)
        if text in line:
            return line
    raise AssertionError(f"nfprobe did not say {text!r}: {lines}")


def _state(task: Path) -> str:
    """Its letter; "X", dead, of a thread that is gone: those that answer telemetry end with their client."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _has_run_on(task: Path, until_ns: int) -> bool:
    """Whether it has used so much processor time, or is gone."""
    try:
        return int((task / "schedstat").read_text().split()[0]) > until_ns
    except OSError:
        return True


class Example:
    """A running example program with two ports: packets come to the first; what is sent goes nowhere.

    Args:
        program: the executable.
        folder: for its pipe and its output.
        prefix: EAL file prefix, unique among running ones.
        options: its own options.
        infinite: a capture file that is played for ever, in place of the pipe.
        lcores: number of its threads.
        devices: further virtual devices.
        memory_mib: for its packets.
        sent: file that the second port writes what it sends into.
    """

    def __init__(
        self,
        program: Path,
        folder: Path,
        prefix: str,
        options: Sequence[str] = (),
        infinite: Path | None = None,
        lcores: int = 2,
        devices: Sequence[str] = (),
        memory_mib: int = 256,
        sent: Path | str = "/dev/null",
    ) -> None:
        self.prefix = prefix
        self._pipe_path, self._log = folder / f"{prefix}.pcap", folder / f"{prefix}.log"
        self._pipe: int | None = None
        if infinite is None:
            os.mkfifo(self._pipe_path)
            self._pipe = os.open(self._pipe_path, os.O_RDWR)  # opening waits for nobody
        source = f"{infinite},infinite_rx=1" if infinite else str(self._pipe_path)
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        words = [
            str(program),
            "--lcores",
            ",".join(f"{lcore}@({cpus})" for lcore in range(lcores)),
            "--no-huge",
            "-m",
            str(memory_mib),
            "--no-pci",
            f"--file-prefix={prefix}",
        ]
        words += [f"--vdev={device}" for device in devices]
        words += [f"--vdev=net_pcap0,rx_pcap={source},tx_pcap=/dev/null", f"--vdev=net_pcap1,tx_pcap={sent}"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*words, "--", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def feed(self, content: bytes) -> None:
        """Writes a part of a capture file into the pipe; the first part is the file's header."""
        assert self._pipe is not None
        while content:
            content = content[os.write(self._pipe, content[: 1 << 16]) :]

    def end_of_packets(self) -> None:
        """No more packets will come: receive calls return at once from now on."""
        assert self._pipe is not None
        os.close(self._pipe)
        self._pipe = None

    def wait_until_it_receives(self) -> None:
        """Waits until it is inside its first receive call: it has read the header and waits for packets."""
        self._wait(self._waits_for_packets)

    def wait_until_open_calls_ended(self) -> None:
        """Waits until each thread that polls has run on: calls that were open when probes came are not measured.

        A thread may have lost its processor inside such a call, and go on there when its first packets have come. What
        sleeps again does not poll: it ran for a moment, because the attach had woken it.
        """
        polling = [task for task in Path(f"/proc/{self.pid}/task").iterdir() if _state(task) == "R"]
        ends = {}
        for task in polling:
            with suppress(OSError):  # it may just have ended
                ends[task] = int((task / "schedstat").read_text().split()[0]) + OPEN_CALL_NS
        self._wait(lambda: all(_state(task) == "S" or _has_run_on(task, end) for task, end in ends.items()))

    def wait_until_it_forwards(self) -> None:
        """Waits until it has transmitted something."""
        self._wait(lambda: self.counters()[1] > 0)

    def _waits_for_packets(self) -> bool:
        assert self._pipe is not None
        left = array.array("i", [0])
        fcntl.ioctl(self._pipe, termios.FIONREAD, left)
        if left[0]:
            return False
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            words = (task / "syscall").read_text().split()
            if words[0] == "0":  # read
                link = os.readlink(f"/proc/{self.pid}/fd/{int(words[1], 16)}")
                if link == str(self._pipe_path):
                    return True
        return False

    def wait_for_packets(self, received: int, transmitted: int) -> None:
        """Waits until its ports have received and transmitted exactly so many."""
        self._wait(lambda: self.counters() == (received, transmitted))

    def counters(self) -> tuple[int, int]:
        """Packets that its ports have received and transmitted."""
        ports = [self._ask(f"/ethdev/stats,{port}")["/ethdev/stats"] or {} for port in (0, 1)]
        return sum(port.get("ipackets", 0) for port in ports), sum(port.get("opackets", 0) for port in ports)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with suppress(FileNotFoundError, ProcessLookupError, ConnectionError):
                if condition():
                    return
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, (self._log.read_text(), self.counters())
            time.sleep(0.02)

    def _ask(self, command: str) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(TELEMETRY.format(self.prefix))
            if not client.recv(1 << 16):  # the threads of ten earlier questions have not ended yet
                raise ConnectionError("turned away")
            client.send(command.encode())
            answer: dict[str, Any] = json.loads(client.recv(1 << 20))
            return answer

    def stop(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self.process.kill()
        self.process.wait()
