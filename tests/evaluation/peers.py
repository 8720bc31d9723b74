# SPDX-License-Identifier: Apache-2.0
"""The tools that the evaluation has beside nfprobe: what each is, where it is from, and why it is missing here."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from tests.benchmarks.figure_tables import describe_machine
from tests.benchmarks.uprobe_peer import SOURCE as UPROBE_SOURCE

HARDWARE = "instructions,cycles"
TRACEFS = Path("/sys/kernel/tracing")
NUMBER = re.compile(r"\d+(\.\d+)+")


@dataclass(frozen=True)
class Peer:
    """A tool.

    Attributes:
        sign: the program or file that shows it is there.
        package: of Debian, which `scripts/set-up evaluate` installs.
        version: the command that says its version.
    """

    name: str
    sign: str
    package: str
    version: tuple[str, ...]

    def find_missing(self) -> str:
        """Why it cannot be had here; nothing: it can."""
        if shutil.which(self.sign) or Path(self.sign).exists():
            return ""
        return f"{self.sign} is not installed: scripts/set-up evaluate"

    def find_version(self) -> str:
        """Of what is installed."""
        done = subprocess.run(self.version, capture_output=True, text=True, check=False)
        found = NUMBER.search(done.stdout + done.stderr)
        return found[0] if found else "unknown"


class KernelUprobes(Peer):
    """Not a program: what the kernel offers, here with a BPF program of a few instructions (uprobe_peer.py)."""

    def find_missing(self) -> str:
        return "" if UPROBE_SOURCE.exists() else "this kernel has no event source of uprobes"

    def find_version(self) -> str:
        return f"Linux {platform.release().split('-')[0]}"


class PerfProbe(Peer):
    """perf, and the tracefs that it writes its probes into."""

    def find_missing(self) -> str:
        if not (TRACEFS / "uprobe_events").exists():
            return "this kernel has no uprobe_events in its tracefs"
        return super().find_missing()


class FridaPackage(Peer):
    """From PyPI, not from Debian."""

    def find_missing(self) -> str:
        if importlib.util.find_spec("frida") is None:
            return "the package frida is not installed: make evaluate-set-up"
        return ""

    def find_version(self) -> str:
        return importlib.metadata.version("frida")


UFTRACE = Peer("uftrace", "uftrace", "uftrace", ("uftrace", "--version"))
LTTNG = Peer(
    "LTTng-UST",
    "/usr/lib/x86_64-linux-gnu/liblttng-ust-cyg-profile-fast.so",
    "liblttng-ust-dev",
    ("lttng", "--version"),
)
XRAY = Peer(
    "XRay",
    "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.xray-x86_64.a",
    "libclang-rt-14-dev",
    ("clang", "--version"),
)
UPROBES = KernelUprobes("eBPF", "", "", ())
PERF = PerfProbe("perf probe", "perf", "linux-perf", ("perf", "--version"))
FRIDA = FridaPackage("Frida", "frida", "", ())
GDB = Peer("gdb", "gdb", "gdb", ("gdb", "--version"))
BPFTRACE = Peer("bpftrace", "bpftrace", "bpftrace", ("bpftrace", "--version"))
PRELOAD = Peer("wrappers to preload, by gcc", "gcc", "gcc", ("gcc", "--version"))
PEERS = (UFTRACE, LTTNG, XRAY, UPROBES, PERF, FRIDA, GDB, BPFTRACE, PRELOAD)
# What the published tables have beside it and nobody here can measure, each with its reason.
NEVER = {
    "LProfile": "its program was not published: its figures are quoted",
    "Dyninst, TAU, Score-P": "Debian 12 has no package of them",
    "Intel Pin": "it is neither in Debian nor in PyPI",
    "SystemTap": "it needs the headers of the kernel that runs, which a machine of the cloud does not have",
}


def describe() -> Mapping[str, str]:
    """Machine and versions, or why a tool is missing."""
    found = {"machine": describe_machine(), "Python": platform.python_version()}
    refusal = find_refusal(choose_counters(HARDWARE))
    found["counters of the processor"] = refusal.reason if refusal else HARDWARE
    for peer in PEERS:
        found[peer.name] = peer.find_missing() or peer.find_version()
    return found
