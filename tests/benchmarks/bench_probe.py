# SPDX-License-Identifier: Apache-2.0
"""The cost of a probe, beside the floor, in one run on one core.

Target: tests/targets/leaves.c on one CPU: 100 leaf functions of ten instructions, called in turn. Floor: the
same functions with two time stamps and two 16-byte records written by hand, undrained. Ours: the unmodified
functions, probed while they run, drained by a real monitor on another CPU, by each strategy. Peer: eBPF at the same
functions (uprobe_peer.py). Prints ticks per call: medians of interleaved rounds, with quartiles.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.measured_session import Session, attached
from tests.benchmarks.rounds import NO_FIGURE, Spread, find_cpus, lost, make_parser, spread, write_figures
from tests.benchmarks.uprobe_peer import find_offsets, uprobes

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "leaves.c"
MEASURE_S = 0.4
RING_BYTES = 16 << 20
ROUNDS, PEER_ROUNDS = 7, 3
PEER_FUNCTIONS, PEER_FUNCTIONS_SHORT = 100, 5  # putting a uprobe in place takes the kernel long


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


def compile_leaves(folder: Path, name: str = "leaves", compiler: Sequence[str] = ("gcc",)) -> Path:
    """Builds the target and the library that it calls, as a compiler with these options does. Returns the program."""
    binary, library = folder / name, folder / "libslots.so"
    if not library.exists():
        words = ["gcc", "-std=gnu11", "-O2", str(SOURCE), "-shared", "-fPIC", "-DSLOTS", "-o", str(library)]
        subprocess.run(words, check=True)
    words = [*compiler, "-std=gnu11", "-O2", str(SOURCE), "-o", str(binary), str(library), f"-Wl,-rpath,{folder}"]
    subprocess.run(words, check=True)
    return binary


class Leaves:
    """The target, driven through its pipes.

    Args:
        cpu: where it runs.
        launcher: words before the command, of what starts it; this stays on the CPUs that it has.
    """

    def __init__(
        self, binary: Path, cpu: int, launcher: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.binary = binary
        self.process = subprocess.Popen(
            [*launcher, str(binary)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()
        self.pid = self._find_pid()
        os.sched_setaffinity(self.pid, {cpu})

    def _find_pid(self) -> int:
        """Of the target, which is a child of its launcher."""
        waiting = [self.process.pid]
        for pid in waiting:
            if os.path.samefile(f"/proc/{pid}/exe", self.binary):
                return pid
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += map(int, (task / "children").read_text().split())
        raise AssertionError(f"{self.binary.name} does not run")

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


@contextmanager
def running_leaves(is_short: bool) -> Iterator[Leaves]:
    """The target on a CPU of its own; what runs here from now on is on another one."""
    own, theirs = find_cpus(is_short)
    os.sched_setaffinity(0, {own})
    with tempfile.TemporaryDirectory() as folder:
        leaves = Leaves(compile_leaves(Path(folder)), theirs)
        try:
            yield leaves
        finally:
            leaves.process.kill()
            leaves.process.wait()


def measure_probed(leaves: Leaves, strategy: str) -> float:
    """Median ticks of a call while its functions are probed; not a number where records were lost."""
    family, glob = FAMILIES[strategy]
    target = Target(leaves.process.pid)
    choice = choose(target, None, [glob], [], strategy)
    with attached(target, choice, Session(RING_BYTES, NONE)) as monitor:
        leaves.ask(family)
        monitor.run(MEASURE_S, lambda: None)
        ticks = leaves.read_ticks()
        monitor.drain.run_dry()
        return NO_FIGURE if lost(monitor) else ticks


def measure_peer(leaves: Leaves, family: str, functions: int) -> float:
    """Median ticks of a call with eBPF at its entry and exit; not a number where the kernel has no uprobes."""
    offsets = find_offsets(leaves.binary, "leaf" if family == "bare" else family)[:functions]
    try:
        with uprobes(leaves.process.pid, leaves.binary, offsets):
            return leaves.ticks(family)
    except OSError as error:
        print(f"note: no uprobes: {error.strerror}", file=sys.stderr)
        return NO_FIGURE


def measure(leaves: Leaves, rounds: int, peer_rounds: int, peer_functions: int) -> dict[str, Spread]:
    """Ticks of a call without probes, and what each strategy, the floor and the peer add to it."""
    peers = {family: f"peer {family}" for family in PEERS}
    added: dict[str, list[float]] = {name: [] for name in ("bare", "floor", *FAMILIES, *peers.values())}
    for _ in range(rounds):
        without = {family: leaves.ticks(family) for family in ("bare", "many", "slots", "push")}
        added["bare"].append(without["bare"])
        added["floor"].append(leaves.ticks("floor") - without["bare"])
        for strategy, (family, _) in FAMILIES.items():
            added[strategy].append(measure_probed(leaves, strategy) - without[family])
    for _ in range(peer_rounds):  # at the end: what the kernel leaves behind in these functions costs our probes 15 %
        for family, name in peers.items():
            added[name].append(measure_peer(leaves, family, peer_functions) - without[family])
    return {name: spread(values) for name, values in added.items()}


def show(name: str, ticks: Spread, ns_per_tick: float, floor: Spread | None) -> None:
    """Prints one row."""
    ratio = f" {ticks.median / floor.median:7.3f} x the floor" if floor else ""
    print(
        f"{name:60} {ticks.median:7.1f} ticks ({ticks.low:.1f} .. {ticks.high:.1f})"
        f"  {ticks.median * ns_per_tick:6.1f} ns{ratio}{ticks.describe_dropped()}"
    )


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    extent = (1, 1, PEER_FUNCTIONS_SHORT) if arguments.short else (arguments.rounds, PEER_ROUNDS, PEER_FUNCTIONS)
    with running_leaves(arguments.short) as leaves:
        added = measure(leaves, *extent)
    ns_per_tick, floor = 1e9 / Clock.start().ticks_per_second, added["floor"]
    show("unprobed call", added["bare"], ns_per_tick, None)
    show("floor: two time stamps, two records, by hand, undrained", floor, ns_per_tick, None)
    for name in FAMILIES:
        show(f"{STRATEGIES[name]}, unmodified running code, drained", added[name], ns_per_tick, floor)
    peers = {about: added[f"peer {family}"] for family, about in PEERS.items() if added[f"peer {family}"].rounds}
    for about, ticks in peers.items():
        show(f"peer: eBPF, uprobe and uretprobe, {about}", ticks, ns_per_tick, floor)
    strategies = {name: added[name] for name in FAMILIES}
    figures = {"bare": added["bare"], "floor": floor, "strategies": strategies, "peers": peers}
    write_figures(arguments.json, {**figures, "ns_per_tick": ns_per_tick})


if __name__ == "__main__":
    main()
