# SPDX-License-Identifier: Apache-2.0
"""Writes the README's cost table from the figures of bench_probe.py and bench_testpmd.py (`make bench`)."""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any

from otel_nfprobe.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- cost table -->\n", "<!-- end of cost table -->"


def make_table(
    probe: dict[str, Any],
    testpmd: dict[str, dict[str, float]],
    pipeline: dict[str, float],
    attach: dict[str, Any],
) -> str:
    """The table as Markdown."""
    floor, ns = probe["floor_ticks"], probe["ns_per_tick"]
    rows = [("two time stamps and two records by hand (the floor)", f"{floor * ns:.1f} ns ({floor:.0f} ticks) a call")]
    for name, ticks in probe["strategies"].items():
        rows.append(
            (
                f"probe by {STRATEGIES[name]}, unmodified running code, drained",
                f"{ticks * ns:.1f} ns ({ticks:.0f} ticks) a call, {ticks / floor:.2f} x the floor",
            )
        )
    for about, ticks in probe["peers"].items():
        what = f"beside it, eBPF (uprobe and uretprobe, a time stamp and a count each): {about}"
        rows.append((what, f"{ticks * ns:,.0f} ns ({ticks:,.0f} ticks) a call, {ticks / floor:,.0f} x the floor"))
    for mode, figures in testpmd.items():
        rows.append(make_forwarder_row(mode, figures))
    rows.append(
        (
            "records drained, paired and batched",
            f"{pipeline['records_per_second'] / 1e6:.0f} M records/s on one core",
        )
    )
    kept, armed = attach["kept"], attach["armed"]
    first_s, later_s = (
        figures["analysis_processor_s"] + figures["attach_processor_s"] for figures in (attach["first"], kept)
    )
    rows += [
        (
            f"analysis, trampolines and arming of {kept['functions']:,} functions",
            f"{first_s:.1f} s of processor time, {later_s:.1f} s for files seen before",
        ),
        (
            f"{armed['armed']:,} probes into a running program, both CPUs busy",
            f"{armed['armed_s']:.2f} s; all threads stood still for {armed['longest_stop_ms']:.1f} ms at most",
        ),
        ("memory of the monitor", f"{attach['memory_mib']:.0f} MiB"),
    ]
    lines = ["| what | cost |", "| --- | --- |", *(f"| {what} | {cost} |" for what, cost in rows)]
    machine = f"{cpu_name()}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}"
    return "\n".join(lines) + f"\n\nMedians of `make bench` on {machine}; a virtual machine.\n"


def make_forwarder_row(mode: str, figures: dict[str, float]) -> tuple[str, str]:
    """Of one forwarder: `--packets slow`, which is the default, `none`, and what any probe there costs at least."""
    batch_ns, slow_ns = figures["batch_ns"], figures["slow_ns"]
    cost = f"+{slow_ns:.0f} ns a batch ({100 * slow_ns / batch_ns:.1f} %)"
    cost += f", with `--packets none` +{figures['nfprobe_ns']:.0f} ns; bare trampolines +{figures['bare_ns']:.0f} ns"
    if mode == "ovs":
        what = f"Open vSwitch with DPDK, {batch_ns:,.0f} ns per batch of 32: default probes, {figures['functions']:.0f}"
    else:
        what = f"testpmd {mode}, {batch_ns:,.0f} ns per batch of 32: receive, engine and transmit probed"
    return what, cost


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "figures", type=Path, help="folder with probe.json, testpmd.json, pipeline.json and attach.json"
    )
    parser.add_argument("--write", action="store_true", help="into README.md, instead of printing it")
    arguments = parser.parse_args()
    figures: list[Any] = [
        json.loads((arguments.figures / f"{name}.json").read_text())
        for name in ("probe", "testpmd", "pipeline", "attach")
    ]
    table = make_table(*figures)
    print(table)
    if arguments.write:
        readme = ROOT / "README.md"
        text = readme.read_text()
        before, rest = text.split(START)
        readme.write_text(before + START + table + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
