# SPDX-License-Identifier: Apache-2.0
"""Who is blamed for late packets of a chain of three network functions into which faults are put at random.

The experiment of Microscope (SIGCOMM 2020): interrupts, bursts, a slow flow and a slow function, each put into a random
function at a random time. The chain is simulated packet by packet and written as recordings, so that it is known of
each packet what delayed it; what is measured is the reading of recordings, their joining and the following of delays.
The baseline is what the recording of the function in which a packet was late says alone.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.chains.follow import BETWEEN, Culprit
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.report.why import ChainAnalysis, WhyRequest, analyse_chain
from tests.benchmarks.rounds import make_parser, write_figures
from tests.support.simulated_chain import START_NS, Nf, Packet, arrive, run, write

NFS = (("firewall", 300), ("nat", 400), ("switch", 600))  # and how many ns each works on a packet
LATE_NS = 300_000  # several times what a packet takes where nothing was put in
EVERY_NS = 1000  # a packet arrives, on average
QUIET_NS = 8_000_000  # between two faults: long enough for all queues to become empty
KINDS = {
    "interrupt": {CauseKind.PREEMPTION, CauseKind.INTERRUPT},
    "burst": {CauseKind.BURST, CauseKind.BATCHING},
    "slow flow": {CauseKind.OWN, CauseKind.QUEUE},
    "slow function": {CauseKind.OWN, CauseKind.QUEUE},
}
CLOCK_START_NS = 500_000_000  # of the simulation's first moment, beyond START_NS


@dataclass(frozen=True)
class Injected:
    """One fault: in which function, what, from when, and how long, in ns of the simulation."""

    nf: str
    kind: str
    start_ns: int
    length_ns: int


def inject(nfs: Sequence[Nf], packets: Sequence[Packet], count: int, rng: random.Random) -> list[Injected]:
    """Chooses faults and puts them into the functions and the traffic."""
    faults = []
    for number in range(count):
        start = round((number + rng.uniform(0.1, 0.3)) * QUIET_NS)
        kind, nf = rng.choice(list(KINDS)), rng.choice(nfs)
        length = rng.randrange(700_000, 1_500_000)
        if kind == "interrupt":
            nf.taken = [*nf.taken, (start, length)]
        elif kind == "slow function":
            nf.stalls = [*nf.stalls, (start, length)]
        elif kind == "slow flow":
            length *= 2
            nf.slow = [*nf.slow, (start, length)]
        else:
            nf = nfs[0]
            for packet in packets:
                packet.at_ns = start if start <= packet.at_ns < start + length else packet.at_ns
        faults.append(Injected(nf.name, kind, start, length))
    return faults


def simulate(folder: Path, count: int, seed: int) -> tuple[list[Path], list[Injected]]:
    """Runs the chain once; returns the recordings, and what was put into it."""
    rng = random.Random(seed)
    nfs = [Nf(name, work_ns) for name, work_ns in NFS]
    packets: Sequence[Packet] = arrive(count * QUIET_NS // EVERY_NS, EVERY_NS, seed)
    faults = inject(nfs, packets, count, rng)
    for nf in nfs:
        packets = run(nf, packets)
    return [write(nf, folder / f"{nf.name}.nfp") for nf in nfs], faults


def judge(analysis: ChainAnalysis, faults: Sequence[Injected], counts: dict[str, dict[str, int]]) -> None:
    """Adds what is said of each late packet to the counts of the fault that delayed it."""
    ways = analysis.ways
    names = [recording.name for recording in analysis.recordings]
    for late in analysis.late.packets:
        end = int(ways.until_ns[ways.joined.first[late.packet + 1] - 1]) - START_NS - CLOCK_START_NS
        before = [fault for fault in faults if fault.start_ns <= end < fault.start_ns + QUIET_NS]
        if len(before) != 1:
            continue
        (fault,) = before
        row = counts[fault.kind]
        row["packets"] += 1
        for name, culprit in (("right", late.culprit), ("local", late.local)):
            is_there = culprit.kind != BETWEEN and names[culprit.recording] == fault.nf
            row[name] += is_there and _is_kind(culprit, fault, analysis)
            row[f"{name}_function"] += is_there


def _is_kind(culprit: Culprit, fault: Injected, analysis: ChainAnalysis) -> bool:
    if culprit.kind not in KINDS[fault.kind]:
        return False
    if not fault.kind.startswith("slow"):
        return True
    function = analysis.recordings[culprit.recording].facts.functions.get(culprit.function)
    return function is not None and function.name == f"{fault.nf}_work"


def measure(runs: int, faults: int) -> dict[str, Any]:
    counts = {
        kind: dict.fromkeys(("packets", "right", "right_function", "local", "local_function"), 0) for kind in KINDS
    }
    for seed in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            paths, injected = simulate(Path(folder), faults, seed)
            random.Random(seed).shuffle(paths)
            judge(
                analyse_chain([RecordingReader(path) for path in paths], WhyRequest(above_ns=LATE_NS)), injected, counts
            )
        print(f"run {seed + 1} of {runs}", flush=True)
    rows: list[dict[str, Any]] = [{"fault": kind, **found} for kind, found in counts.items()]
    total = {name: sum(int(row[name]) for row in rows) for name in rows[0] if name != "fault"}
    return {"faults": [*rows, {"fault": "all", **total}], "runs": runs, "faults_per_run": faults}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--faults", type=int, default=6, help="in each run")
    arguments = parser.parse_args()
    runs, faults = (1, 2) if arguments.short else (arguments.runs, arguments.faults)
    found = measure(runs, faults)
    for row in found["faults"]:
        print(json.dumps(row), flush=True)
    write_figures(arguments.json, found)


if __name__ == "__main__":
    main()
