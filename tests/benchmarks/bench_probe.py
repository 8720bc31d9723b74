# SPDX-License-Identifier: Apache-2.0
"""The cost of a probe, beside the floor, in one run on one core.

Target: tests/targets/leaves.c on one CPU: 100 leaf functions of ten instructions, called in turn. Floor: the
same functions with two time stamps and two 16-byte records written by hand, undrained. Ours: the unmodified
functions, probed while they run, drained by a real monitor on another CPU, by each strategy. Peer: eBPF at the same
functions (uprobe_peer.py). Prints ticks per call (medians of interleaved rounds) and writes them as JSON for the
README's cost table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from uprobe_peer import find_offsets, uprobes

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.strategies import STRATEGIES
from otel_nfprobe.summary import summarise
from otel_nfprobe.target import Target

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "leaves.c"
MEASURE_S = 0.4
PEER_ROUNDS = 3


# What eBPF costs depends on how a function begins: the kernel does a push by itself; for most other instructions it has
# the processor make a single step.
PEERS = {"push": "functions that begin with a push", "bare": "functions that begin otherwise"}
# strategy: (what the target calls, which functions are probed)
FAMILIES = {
    "in-stack": ("bare", "leaves:leaf*"),
    "relocated": ("bare", "leaves:leaf*"),
    "copied": ("many", "leaves:many*"),
    "got": ("slots", "libslots.so:slot*"),
    "entry": ("bare", "leaves:leaf*"),
}


class Leaves:
    """The target, driven through its pipes."""

    def __init__(self, folder: str, cpu: int) -> None:
        self.binary, library = Path(folder) / "leaves", Path(folder) / "libslots.so"
        compile_c = ["gcc", "-std=gnu11", "-O2", str(SOURCE)]
        subprocess.run([*compile_c, "-shared", "-fPIC", "-DSLOTS", "-o", str(library)], check=True)
        subprocess.run([*compile_c, "-o", str(self.binary), str(library), f"-Wl,-rpath,{folder}"], check=True)
        self.process = subprocess.Popen(
            ["taskset", "-c", str(cpu), str(self.binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ask(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ticks(self, what: str) -> float:
        self.ask(what)
        return float(self._answer())

    def read_ticks(self) -> float:
        return float(self._answer())


def measure_probed(leaves: Leaves, strategy: str) -> float:
    """Median ticks of a call while its functions are probed."""
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    monitor = Monitor(target, choose(target, None, [glob], [], strategy), 16 << 20, "none", print)
    monitor.attach()
    monitor.start(Clock.start(), None, None)
    leaves.ask(family)
    monitor.run(MEASURE_S, lambda: None)
    ticks = leaves.read_ticks()
    monitor.detach()
    summary = summarise(monitor)
    monitor.close()
    lost, unpaired = summary["records"]["lost"], summary["unpaired"]  # type: ignore[index]
    if any(lost.values()) or any(unpaired.values()):
        print(f"note: lost {lost}, unpaired {unpaired}", file=sys.stderr)
    return ticks


def measure_peer(leaves: Leaves, family: str) -> float:
    """Median ticks of a call with eBPF at its entry and exit; not a number where the kernel has no uprobes."""
    offsets = find_offsets(leaves.binary, "leaf" if family == "bare" else family)
    try:
        with uprobes(leaves.process.pid, leaves.binary, offsets):
            return leaves.ticks(family)
    except OSError as error:
        print(f"note: no uprobes: {error.strerror}", file=sys.stderr)
        return float("nan")


def measure(leaves: Leaves, rounds: int) -> dict[str, float]:
    """Ticks that each strategy, the floor and the peer add to a call."""
    peers = {family: f"peer {family}" for family in PEERS}
    added: dict[str, list[float]] = {name: [] for name in ("bare", "floor", *FAMILIES, *peers.values())}
    for _ in range(rounds):
        without = {family: leaves.ticks(family) for family in ("bare", "many", "slots", "push")}
        added["bare"].append(without["bare"])
        added["floor"].append(leaves.ticks("floor") - without["bare"])
        for strategy, (family, _) in FAMILIES.items():
            added[strategy].append(measure_probed(leaves, strategy) - without[family])
    for _ in range(PEER_ROUNDS):  # at the end: what the kernel leaves behind in these functions costs our probes 15 %
        for family, name in peers.items():
            added[name].append(measure_peer(leaves, family) - without[family])
    return {name: statistics.median(values) for name, values in added.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[0]})
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(folder, cpus[-1])
        added = measure(leaves, arguments.rounds)
        leaves.ask("quit")
        leaves.process.wait()
    ns_per_tick = 1e9 / Clock.start().ticks_per_second
    rows = {"unprobed call": added["bare"], "floor: two time stamps, two records, by hand, undrained": added["floor"]}
    rows |= {f"{STRATEGIES[name]}, unmodified running code, drained": added[name] for name in FAMILIES}
    peers = {about: added[f"peer {family}"] for family, about in PEERS.items()}
    peers = {about: ticks for about, ticks in peers.items() if not math.isnan(ticks)}
    rows |= {f"peer: eBPF, uprobe and uretprobe, {about}": ticks for about, ticks in peers.items()}
    for name, ticks in rows.items():
        is_ratio = name.endswith("drained") or name.startswith("peer")
        ratio = f"{ticks / added['floor']:7.3f} x the floor" if is_ratio else ""
        print(f"{name:60} {ticks:7.1f} ticks  {ticks * ns_per_tick:6.1f} ns {ratio}")
    if arguments.json:
        strategies = {name: added[name] for name in FAMILIES}
        figures = {
            "floor_ticks": added["floor"],
            "probe_ticks": added["in-stack"],
            "strategies": strategies,
            "peers": peers,
            "ns_per_tick": ns_per_tick,
        }
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
