# SPDX-License-Identifier: Apache-2.0
"""Who is blamed for late packets of a chain of real programs: dpdk-testpmd sends to Open vSwitch over a wire.

A random one of the two is disturbed at random times: another task takes its processor (an interrupt, as in Microscope's
experiment), or it is stopped while it sends (a function that is slow for once). Whoever does it writes down when; of
packets beyond the 99th percentile those are judged whose delay that log explains. The baseline is what the recording of
the function in which a packet was late says alone. Bursts and slow flows are in bench_chain only: from outside of a
real program nobody knows how long they last.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from otel_nfprobe.report.why import WhyRequest
from tests.benchmarks.rounds import make_parser, write_figures
from tests.support.ovs_dpdk import OvsDpdk
from tests.support.wired_chain import KINDS, ChainVerdict, WiredChain, disturb, judge_by_kind

NAMES = {"preemption": "another task takes the processor", "stop": "stopped while it sends"}


def run(binary: str, seconds: float, seed: int) -> dict[str, ChainVerdict]:
    with tempfile.TemporaryDirectory() as folder:
        chain = WiredChain(binary, Path(folder))
        try:
            chain.sender.start()
            paths = chain.attach()
            faults = disturb(chain, seconds, seed)
            chain.detach()
        finally:
            chain.stop()
        return judge_by_kind(paths, faults, WhyRequest())


def measure(binary: str, runs: int, seconds: float) -> dict[str, Any]:
    total = {kind: ChainVerdict() for kind in (*KINDS, "")}
    for seed in range(runs):
        for kind, found in run(binary, seconds, seed).items():
            total[kind].add(found)
        print(f"run {seed + 1} of {runs}", flush=True)
    everything = ChainVerdict()
    for found in total.values():
        everything.add(found)
    rows = [{"fault": NAMES[kind], **_describe(total[kind])} for kind in KINDS]
    return {
        "faults": [*rows, {"fault": "all", **_describe(everything)}],
        "late": everything.late,
        "mistakes": dict(everything.mistakes),
        "runs": runs,
        "seconds": seconds,
    }


def _describe(verdict: ChainVerdict) -> dict[str, int]:
    return {
        "packets": verdict.covered,
        "right": verdict.right,
        "right_function": verdict.right_nf,
        "local": verdict.local,
        "local_function": verdict.local_nf,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each run")
    arguments = parser.parse_args()
    binary = shutil.which("dpdk-testpmd")
    if binary is None or not OvsDpdk.is_installed():
        raise SystemExit("dpdk-testpmd or Open vSwitch with DPDK is not installed: scripts/set-up test")
    found = measure(binary, *((1, 2.0) if arguments.short else (arguments.runs, arguments.seconds)))
    for row in found["faults"]:
        print(json.dumps(row), flush=True)
    print(f"{found['late']:,} late packets; wrong: {found['mistakes']}", flush=True)
    write_figures(arguments.json, found)


if __name__ == "__main__":
    main()
