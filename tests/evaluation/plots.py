# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/evaluation.md: SVG of a few kilobytes, the same bytes for the same samples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_testpmd import BATCH
from tests.evaluation import call_cost, forwarders, latency
from tests.evaluation.document import PICTURES, TABLES, find_throughput
from tests.evaluation.samples import Rows

OURS, THEIRS = "#3f51b5", "#9e9e9e"
WIDTH, ROW_HEIGHT = 8.0, 0.32  # inches


def _begin(rows: int) -> tuple[Any, Any]:
    """A figure and its axes."""
    import matplotlib  # heavy, and not there where the evaluation is not set up

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "otel-nfprobe", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(WIDTH, 0.9 + ROW_HEIGHT * rows))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
    figure.clear()


def draw_bars(path: Path, bars: dict[str, tuple[float, float, float]], label: str) -> None:
    """Horizontal bars on a logarithmic scale, medians with quartiles; those of nfprobe in colour."""
    figure, axes = _begin(len(bars))
    names = list(bars)[::-1]
    middles = [bars[name][0] for name in names]
    errors = [[bars[name][0] - bars[name][1] for name in names], [bars[name][2] - bars[name][0] for name in names]]
    colours = [OURS if "nfprobe" in name else THEIRS for name in names]
    axes.barh(names, middles, color=colours, xerr=errors, ecolor="#424242", capsize=2)
    axes.set_xscale("log")
    axes.set_xlabel(label)
    for name, middle, (_, _, high) in zip(names, middles, (bars[name] for name in names), strict=True):
        axes.annotate(f"{middle:,.3g}", (high, name), xytext=(4, 0), textcoords="offset points", va="center")
    _save(figure, path)


def draw_calls(rows: Rows, path: Path) -> None:
    """Entry and exit of a function, by each tool."""
    bars = {}
    for tool in rows.tools(call_cost.BOTH, call_cost.FIGURE):
        spent = rows.spread(call_cost.BOTH, tool, call_cost.FIGURE)
        if spent.rounds and spent.low > 0:
            bars[tool] = (spent.median, spent.low, spent.high)
    draw_bars(path, bars, "ns that a probe at entry and exit adds to a call")


def draw_throughput(rows: Rows, path: Path) -> None:
    """One picture for each forwarder, side by side: rate by density, of each tool."""
    figure, _ = _begin(6)
    figure.clear()
    names = [name for name in forwarders.SHOWN if rows.values(name, forwarders.NOTHING, forwarders.BATCH_NS)]
    densities = list(forwarders.DENSITIES)
    for place, name in enumerate(names, 1):
        axes = figure.add_subplot(1, len(names), place)
        without = BATCH * 1e3 / rows.spread(name, forwarders.NOTHING, forwarders.BATCH_NS).median
        for tool, colour in ((forwarders.OURS, OURS), (forwarders.BPF, THEIRS)):
            known = [density for density in densities if rows.values(name, density, forwarders.FUNCTIONS)]
            rates = [find_throughput(rows, name, density, tool)[0] for density in known]
            places = ["all" if density == forwarders.ALL else density for density in known]
            axes.plot(["0", *places], [without, *rates], marker="o", color=colour, label=tool)
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("functions probed")
    figure.axes[0].set_ylabel("million packets a second")
    figure.axes[0].legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_latencies(rows: Rows, path: Path) -> None:
    """Medians of each tool's 50, 90 and 99 %, by function and load."""
    cases = rows.cases()
    figure, _ = _begin(4 * len(cases))
    figure.clear()
    for place, case in enumerate(cases, 1):
        axes = figure.add_subplot(len(cases), 1, place)
        tools = [tool for tool in rows.tools(case, latency.FIGURES[0]) if rows.values(case, tool, latency.FIGURES[0])]
        for height, tool in enumerate(reversed(tools)):
            middles = [rows.spread(case, tool, name).median for name in latency.FIGURES]
            colour = OURS if "nfprobe" in tool else THEIRS
            axes.plot(middles, [height] * len(middles), color=colour)
            for middle, mark in zip(middles, "o|x", strict=True):
                axes.plot([middle], [height], mark, color=colour)
        axes.set_yticks(range(len(tools)), reversed(tools))
        axes.set_ylim(-0.5, len(tools) - 0.5)
        axes.set_xscale("log")
        axes.set_title(case, fontsize=9, loc="left")
    figure.axes[-1].set_xlabel("us: median (dot), 90 % (line), 99 % (cross)")
    figure.subplots_adjust(hspace=0.9)
    _save(figure, path)


DRAWN: dict[str, Callable[[Rows, Path], None]] = {  # by the block that shows it
    "calls": draw_calls,
    "throughput": draw_throughput,
    "latencies": draw_latencies,
}


def draw_all(tables: dict[str, Rows], folder: Path) -> None:
    """Those of which there are samples."""
    folder.mkdir(parents=True, exist_ok=True)
    for block, draw in DRAWN.items():
        if (source := TABLES[block][0]) in tables:
            draw(tables[source], folder / PICTURES[block][0])
