# SPDX-License-Identifier: Apache-2.0
"""DPDK's own l3fwd, built from the sources that Debian ships, fed from a pipe in place of a NIC."""

from __future__ import annotations

import array
import fcntl
import os
import shutil
import subprocess
import termios
import time
from collections.abc import Callable, Iterable
from pathlib import Path

SOURCES = Path("/usr/share/dpdk/examples")
# The others are included by these.
FILES = ("main", "l3fwd_acl", "l3fwd_em", "l3fwd_fib", "l3fwd_lpm", "l3fwd_event", "l3fwd_event_generic",
         "l3fwd_event_internal_port")  # fmt: skip
# A capture file cannot check checksums as a NIC does, and l3fwd ends when its port cannot.
NEEDS_A_NIC, WITHOUT = ".offloads = RTE_ETH_RX_OFFLOAD_CHECKSUM,", ".offloads = 0,"
PIPE_BYTES = 1 << 20
PATIENCE_S = 120
LOOK_S = 0.02


def build_l3fwd(folder: Path) -> Path:
    """Compiles l3fwd, once.

    Raises:
        SystemExit: what it needs is not installed.
    """
    program = folder / "l3fwd"
    if program.exists():
        return program
    if not (SOURCES / "l3fwd" / "main.c").exists() or not shutil.which("pkg-config"):
        raise SystemExit("l3fwd's sources are not here.\nnext: apt-get install dpdk-doc libdpdk-dev pkg-config gcc")
    copy = folder / "sources"
    shutil.copytree(SOURCES / "l3fwd", copy, dirs_exist_ok=True)
    main = copy / "main.c"
    main.write_text(main.read_text().replace(NEEDS_A_NIC, WITHOUT))
    flags = {
        kind: subprocess.run(["pkg-config", kind, "libdpdk"], capture_output=True, text=True, check=True).stdout.split()
        for kind in ("--cflags", "--libs")
    }
    words = ["gcc", "-O2", "-w", "-DALLOW_EXPERIMENTAL_API", f"-I{SOURCES / 'common'}", *flags["--cflags"]]
    words += [str(copy / f"{name}.c") for name in FILES]
    subprocess.run([*words, "-o", str(program), *flags["--libs"]], check=True)
    return program


class Forwarder:
    """A running l3fwd that looks each packet up in its rules; it waits until it is fed.

    Args:
        program: l3fwd.
        folder: for its pipe and what it says.
        rules: files for IPv4 and IPv6.

    Raises:
        SystemExit: it does not start; the message says what it said.
    """

    def __init__(self, program: Path, folder: Path, rules: tuple[Path, Path]) -> None:
        path, self._log = folder / "packets.pcap", folder / "l3fwd.log"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR)  # opening waits for nobody
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        words = [str(program), "--lcores", f"0@({cpus})", "--no-huge", "-m", "512", "--no-pci", "--no-telemetry"]
        words += [f"--file-prefix=locality{os.getpid()}"]
        words += [f"--vdev=net_pcap0,rx_pcap={path},tx_pcap=/dev/null", "--vdev=net_pcap1,tx_pcap=/dev/null", "--"]
        words += ["-p", "3", "-P", "--config=(0,0,0)", "--parse-ptype", "--lookup=acl"]
        words += [f"--rule_ipv4={rules[0]}", f"--rule_ipv6={rules[1]}"]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Hands over a part of a capture file; its header comes first."""
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[os.write(self._pipe, left) :]

    def wait_until_it_forwards(self) -> None:
        """Waits until its main loop runs; it needs the file's header to get there."""
        self._wait(lambda: b"entering main loop" in self._log.read_bytes())

    def wait_until_it_has_read_all(self) -> None:
        """Waits until nothing is left in the pipe."""
        left = array.array("i", [0])

        def is_empty() -> bool:
            fcntl.ioctl(self._pipe, termios.FIONREAD, left)
            return left[0] == 0

        self._wait(is_empty)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("l3fwd did not run:\n" + self._log.read_text(errors="replace")[-2000:])
            time.sleep(LOOK_S)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._pipe)
