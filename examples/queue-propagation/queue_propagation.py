#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A packet that was late because of another packet: what functions take (LProfile's Table 6), and what happened
around the latest packet that an earlier batch kept waiting (its Figure 13). See README.md."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measured import ROOT, build_firewall, print_table, read_report, run_nfprobe

DESCRIPTION = ROOT / "examples" / "firewall" / "firewall.yaml"
LATE = 200  # packets, of as many batches, that are looked at
SETTLED = 0.1  # of the batches: in the first ones memory is touched for the first time
BAR_COLUMNS = 60
CALLS_SHOWN = 8  # of a batch, the longest


def main() -> int:
    """Measures, prints, and returns 1 when no packet waited for a function of an earlier batch."""
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    recording = measure(options)
    report = read_report(recording, "--slowest", LATE, "--timelines")
    settled = SETTLED * report["batches"]["count"]
    found = [number for number, packet in enumerate(report["packets"]["slowest"]) if _waited(packet, settled)]
    culprits = [_name(report["packets"]["slowest"][number]) for number in found]
    (options.folder / "culprits.json").write_text(json.dumps(culprits))
    print_functions(report)
    if not found:
        print("\nNo packet waited for a function of an earlier batch. What made the latest ones late:\n")
        causes = [
            [cause["kind"], cause["function"] or "-", str(cause["packets"])] for cause in report["packets"]["causes"]
        ]
        print_table([["cause", "function", "packets"], *causes])
        return 1
    number = found[0]
    print_packets(report["packets"]["slowest"][number], report["timelines"][number], report["packets"]["latency_ns"])
    page = recording.with_suffix(".html")
    run_nfprobe("report", recording, "-o", page, quiet=True)
    print(f"\nThe same for any browser: {page}")
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packets", type=int, default=100_000, help="default: %(default)s")
    parser.add_argument("--rate", type=int, default=40_000, help="packets per second (default: %(default)s)")
    parser.add_argument("--rules", type=int, default=1000, help="five-tuple rules (default: %(default)s)")
    parser.add_argument("--slow-every", type=int, default=500, help="every Nth output is slow (default: %(default)s)")
    parser.add_argument("--slow-us", type=int, default=20_000, help="for so long (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "queue-propagation", help="for what it makes")
    return parser.parse_args()


def measure(options: argparse.Namespace) -> Path:
    """Runs the firewall under nfprobe, from its first packet to its last. Returns the recording.

    In the folder are then `outputs.log` and `faults.log`, what the firewall itself knows (its README has the
    format): nothing here reads them.
    """
    program, recording = build_firewall(options.folder), options.folder / "firewall.nfprobe"
    firewall = [program, "--packets", options.packets, "--rate", options.rate, "--rules", options.rules]
    firewall += ["--slow-every", options.slow_every, "--slow-us", options.slow_us]
    firewall += ["--log", options.folder / "outputs.log", "--faults", options.folder / "faults.log"]
    run_nfprobe("run", "--adapter", DESCRIPTION, "--packets", "all", "--record", recording, "--", *firewall)
    return recording


def print_functions(report: dict[str, Any]) -> None:
    """Table 6: how often each function ran and how long on average."""
    functions = [function for function in report["functions"] if function["calls"]]
    packets, batches = report["packets"]["received"], report["batches"]["count"]
    print(f"Table 6: {packets:,} packets in {batches:,} batches\n")
    rows = [["function", "executions", "time (us)", "own time (us)"]]
    for function in functions:
        times = [function[key] / function["calls"] / 1000 for key in ("total_ns", "self_ns")]
        rows.append([function["name"], f"{function['calls']:,}", *(f"{time:.2f}" for time in times)])
    print_table(rows)


def print_packets(packet: dict[str, Any], timeline: dict[str, Any], latencies: dict[str, int]) -> None:
    """Figure 13: what ran while the late packet waited, on one scale of time."""
    cause = packet["cause"]
    batches = {batch["id"]: batch for batch in timeline["batches"]}
    earlier, own = batches[cause["batch"]], batches[packet["batch"]]
    print(f"\nFigure 13: packet 13 is of batch {earlier['id']}, packet 14 of batch {own['id']}\n")
    rows = [["", "batch", "packets", "begins (us)", "takes (us)"]]
    for name, batch in (("packet 13", earlier), ("packet 14", own)):
        times = [f"{batch['start_ns'] / 1000:.1f}", f"{(batch['end_ns'] - batch['start_ns']) / 1000:.1f}"]
        rows.append([name, str(batch["id"]), str(batch["size"]), *times])
    print_table(rows)
    print(f"\ntime since packet 14 arrived: from {earlier['start_ns'] / 1000:.1f} us to {own['end_ns'] / 1000:.1f} us")
    scale = _Scale(earlier["start_ns"], own["end_ns"])
    print(f"{'packet 14 waits':<28}{scale.bar(0, timeline['batch_start_ns'], '.')}")
    for name, batch in (("packet 13", earlier), ("packet 14", own)):
        for call in _choose_calls(timeline, batch["id"]):
            mark = " <- slow" if call["is_cause"] else ""
            label = f"{name}: {'  ' * call['depth']}{call['name']}"
            print(f"{label:<28}{scale.bar(call['start_ns'], call['end_ns'], '#')}{mark}")
    between = sum(earlier["id"] < id < own["id"] for id in batches)
    print(f"\nPacket 14 (id {packet['id']}, {packet['flow']}) took {_us(packet['latency_ns'])}.")
    print(f"Half of all packets take {_us(latencies['p50'])} or less.", end=" ")
    print(f"It waited for {_us(packet['queue_wait_ns'])}: in batch")
    print(f"{cause['batch']}, packet 13's, {cause['function']} took {_us(cause['excess_ns'])} longer than usual.")
    print(
        f"The packets that came meanwhile formed batch {own['id']}" + (f" and {between} before it." if between else ".")
    )


def _us(duration_ns: float) -> str:
    return f"{duration_ns / 1000:,.1f} us"


class _Scale:
    # Times as columns of text.
    def __init__(self, first_ns: float, last_ns: float) -> None:
        self._first = first_ns
        self._ns_per_column = max(last_ns - first_ns, 1) / BAR_COLUMNS

    def bar(self, start_ns: float, end_ns: float, character: str) -> str:
        start, end = (
            min(max(0, int((at - self._first) / self._ns_per_column)), BAR_COLUMNS) for at in (start_ns, end_ns)
        )
        return "|" + (" " * start + character * max(1, end - start)).ljust(BAR_COLUMNS + 1)[: BAR_COLUMNS + 1] + "|"


def _choose_calls(timeline: dict[str, Any], batch: int) -> list[dict[str, Any]]:
    calls = [call for call in timeline["calls"] if call["batch_id"] == batch]
    longest = sorted(calls, key=lambda call: (not call["is_cause"], call["start_ns"] - call["end_ns"]))[:CALLS_SHOWN]
    return [call for call in calls if call in longest]


def _waited(packet: dict[str, Any], settled: float) -> bool:
    """Whether a function of an earlier batch made it late, but not one of the first batches."""
    cause = packet["cause"]
    waited = cause["kind"] == "queue" and cause["function"] is not None and cause["batch"] != packet["batch"]
    return waited and cause["batch"] >= settled


def _name(packet: dict[str, Any]) -> dict[str, Any]:
    cause = packet["cause"]
    return {
        "id": packet["id"],
        "latency_ns": packet["latency_ns"],
        **{key: cause[key] for key in ("function", "batch", "excess_ns")},
    }


if __name__ == "__main__":
    sys.exit(main())
