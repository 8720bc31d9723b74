# SPDX-License-Identifier: Apache-2.0
"""What probes cost while nothing arrives: an empty poll, and a function whose probe is closed by `--detail auto`.

Target: tests/targets/poller.c, one of whose polls in 128 returns something. Short interleaved rounds: nothing; bare
trampolines around its receive and transmit functions; ours; ours with eight inner functions, which `--detail auto`
closes. Prints ns per turn of its loop, which is one poll and one call of each inner function: medians of rounds.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.detail import Detail
from otel_nfprobe.monitor.latecapture import NONE, SLOW
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.measured_session import BareChoice, Session, attached
from tests.benchmarks.rounds import NO_FIGURE, find_cpus, lost, make_parser, spread, write_figures

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "poller.c"
TURNS, ROUNDS = 1000, 256
INNER = 8
RING_BYTES = 16 << 20
SETTLE_S, MEASURE_S = 0.05, 0.2
DESCRIPTION = {
    "name": "poller",
    "recognise": {"executable": "poller", "exports": ["poller_receive"]},
    "receive": [{"function": "poller:poller_receive", "pointers": 2, "requested": 3, "queue": 1, "count_bits": 16}],
    "transmit": [{"function": "poller:poller_transmit", "pointers": 2, "requested": 3, "count_bits": 16}],
    "buffer": {"data": 0, "length": {"offset": 8, "bytes": 4}, "segment_length": {"offset": 12, "bytes": 2}},
}


def build(source: Path, folder: Path) -> Path:
    """Compiles a target. Returns the program."""
    binary = folder / source.stem
    subprocess.run(["gcc", "-O2", "-g", "-rdynamic", "-pthread", "-o", binary, source], check=True)
    return binary


def start(
    binary: Path, cpu: int, row: np.dtype[Any], rows: int
) -> tuple[subprocess.Popen[bytes], np.ndarray[tuple[int], np.dtype[Any]]]:
    """Starts a target of tests/targets/results.h on one CPU. Returns it with what it writes, as it writes it."""
    results = binary.with_name("results")
    results.write_bytes(bytes(row.itemsize * rows))
    process = subprocess.Popen([binary, results], preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
    with results.open("rb") as file:
        return process, np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), row)


class Poller:
    """The running target."""

    def __init__(self, folder: Path, cpu: int) -> None:
        self.process, self._ticks = start(build(SOURCE, folder), cpu, np.dtype(np.uint64), ROUNDS)

    def turn_ticks(self) -> float:
        """The median of the last rounds, per turn."""
        return float(np.median(self._ticks)) / TURNS


@contextmanager
def running_poller(is_short: bool) -> Iterator[Poller]:
    """The target on a CPU of its own; what runs here from now on is on another one."""
    own, theirs = find_cpus(is_short)
    with tempfile.TemporaryDirectory() as folder:
        poller = Poller(Path(folder), theirs)
        os.sched_setaffinity(0, {own})
        try:
            yield poller
        finally:
            poller.process.kill()
            poller.process.wait()


def measure(poller: Poller, target: Target, choice: Choice | None, session: Session) -> float:
    """Not a number where records were lost."""
    if choice is None:
        time.sleep(SETTLE_S + MEASURE_S)
        return poller.turn_ticks()
    with attached(target, choice, session) as monitor:
        monitor.run(SETTLE_S + MEASURE_S, lambda: None)
        return NO_FIGURE if lost(monitor) else poller.turn_ticks()


def run(poller: Poller, rounds: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Ticks per turn, by round and kind."""
    target = Target(poller.process.pid)
    adapter = DescribedAdapter("poller.yaml", DESCRIPTION)
    ends = choose(target, adapter, [], [])
    inner = choose(target, adapter, ["poller:inner*"], [])
    assert len(inner.requests()) == len(ends.requests()) + INNER, inner.refused
    bare = BareChoice(ends.adapter, ends.roles, ends.plans)
    kinds: Sequence[tuple[Choice | None, Session]] = (
        (None, Session(RING_BYTES, NONE)),
        (bare, Session(RING_BYTES, NONE)),
        (ends, Session(RING_BYTES, NONE)),
        (ends, Session(RING_BYTES, SLOW)),
        (inner, Session(RING_BYTES, NONE, detail=Detail(None))),
    )
    return np.array([[measure(poller, target, *kind) for kind in kinds] for _ in range(rounds)])


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with running_poller(arguments.short) as poller:
        ticks = run(poller, 1 if arguments.short else arguments.rounds)
    turn, *kinds = (ticks / Clock.start().ticks_per_second * 1e9).T
    closed = spread((kinds[3] - kinds[1]) / INNER)
    alone = spread(turn)
    bare, none, slow = (spread(kind - turn) for kind in kinds[:3])
    print(f"a turn without probes: {alone.median:.1f} ns, one poll in it; of 128 polls one returns packets")
    for name, added in (("bare trampolines", bare), ("--packets none", none), ("--packets slow", slow)):
        ratio = "" if added is bare else f"   {added.median / bare.median:5.2f} x bare"
        quartiles = f"({added.low:+.1f} .. {added.high:+.1f})"
        print(f"  {name:20} {added.median:+6.1f} ns a poll {quartiles}{ratio}{added.describe_dropped()}")
    quartiles = f"({closed.low:+.2f} .. {closed.high:+.2f})"
    print(f"  --detail auto, a closed probe {closed.median:+6.2f} ns a call {quartiles}{closed.describe_dropped()}")
    figures = {"turn_ns": alone, "bare_ns": bare, "none_ns": none, "slow_ns": slow, "closed_ns": closed}
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
