#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same packets in another order: what a batch takes in L3FWD with 3,000 five-tuple rules, by how many packets
of a flow come back to back (LProfile's second case). See README.md."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from forwarder import Forwarder, build_l3fwd
from measured import ROOT, find_nfprobe, print_table, read_report, show
from traffic import FILE_HEADER, make_capture, make_flows, order, write_rules

LOOKUP = "librte_acl*:rte_acl_classify_*"  # one for each instruction set; l3fwd uses the widest that there is
SLF = (1, 2, 4, 8, 16, 32, 64)
PMU = Path("/sys/bus/event_source/devices")


def main() -> int:
    """Measures each order and prints a row for each."""
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    flows = make_flows(options.rules, options.seed)
    captures = {
        slf: list(make_capture(flows, order(len(flows), options.packets_per_flow, slf, options.seed)))
        for slf in options.slf
    }
    found: dict[int, list[dict[str, Any]]] = {slf: [] for slf in captures}
    forwarder = Forwarder(build_l3fwd(options.folder), options.folder, write_rules(options.folder, flows))
    try:
        forwarder.feed([FILE_HEADER])
        forwarder.wait_until_it_forwards()
        for _ in range(options.rounds):
            for slf, packets in captures.items():
                found[slf].append(describe(slf, measure(forwarder, packets, options.folder / f"slf{slf}.nfprobe")))
    finally:
        forwarder.end()
    rows = [sorted(rounds, key=lambda row: row["work_ns"])[len(rounds) // 2] for rounds in found.values()]
    (options.folder / "locality.json").write_text(json.dumps(rows))
    print_rows(rows)
    if not any(PMU.glob("cpu*")):
        print("\nNo counters: this machine has no performance monitoring unit; the times are measured without.")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=3000, help="and flows (default: %(default)s)")
    parser.add_argument("--packets-per-flow", type=int, default=64, help="default: %(default)s")
    parser.add_argument(
        "--slf", type=int, nargs="+", default=SLF, help="packets of a flow back to back (default: 1 to 64)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="of which the middle one counts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of flows and orders (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "locality", help="for what it makes")
    options = parser.parse_args()
    if any(slf < 1 or options.packets_per_flow % slf for slf in options.slf):
        parser.error("--slf: numbers that divide --packets-per-flow")
    return options


def measure(forwarder: Forwarder, packets: list[bytes], recording: Path) -> Path:
    """Forwards the packets under nfprobe, which comes before the first one and leaves after the last one."""
    words = ["attach", str(forwarder.process.pid), "--packets", "none", "--functions", LOOKUP]
    words += ["--ring-size", "64MiB", "--record", str(recording)]
    show(words)
    monitor = subprocess.Popen([*find_nfprobe(), *words], stderr=subprocess.PIPE, text=True)
    assert monitor.stderr is not None
    said = []
    for line in monitor.stderr:
        said.append(line)
        if "attached to" in line:
            break
    if monitor.poll() is None:
        forwarder.feed(packets)
        forwarder.wait_until_it_has_read_all()
        monitor.send_signal(signal.SIGINT)
    _, rest = monitor.communicate()
    if monitor.returncode:
        raise SystemExit("".join(said) + rest)
    return recording


def describe(slf: int, recording: Path) -> dict[str, Any]:
    """One row: medians of a batch, of the lookup in it, and of what receives and transmits."""
    report = read_report(recording, "--slowest", 0)
    called = [function for function in report["functions"] if function["calls"]]
    lookup = max((function for function in called if "classify" in function["name"]), key=_calls)
    receive, transmit = (
        max((function for function in called if word in function["name"]), key=_calls) for word in ("_rx", "_tx")
    )
    medians = {
        name: int(of["p50_ns"]) for name, of in (("lookup", lookup), ("receive", receive), ("transmit", transmit))
    }
    batch_ns = int(report["batches"]["latency_ns"]["p50"])
    return {
        "slf": slf,
        "batches": report["batches"]["count"],
        "packets": report["packets"]["received"],
        "lookup": lookup["name"],
        "batch_ns": batch_ns,
        "work_ns": batch_ns - medians["receive"] - medians["transmit"],
        **{f"{name}_ns": median for name, median in medians.items()},
    }


def _calls(function: dict[str, Any]) -> int:
    return int(function["calls"])


def print_rows(rows: list[dict[str, Any]]) -> None:
    """The table, in us."""
    table = [["SLF", "batches", "batch", "receive", "transmit", "between them", "lookup"]]
    for row in rows:
        times = [row[f"{name}_ns"] / 1000 for name in ("batch", "receive", "transmit", "work", "lookup")]
        table.append([str(row["slf"]), f"{row['batches']:,}", *(f"{time:.2f}" for time in times)])
    print(f"{rows[0]['packets']:,} packets; medians in us; the lookup is {rows[0]['lookup']}\n")
    print_table(table)


if __name__ == "__main__":
    sys.exit(main())
