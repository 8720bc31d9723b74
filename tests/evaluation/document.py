# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/evaluation.md from samples: `<!-- evaluation: NAME -->` stands where the table NAME belongs.

Pure: rows in, Markdown out. What was not measured is said, instead of keeping older figures.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from tests.benchmarks.bench_testpmd import BATCH
from tests.benchmarks.figure_tables import make_table
from tests.benchmarks.rounds import Spread
from tests.evaluation import broker, call_cost, coverage, culprit, forwarders, latency, peers, storage_cost
from tests.evaluation.samples import Rows

BLOCK = re.compile(r"<!-- evaluation: ([a-z_]+) -->\n.*?<!-- end of evaluation -->", re.DOTALL)
NOT_MEASURED = "Not measured in this run.\n"
PICTURES = {  # of blocks: what plots.py draws beside the tables
    "latencies": ("evaluation-latencies.svg", "latency of packets without probes, and with those of each tool"),
    "throughput": ("evaluation-throughput.svg", "million packets a second by the number of probed functions"),
    "calls": ("evaluation-calls.svg", "ns that a probe at entry and exit adds to a call"),
}
Tables = Mapping[str, Rows]  # by name: what each has measured


def show(figure: Spread, pattern: str = "{:,.0f}", unit: str = "") -> str:
    """Median with quartiles, and how many rounds were dropped; nothing where no round counts."""
    if math.isnan(figure.median):
        return ""
    middle, low, high = (pattern.format(value) for value in (figure.median, figure.low, figure.high))
    dropped = f"; {figure.dropped} of {figure.rounds + figure.dropped} dropped" if figure.dropped else ""
    return f"{middle}{unit and ' ' + unit} ({low} .. {high}{dropped})"


def show_or_reason(rows: Rows, case: str, tool: str, figure: str, pattern: str = "{:,.0f}") -> str:
    """The figure, or in its place why there is none."""
    return show(rows.spread(case, tool, figure), pattern) or "; ".join(rows.notes(case, tool, figure)) or "-"


def machine(described: Mapping[str, str]) -> str:
    """What everything was measured on."""
    named = {name: said for name, said in described.items() if name not in ("machine", "Python")}
    rows = [("Python", described.get("Python", "unknown")), *named.items()]
    return f"{described.get('machine', 'unknown')}.\n\n" + make_table(("tool", "version, or why it is missing"), rows)


def never(described: Mapping[str, str]) -> str:
    """What published tables have beside theirs, and this one has not."""
    return make_table(("tool", "why it is not here"), list(peers.NEVER.items()))


def _word(rows: Rows, case: str, tool: str, figure: str) -> str:
    """A fact in words."""
    return "; ".join(rows.notes(case, tool, figure))


def calls(rows: Rows) -> str:
    """Table 1, one part for each kind of probe."""
    figure = call_cost.FIGURE
    unprobed = rows.spread("unprobed call", "plain program", figure)
    floor = rows.spread(call_cost.BOTH, call_cost.FLOOR, figure)
    text = f"Without probes a call takes {show(unprobed, '{:.1f}', 'ns')}.\n"
    for case in rows.cases():
        if case == "unprobed call":
            continue
        lines = []
        for tool in rows.tools(case, figure):
            spent = rows.spread(case, tool, figure)
            ratio = f"{spent.median / floor.median:,.1f}" if case == call_cost.BOTH and spent.rounds else ""
            facts = (_word(rows, case, tool, name) for name in ("process", "records"))
            lines.append([tool, *facts, show_or_reason(rows, case, tool, figure, "{:,.1f}"), ratio])
        head = [case, "process", "records", "ns a call", "x floor"]
        if case != call_cost.BOTH:
            head, lines = head[:-1], [line[:-1] for line in lines]
        text += "\n" + make_table(head, lines)
    return text


def storage(rows: Rows) -> str:
    """Table 2."""
    lines = []
    names = storage_cost.FUNCTIONS
    for tool in rows.tools(names[0], storage_cost.FIGURE):
        lines.append([tool, *(show_or_reason(rows, name, tool, storage_cost.FIGURE) for name in names)])
    for tool in rows.tools(names[0], storage_cost.PUBLISHED_FIGURE):
        cells = (show(rows.spread(name, tool, storage_cost.PUBLISHED_FIGURE)).split()[0] for name in names)
        lines.append([tool, *cells])
    ns = rows.spread("machine", "clock", "ns a tick").median
    return f"A tick is {ns:.3f} ns.\n\n" + make_table(("ticks (cycles) a probe", *names), lines)


def find_throughput(rows: Rows, name: str, density: str, tool: str) -> tuple[float, float]:
    """Million packets a second of a forwarder's CPU with a tool, and which share it loses; not numbers: not known."""
    without_ns = rows.spread(name, forwarders.NOTHING, forwarders.BATCH_NS).median
    added_ns = rows.spread(f"{name}, {density}", tool, forwarders.ADDED_NS).median
    return BATCH * 1e3 / (without_ns + added_ns), 1 - without_ns / (without_ns + added_ns)


def _throughput_cell(rows: Rows, name: str, density: str, tool: str) -> str:
    rate, loss = find_throughput(rows, name, density, tool)
    case = f"{name}, {density}"
    if math.isnan(rate):
        return "; ".join(rows.notes(case, tool, forwarders.ADDED_NS)) or "-"
    added = show(rows.spread(case, tool, forwarders.ADDED_NS), "{:+,.0f}")
    return f"{rate:,.2f}, {-loss:+.1%}, {added}"


def throughput(rows: Rows) -> str:
    """Table 3, one part for each forwarder."""
    text = ""
    for name in forwarders.SHOWN:
        without = rows.spread(name, forwarders.NOTHING, forwarders.BATCH_NS)
        if not without.rounds:
            reasons = rows.notes(name, forwarders.NOTHING, forwarders.BATCH_NS)
            text += f"\n{name}: {'; '.join(reasons) or 'not measured'}.\n"
            continue
        rate = BATCH * 1e3 / without.median
        batch = show(without, "{:,.0f}", "ns")
        text += f"\n{name}: without probes {rate:.2f} million packets a second, {batch} a batch.\n\n"
        lines = []
        for density in forwarders.DENSITIES:
            probed = rows.spread(name, density, forwarders.FUNCTIONS).median
            if math.isnan(probed):
                continue
            per_batch = rows.spread(name, density, forwarders.CALLS).median
            cells = (_throughput_cell(rows, name, density, tool) for tool in (forwarders.OURS, forwarders.BPF))
            which = f"all: {probed:.0f}" if density == forwarders.ALL else density
            lines.append([which, "-" if math.isnan(per_batch) else f"{per_batch:.1f}", *cells])
        head = "million packets a second, loss, ns added to a batch"
        text += make_table(("functions", "calls a batch", f"nfprobe: {head}", "eBPF: the same"), lines)
    return text.lstrip("\n")


def latencies(rows: Rows) -> str:
    """Table 4, one part for each function and load."""
    text, half = "", latency.FIGURES[0]
    for case in rows.cases():
        lines = []
        for tool in rows.tools(case, half):
            cells = [show_or_reason(rows, case, tool, half, "{:,.1f}")]
            cells += [show(rows.spread(case, tool, figure), "{:,.1f}") or "-" for figure in latency.FIGURES[1:]]
            arrived = rows.spread(case, tool, latency.ARRIVED).median
            added = show(rows.added(case, tool, latency.NOTHING, half), "{:+,.1f}") if tool != latency.NOTHING else ""
            lines.append([tool, *cells, added, "-" if math.isnan(arrived) else f"{arrived:.1%}"])
        text += f"\n{case}:\n\n"
        text += make_table(("us", "median", "90 %", "99 %", "added to the median", "arrived"), lines)
    return text.lstrip("\n")


def programs(rows: Rows) -> str:
    """Table 6: what each tool probes of each program, and where it does not work as before."""
    lines, tools = [], list(coverage.TOOLS)
    for name in rows.cases():
        every = rows.spread(name, coverage.EVERY, coverage.FUNCTIONS).median
        if math.isnan(every):
            lines.append([name, "; ".join(rows.notes(name, coverage.EVERY, coverage.FUNCTIONS)), *[""] * len(tools)])
            continue
        cells = []
        for tool in tools:
            outcome = rows.notes(name, tool, coverage.OUTCOME) + rows.notes(name, tool, coverage.FUNCTIONS)
            probed = rows.spread(name, tool, coverage.FUNCTIONS).median
            cells.append(", ".join([*([] if math.isnan(probed) else [f"{probed:,.0f}"]), *outcome]))
        lines.append([name, f"{every:,.0f}", *cells])
    totals = [_total(rows, tool) for tool in tools]
    lines.append(["all", f"{sum(rows.values_of(coverage.EVERY, coverage.FUNCTIONS)):,.0f}", *totals])
    return make_table(("program", coverage.EVERY, *tools), lines)


def _total(rows: Rows, tool: str) -> str:
    """Functions in all, and how many programs work as before."""
    outcomes = rows.values_of(tool, coverage.OUTCOME)
    probed = sum(rows.values_of(tool, coverage.FUNCTIONS))
    return f"{probed:,.0f}; {sum(outcomes):.0f} of {len(outcomes)} work" if outcomes else "-"


def messages(rows: Rows) -> str:
    """Table 5."""
    half, late = (f"{broker.FIGURE}, p{part}" for part in broker.PERCENTILES)
    lines = []
    for tool in rows.tools(broker.CASE, half):
        added = show(rows.added(broker.CASE, tool, broker.NONE, half), "{:+,.0f}") if tool != broker.NONE else ""
        published = f"{broker.PUBLISHED[tool]:+,}" if tool in broker.PUBLISHED else ""
        cells = (show_or_reason(rows, broker.CASE, tool, figure) for figure in (half, late))
        lines.append([tool, *cells, added, published])
    return make_table(("noted by", "median, ns", "99 %, ns", "added to the median", "study"), lines)


def culprits(rows: Rows) -> str:
    """Table 7: what each tool shows first, with how many of its runs named the culprit."""
    lines = []
    for fault in culprit.FAULTS:
        cells = []
        for tool in culprit.TOOLS:
            named = rows.values(fault.name, tool, culprit.FIGURE)
            seen = " or ".join(rows.notes(fault.name, tool, culprit.FIGURE))
            cells.append(f"{seen} ({sum(named):.0f} of {len(named)})" if named else seen or "-")
        lines.append([f"{fault.name}: {fault.culprit}", *cells])
    return make_table(("fault: culprit", *culprit.TOOLS), lines)


TABLES: dict[str, tuple[str, Callable[[Rows], str]]] = {  # block: (file of rows, what makes it)
    "calls": ("call_cost", calls),
    "storage": ("storage_cost", storage),
    "throughput": ("forwarders", throughput),
    "latencies": ("latency", latencies),
    "programs": ("coverage", programs),
    "messages": ("broker", messages),
    "culprits": ("culprit", culprits),
}
FACTS: dict[str, Callable[[Mapping[str, str]], str]] = {"machine": machine, "never": never}


def make_block(name: str, tables: Tables, described: Mapping[str, str]) -> str:
    """The Markdown between the marks of this name.

    Raises:
        KeyError: there is no such block.
    """
    if name in FACTS:
        return FACTS[name](described)
    source, make = TABLES[name]
    if source not in tables:
        return NOT_MEASURED
    picture = f"\n![{PICTURES[name][1]}](pictures/{PICTURES[name][0]})\n" if name in PICTURES else ""
    return make(tables[source]) + picture


def fill(page: str, tables: Tables, described: Mapping[str, str]) -> str:
    """The page with the tables of this run in the place of what is between its marks."""

    def block(found: re.Match[str]) -> str:
        made = make_block(found[1], tables, described)
        return f"<!-- evaluation: {found[1]} -->\n{made}<!-- end of evaluation -->"

    return BLOCK.sub(block, page)
