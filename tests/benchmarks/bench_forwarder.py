# SPDX-License-Identifier: Apache-2.0
"""What probes cost a forwarder, to a few nanoseconds on a machine that is not quiet (bench_testpmd.py: to a hundred).

Target: tests/targets/forwarders.c, one forwarder three times in one process: alone; with bare trampolines around its
receive, engine and transmit functions; with ours. They take turns of a tenth of a millisecond, so that what neighbours
do happens to all three. Rounds in which the first one was slower than usual are left out. Each setting in several
processes, for where memory happens to lie counts, too. Prints nanoseconds per batch of 32: medians over the processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_poll import build, start
from bench_testpmd import BareChoice, attached

from otel_nfprobe.adapters.base import RoleFunction
from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.latecapture import NONE, SLOW
from otel_nfprobe.target import Target

SOURCE = Path(__file__).resolve().parents[1] / "targets" / "forwarders.c"
BATCH, BATCHES, ROUNDS = 32, 64, 4096  # as in the target
RESULTS = np.dtype([("rounds", "<u8"), ("ticks", "<u8", (ROUNDS, 3))])
RING_BYTES = 16 << 20
SETTLE_S, DRAIN_S = 0.3, 0.05
UNDISTURBED = 1.1  # a round whose forwarder without probes took at most so many times what the quickest ones take
ROUNDS_MIN = 50
COPIES = "copied"  # slow, as if packets did not stay readable
Ticks = np.ndarray[tuple[int, int], np.dtype[np.float64]]  # per batch, by round and copy
KINDS = (NONE, SLOW, COPIES)
NAMES = ("bare", "probed")
DESCRIPTION = {
    "name": "forwarders",
    "recognise": {"executable": "forwarders", "exports": [f"{name}_receive" for name in NAMES]},
    "receive": [
        {"function": f"forwarders:{name}_receive", "pointers": 2, "requested": 3, "queue": 1, "count_bits": 16}
        for name in NAMES
    ],
    "transmit": [
        {"function": f"forwarders:{name}_transmit", "pointers": 2, "requested": 3, "count_bits": 16} for name in NAMES
    ],
    "buffer": {
        "data": 0,
        "data_offset": 8,
        "length": {"offset": 24, "bytes": 4},
        "segment_length": {"offset": 28, "bytes": 2},
    },
    "functions": [f"forwarders:{name}_forward" for name in NAMES],
}


class TrustedAdapter(DescribedAdapter):
    """Its programs are those that the adapters of DPDK make: not checked, of packets that stay readable or do not."""

    is_pooled = True

    def roles(self, target: Target) -> list[RoleFunction]:
        trusted = {"pooled": int(self.is_pooled), "checked": 0, "plain": 1}
        return [replace(role, program={**(role.program or {}), **trusted}) for role in super().roles(target)]


class HalfBareChoice(BareChoice):
    """Functions of the bare copy have the reference trampolines."""

    bare = "bare_"


class Forwarders:
    """The running target."""

    def __init__(self, binary: Path, cpu: int) -> None:
        self.process, self._results = start(binary, cpu, RESULTS, 1)

    def rounds(self) -> int:
        return int(self._results["rounds"][0])

    def batch_ticks(self) -> Ticks:
        """The last rounds."""
        ticks: Ticks = self._results["ticks"][0] / BATCHES
        return ticks


def measure(forwarders: Forwarders, kind: str) -> Ticks:
    """What the last rounds took while a monitor drains the probes."""
    target = Target(forwarders.process.pid)
    adapter = TrustedAdapter("forwarders.yaml", DESCRIPTION)
    adapter.is_pooled = kind != COPIES
    chosen = choose(target, adapter, [], [])
    choice = HalfBareChoice(chosen.adapter, chosen.roles, chosen.plans)
    assert len(choice.requests()) == 6, choice.refused
    packets = NONE if kind == NONE else SLOW
    with attached(target, choice, RING_BYTES, packets) as monitor:
        monitor.run(SETTLE_S, lambda: None)
        until = forwarders.rounds() + ROUNDS
        while forwarders.rounds() < until:
            monitor.drain.run_until(time.monotonic() + DRAIN_S)
        return forwarders.batch_ticks()


def run_process(binary: Path, cpus: Sequence[int]) -> dict[str, Ticks]:
    os.sched_setaffinity(0, set(cpus))
    forwarders = Forwarders(binary, cpus[-1])
    while not forwarders.rounds():
        time.sleep(0.01)
    os.sched_setaffinity(0, {cpus[0]})
    try:
        return {kind: measure(forwarders, kind) for kind in random.sample(KINDS, len(KINDS))}
    finally:
        forwarders.process.kill()
        forwarders.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        binary = build(SOURCE, Path(folder))
        measured = [run_process(binary, cpus) for _ in range(arguments.processes)]
    figures = summarise(measured, Clock.start().ticks_per_second / 1e9)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures) + "\n")


def summarise(measured: Sequence[dict[str, Ticks]], ticks_per_ns: float) -> dict[str, float]:
    """Prints and returns the figures."""
    alone = np.concatenate([ticks[:, 0] for process in measured for ticks in process.values()])
    usual = float(np.percentile(alone, 1))
    kept = alone <= UNDISTURBED * usual
    print(f"one batch of {BATCH} without probes: {usual / ticks_per_ns:,.0f} ns; {kept.mean():.0%} of all rounds count")
    figures = {"batch_ns": usual / ticks_per_ns}
    for kind in KINDS:
        rows = []
        for process in measured:
            ticks = process[kind][process[kind][:, 0] <= UNDISTURBED * usual] / ticks_per_ns
            if len(ticks) >= ROUNDS_MIN:
                rows.append(np.median(ticks[:, 1:] - ticks[:, :1], axis=0))
        if not rows:
            raise SystemExit(f"The machine was never quiet for {ROUNDS_MIN} rounds of one session: try again.")
        bare, probed = np.median(rows, axis=0)
        low, high = np.percentile([row[1] for row in rows], [25, 75])
        figures |= {f"{kind}_bare_ns": float(bare), f"{kind}_ns": float(probed)}
        print(
            f"  {kind:7} {probed:+7.1f} ns a batch (quartiles of {len(rows)} sessions {low:+.1f} .. {high:+.1f}),"
            f" bare trampolines in the same rounds {bare:+.1f}: {probed / bare:.2f} x"
        )
    for kind, name in ((SLOW, "from pools"), (COPIES, "by copying")):
        figures[f"{kind}_packet_ns"] = (figures[f"{kind}_ns"] - figures[f"{NONE}_ns"]) / BATCH
        print(f"  a packet that is not identified, {name}: {figures[f'{kind}_packet_ns']:+.2f} ns")
    return figures


if __name__ == "__main__":
    main()
