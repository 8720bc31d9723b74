# SPDX-License-Identifier: Apache-2.0
"""Makes the README's cost table and the tables of docs/ from what the benchmarks of one run have written.

Where something was not measured, or lost records in every round, the tables say so instead of keeping older figures.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from otel_nfprobe.base.strategies import STRATEGIES
from tests.benchmarks.figure_tables import (
    FORWARDERS,
    NOTHING_KEPT,
    Figures,
    describe_machine,
    find_forwarders,
    make_figures,
    make_table,
)

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- cost table -->\n", "<!-- end of cost table -->"
BLOCK = re.compile(r"<!-- figures: ([a-z_]+) -->\n.*?<!-- end of figures -->", re.DOTALL)
STREAM = "calls: engine, receive, transmit"
MONITORS = {"slow": "drained", "recording": "recorded, too", "export": "exported instead"}
NOT_KEPT = "no quiet round"  # the README has no room for NOTHING_KEPT


def read(folder: Path) -> Figures:
    """What each benchmark has written."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def is_measured(*spreads: dict[str, float]) -> bool:
    return all(spread["rounds"] for spread in spreads)


def make_cost_table(figures: Figures) -> str:
    """The README's table as Markdown."""
    rows = [*make_probe_rows(figures["bench_probe"])]
    for mode, found in find_forwarders(figures).items():
        if mode == "vpp":  # a double of it: docs/figures.md
            continue
        rows += [make_forwarder_row(mode, found), make_monitor_row(found)]
    rate = figures["bench_pipeline"][STREAM]["median"]
    rows += [
        ("records drained, paired and batched", f"{rate / 1e6:.0f} M records/s on one core"),
        *make_attach_rows(figures["bench_attach"]),
    ]
    return make_table(("what", "cost"), rows) + f"\nMedians of `make bench` on {describe_machine()}.\n"


def make_probe_rows(probe: dict[str, Any]) -> list[tuple[str, str]]:
    """A call: the floor, each strategy, eBPF."""
    floor, ns = probe["floor"]["median"], probe["ns_per_tick"]

    def cost(found: dict[str, float], pattern: str, ratio: str) -> str:
        ticks = found["median"]
        numbers = (
            f"{pattern.format(ticks * ns)} ns ({ticks:,.0f} ticks) a call, {ratio.format(ticks / floor)} x the floor"
        )
        return numbers if is_measured(found) else NOTHING_KEPT

    rows = [("two time stamps and two records by hand (the floor)", f"{floor * ns:.1f} ns ({floor:.0f} ticks) a call")]
    for name, found in probe["strategies"].items():  # the README has no quartiles: docs/figures.md has them
        what = f"probe by {STRATEGIES[name]}, unmodified running code, drained"
        rows.append((what, cost(found, "{:.1f}", "{:.2f}")))
    for about, found in probe["peers"].items():
        what = f"eBPF uprobe and uretprobe: {about}"
        rows.append((what, cost(found, "{:,.0f}", "{:,.0f}")))
    return rows


def make_forwarder_row(mode: str, figures: dict[str, Any]) -> tuple[str, str]:
    """Of one forwarder: `--packets slow`, which is the default, `none`, and what any probe there costs at least."""
    batch_ns = figures["batch_ns"]["median"]
    slow, none, bare = (figures[kind]["added_ns"] for kind in ("slow", "none", "bare"))
    cost = f"{slow['median']:+.0f} ns ({100 * slow['median'] / (batch_ns or 1):.1f} %)"
    cost += f"; `--packets none` {none['median']:+.0f} ns; bare trampolines {bare['median']:+.0f} ns"
    what = f"{FORWARDERS[mode]}, 32 packets in {batch_ns:,.0f} ns"
    return what, cost if is_measured(slow, none, bare) else NOTHING_KEPT


def make_monitor_row(figures: dict[str, Any]) -> tuple[str, str]:
    """What the monitor of the forwarder in the row above spends meanwhile."""
    shown = []
    for kind, what in MONITORS.items():
        found = figures[kind]["monitor_cores"]
        shown.append(f"{what}: {found['median']:.2f}" if is_measured(found) else f"{what}: {NOT_KEPT}")
    return "its monitor, on another CPU, in cores", "; ".join(shown)


def make_attach_rows(attach: dict[str, Any]) -> list[tuple[str, str]]:
    """Time, stops and memory of an attach."""
    first, kept, armed = (attach[part] for part in ("first", "kept", "armed"))
    first_s, kept_s = (part["processor_s"]["median"] for part in (first, kept))
    stop_ms, armed_s = armed["longest_stop_ms"], armed["armed_s"]["median"]
    return [
        (
            f"analysis, trampolines and arming of {kept['functions']['median']:,.0f} functions",
            f"{first_s:.1f} s of processor time, {kept_s:.1f} s for files seen before",
        ),
        (
            f"{armed['armed']['median']:,.0f} probes into a running program, both CPUs busy",
            f"{armed_s:.2f} s; longest stop of all threads {stop_ms['median']:.1f} ms (quartile {stop_ms['high']:.1f})",
        ),
        ("memory of the monitor", f"{attach['memory']['mib']['median']:.0f} MiB"),
    ]


def write_blocks(page: Path, figures: Figures) -> None:
    """Puts the tables of this run in the place of what is between the markers of a document."""
    text = page.read_text()
    if START in text:
        before, rest = text.split(START)
        text = before + START + make_cost_table(figures) + END + rest.split(END, 1)[1]
    page.write_text(BLOCK.sub(lambda found: _block(found[1], figures), text))


def _block(name: str, figures: Figures) -> str:
    return f"<!-- figures: {name} -->\n{make_figures(name, figures)}<!-- end of figures -->"


def find_pages() -> list[Path]:
    """Documents with tables."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in pages if START in page.read_text() or BLOCK.search(page.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figures", type=Path, help="folder with what the benchmarks of one run wrote by --json")
    parser.add_argument("--write", action="store_true", help="into README.md and docs/*.md, instead of printing it")
    arguments = parser.parse_args()
    figures = read(arguments.figures)
    print(make_cost_table(figures))
    for page in find_pages():
        if arguments.write:
            write_blocks(page, figures)
            continue
        for name in BLOCK.findall(page.read_text()):
            print(f"{page.relative_to(ROOT)}: {name}\n\n{make_figures(name, figures)}")


if __name__ == "__main__":
    main()
