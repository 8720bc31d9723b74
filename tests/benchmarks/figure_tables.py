# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/ that `make bench-readme` writes: each from the figures of one run, medians with quartiles.

A document has `<!-- figures: NAME -->` where the table of this name stands. Called by cost_table.py.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from otel_nfprobe.base.strategies import STRATEGIES

Figures = dict[str, Any]  # of all benchmarks by their names: what they have written
NOTHING_KEPT = "no round that counts: in each something was lost, or it was not quiet"
COLUMNS_MAX = 120  # of a line of a page
FORWARDERS = {"macswap": "testpmd macswap", "csum": "testpmd csum", "ovs": "Open vSwitch", "vpp": "double of VPP"}
KINDS = {  # of bench_testpmd.py and bench_forwarder.py
    "bare": "bare trampolines",
    "none": "`--packets none`",
    "slow": "`--packets slow`, the default",
    "freed": "the same where buffers may be freed when they are sent",
    "addresses": "the same where transmit calls write new addresses of frames",
    "copied": "the same where headers have to be copied",
    "recording": "`slow` with `--record`",
    "export": "`slow` with `--endpoint`",
    "all": "`--packets all`",
    "counters": "`none` with `--counters auto`",
}


NOT_IDENTIFIED = {
    "slow": "of `slow`, for each packet that is not identified",
    "freed": KINDS["freed"],
    "copied": KINDS["copied"],
}


def show(figure: dict[str, float], pattern: str, unit: str = "", scale: float = 1.0) -> str:
    """A spread: its median with its quartiles, and how many rounds were dropped."""
    if math.isnan(figure["median"]):
        return NOTHING_KEPT
    middle, low, high = (pattern.format(figure[name] * scale) for name in ("median", "low", "high"))
    dropped = f"; {figure['dropped']} of {figure['rounds'] + figure['dropped']} dropped" if figure["dropped"] else ""
    return f"{middle} ({low} .. {high}{dropped}){unit and ' ' + unit}"


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown; a list where a line of the table would exceed COLUMNS_MAX."""
    lines = [f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *rows]]
    if max(map(len, lines)) <= COLUMNS_MAX:
        return "".join(lines)
    text = ""
    for row in rows:
        text += f"* {row[0]}\n"
        text += "".join(f"  * {key}: {cell}\n" for key, cell in zip(head[1:], row[1:], strict=True))
    return text


def describe_machine() -> str:
    """What everything was measured on."""
    flags, name = "", platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.split(":", 1)[1].strip()
        if line.startswith("flags"):
            flags = line
    virtual = "; a virtual machine" if " hypervisor" in flags else ""
    return f"{name}, {os.cpu_count()} CPUs, Linux {platform.release().split('-')[0]}{virtual}"


def machine(figures: Figures) -> str:
    return f"{describe_machine()}; Python {platform.python_version()}.\n"


def spans(figures: Figures) -> str:
    found = figures["bench_export"]
    rows = [
        ("selected packets encoded", show(found["encode"], "{:,.0f}")),
        ("encoded and sent to a receiver in another process (gRPC)", show(found["encode and send"], "{:,.0f}")),
        (
            "OpenTelemetry SDK in Python: start, end, batch, send",
            show(found["OpenTelemetry SDK: start, end, batch, send"], "{:,.0f}"),
        ),
    ]
    return make_table((f"spans a second of one core, {found['bytes_per_span']:.0f} bytes each", ""), rows)


def records(figures: Figures) -> str:
    live, recordings = figures["bench_pipeline"], figures["bench_recording"]
    rows = []
    for stream, found in recordings.items():
        rates = [live[stream], *(found[name] for name in ("write", "read", "replay"))]
        cells = [show(rate, "{:.1f}", "", 1e-6) for rate in rates]
        rows.append([stream, *cells, f"{found['bytes_per_record']:.2f}"])
    head = ["stream", "ring drained, paired, batched", "recording written", "read", "read, paired, batched"]
    return make_table([*head, "bytes a record"], rows)


def readers(figures: Figures) -> str:
    found = figures["bench_readers"]
    rows = [(name, show(rate, "{:.1f}", "", 1e-6)) for name, rate in found.items() if name != "events"]
    return make_table((f"{found['events']:,} events", "million events a second"), rows)


def forwarders(figures: Figures) -> str:
    """What probes cost real forwarders."""
    found = find_forwarders(figures)
    head = [f"{FORWARDERS[mode]}, {show(of['batch_ns'], '{:,.0f}')} ns" for mode, of in found.items()]
    rows = []
    for kind, what in KINDS.items():
        if all(kind in of for of in found.values()):
            rows.append([what, *(_show_added(of[kind]["added_ns"], of["bare"]["added_ns"]) for of in found.values())])
    for kind, what in NOT_IDENTIFIED.items():
        rows.append([what, *(show(of[f"{kind}_packet_ns"], "{:.2f}", "ns") for of in found.values())])
    return make_table(["per batch of 32", *head], rows)


def find_forwarders(figures: Figures) -> dict[str, Any]:
    """Those of bench_testpmd.py that were measured."""
    return {mode: figures["bench_testpmd"][mode] for mode in FORWARDERS if mode in figures["bench_testpmd"]}


def _show_added(added: dict[str, float], bare: dict[str, float]) -> str:
    is_ratio = added is not bare and bare["low"] > 0 and not math.isnan(added["median"])
    ratio = f", {added['median'] / bare['median']:.2f} times bare" if is_ratio else ""
    return show(added, "{:+,.0f}", "ns") + ratio


def monitors(figures: Figures) -> str:
    """What the monitor of each forwarder spends, on its own CPU."""
    found = find_forwarders(figures)
    columns = {FORWARDERS[mode]: of for mode, of in found.items()}
    columns["small forwarder"] = figures["bench_forwarder"]
    rows = []
    for kind, what in KINDS.items():
        if kind != "bare" and any(kind in of for of in columns.values()):
            rows.append([what, *(_show_monitor(of.get(kind)) for of in columns.values())])
    return make_table(["the monitor, per batch of 32 packets", *columns], rows)


def overhead(figures: Figures) -> str:
    """What a session's summary says that its probes took, beside what was measured, in percent of the thread's time."""
    rows = []
    for mode, found in find_forwarders(figures).items():
        for kind in ("none", "slow", "freed", "copied", "recording", "all"):
            percent = 100 / found["batch_ns"]["median"]
            measured = show(found[kind]["added_ns"], "{:+.1f}", "%", percent)
            least, most = (found[kind][name]["median"] * percent for name in ("stated_ns", "stated_max_ns"))
            stated = "-" if math.isnan(least) else f"{least:.1f} to {most:.1f} %"
            rows.append((f"{FORWARDERS[mode]}, {KINDS[kind]}", measured, stated))
    return make_table(("forwarder", "measured", "stated"), rows)


def _show_monitor(of: dict[str, Any] | None) -> str:
    if of is None:
        return ""
    cores = f", {of['monitor_cores']['median']:.2f} cores" if of["monitor_cores"]["rounds"] else ""
    return show(of["monitor_ns"], "{:,.0f}", "ns") + cores


def forwarder(figures: Figures) -> str:
    """What probes cost a small forwarder."""
    found = figures["bench_forwarder"]
    rows = []
    for kind in KINDS:
        if kind in found:
            probed, bare = found[kind]["probed_ns"], found[kind]["bare_ns"]
            rows.append((KINDS[kind], show(bare, "{:+.0f}", "ns"), _show_added(probed, bare)))
    for kind, what in NOT_IDENTIFIED.items():
        packet_ns = found[f"{kind}_packet_ns"]
        rows.append((what, "", NOTHING_KEPT if math.isnan(packet_ns) else f"{packet_ns:.2f} ns"))
    share = f"{found['rounds_kept']:.0%} of the rounds were undisturbed and count"
    head = (f"per batch of 32, {found['batch_ns']:,.0f} ns; {share}", "bare trampolines, same rounds", "probes")
    return make_table(head, rows)


def polls(figures: Figures) -> str:
    found = figures["bench_poll"]
    rows = [
        (what, show(found[f"{kind}_ns"], "{:+.1f}", "ns"))
        for kind, what in (("bare", "bare trampolines"), ("none", "`--packets none`"), ("slow", "`--packets slow`"))
    ]
    rows.append(("a call whose probe `--detail auto` has closed", show(found["closed_ns"], "{:+.2f}", "ns")))
    return make_table((f"an empty poll; a turn of its loop takes {show(found['turn_ns'], '{:.1f}')} ns", ""), rows)


def times(figures: Figures) -> str:
    """How right times are."""
    names = ("true_ticks", "raw_ticks", "net_ticks", "wrong_ticks_per_level")
    rows = [
        [STRATEGIES[strategy], *(show(found[name], "{:,.1f}") for name in names)]
        for strategy, found in figures["bench_calibration"].items()
    ]
    return make_table(
        ("20 nested calls, in ticks", "without probes", "as measured", "without their cost", "wrong, a level"), rows
    )


def counters(figures: Figures) -> str:
    found = figures["bench_counters"]
    rows = []
    for number in (0, 1, 2, 4):
        stack, body = found[f"in-stack, {number}"], found[f"relocated, {number}"]
        added = [show(of["ticks"], "{:.0f}", "ticks") for of in (stack, body)]
        ring, spent = show(stack["ring_bytes"], "{:.0f}", "bytes"), show(stack["monitor_ns"], "{:.0f}", "ns")
        rows.append([f"{number}", *added, ring, spent])
    head = (
        "counters",
        "a probe, in-stack call",
        "relocated body",
        "in the ring, a call",
        "CPU time of the monitor, a call",
    )
    kind = "counters of the processor" if found["rdpmc"] else "events of the kernel, without `rdpmc`"
    ghz = 1 / found["ns_per_tick"]
    return make_table(head, rows) + f"\nRead were {kind}; {ghz:.2f} ticks are a nanosecond.\n"


def snippets(figures: Figures) -> str:
    rows = [
        (name, show(of["ticks"], "{:.1f}", "ticks"), *(show(of[more], "{:+.1f}", "ns") for more in MORE))
        for name, of in figures["bench_snippet"].items()
        if name != "ns_per_tick"
    ]
    return make_table(("probe", "added to a call", "by the snippet", "of these between its time stamps"), rows)


MORE = ("more_ns", "more_inside_ns")


def _first_probe(found: Figures) -> Iterator[tuple[str, str]]:
    """Until the probes of VPP's double are in place."""
    for name, what in (("never_seen_s", "files never seen before"), ("known_s", "files known from an earlier attach")):
        shown = show(found["first_probe"][name], "{:.2f}", "s")
        yield f"processor time until the probes of VPP's double are in place, {what}", shown


def attach(figures: Figures) -> str:
    found = figures["bench_attach"]
    first, kept, everything, armed = (found[part] for part in ("first", "kept", "all", "armed"))
    rows = [
        (what, show(of["processor_s"], "{:.2f}", "s of processor time"))
        for what, of in (("files that were never seen", first), ("files seen before", kept))
    ]
    rows += [
        ("two busy threads: longest stop", show(everything["longest_stop_ms"], "{:.1f}", "ms")),
        (f"{armed['armed']['median']:,.0f} functions of it: in place after", show(armed["armed_s"], "{:.2f}", "s")),
        ("their longest stop", show(armed["longest_stop_ms"], "{:.1f}", "ms")),
        *_first_probe(found),
        ("memory of `nfprobe attach` at most", show(found["memory"]["mib"], "{:.0f}", "MiB")),
    ]
    return make_table((f"attach to {kept['functions']['median']:,.0f} functions", ""), rows)


def starts(figures: Figures) -> str:
    found = figures["bench_starts"]
    names = {
        "report": "report of a small recording",
        "export": "export of a small recording",
        "functions": f"functions of {found['file']}, {found['functions']:,} of them",
        "first probe": "attach to dpdk-testpmd, until its probes are in place",
    }
    rows = []
    for command, of in found["seconds"].items():
        name, comma, state = command.partition(", ")
        rows.append((f"{names.get(name, f'`nfprobe {name}`')}{comma}{state}", show(of, "{:.2f}", "s")))
    return make_table(("processor time, start included", ""), rows)


def tiers(figures: Figures) -> str:
    rows = []
    for result in figures["bench_tiers"]:
        for tier, rate in result["spans_per_core_second"].items():
            rows.append((result["path"], tier, show(rate, "{:,.0f}"), f"{result['resident_mib'][tier]:,.0f}"))
    return make_table(("path", "process", "spans a second of one core", "MiB resident"), rows)


def visible(figures: Figures) -> str:
    rows = []
    for found in figures["bench_visible"]:
        lost = found["dropped"] + found["lost"]
        if lost:
            seen = f"no figure: {found['dropped']:,} spans were dropped, {found['lost']:,} records lost"
        elif not found["seen"]:
            seen = "none in the time of the measurement"
        else:
            quartiles = f"{found['low_s']:.2f} .. {found['high_s']:.2f}"
            seen = f"{found['median_s']:.2f} s ({quartiles}), p99 {found['p99_s']:.2f} s, of {found['seen']} traces"
        sent = f"{found['spans_per_second']:,.0f}"
        rows.append((found["path"], f"{found['wanted_spans_per_second']:,.0f}", sent, seen))
    return make_table(("path", "asked for, spans/s", "sent, spans/s", "age when seen: median, quartiles, p99"), rows)


def memory(figures: Figures) -> str:
    found = figures["bench_soak"]
    rows = []
    for number, row in enumerate(found["rows"], 1):
        rate, size, cores = f"{row['packets_per_second']:,.0f}", f"{row['resident_mib']:.0f}", f"{row['cores']:.2f}"
        rows.append((f"{found['interval_s'] * number:.0f} s", rate, size, cores))
    summary = found["summary"]
    lost = ", ".join(f"{kind} {count:,}" for kind, count in summary["records"]["lost"].items())
    sent = f"{summary['spans']['exported']:,} spans exported, {summary['spans']['dropped']:,} dropped"
    table = make_table(("until", "packets/s", "monitor, MiB resident", "cores"), rows)
    return f"{table}\n{summary['packets']['received']:,} packets; {sent}; records lost: {lost}.\n"


def fault_free(figures: Figures) -> str:
    rows = []
    for found in figures["bench_fault_free"]:
        named, contradicted = found["named"], found["contradicted"]
        rows.append(
            (
                found["target"],
                f"{found['seconds']:.0f} s",
                f"{found['host_took']:.1%}",
                f"{found['late_packets']:,}",
                ", ".join(f"{kind} {count:,}" for kind, count in found["kinds"].items()) or "-",
                f"{found['preemptions_confirmed']:,}",
                f"{named:,}",
                f"{contradicted:,}",
                ", ".join(f"{noise} {count:,}" for noise, count in found["contradicted_by"].items()) or "-",
                f"{found['wrong_batches_per_hour']:,}",
            )
        )
    head = (
        "target",
        "measured",
        "steal time",
        "late packets",
        "causes",
        "preemptions confirmed",
        "a function is named for",
    )
    return make_table((*head, "contradicted", "by", "wrongly blamed batches an hour"), rows)


def absences(figures: Figures) -> str:
    rows = []
    for found in figures["bench_absences"]:
        cells = [
            f"{show(found[unit], pattern, scale=scale)}; {show(found[f'{unit}_added'], '{:+.1f}')} %"
            for unit, pattern, scale in (("cpu_ns", "{:,.0f}", 1), ("tail_ns", "{:,.0f}", 1e-3))
        ]
        rate = show(found["packets_per_s_added"], "{:+.1f}")
        rows.append((found["nf"], cells[0], f"{rate} %", cells[1]))
    return make_table(("network function", "CPU time of a packet, ns", "packets/s", "p99.9 latency, us"), rows)


def causes(figures: Figures) -> str:
    rows = []
    for found in figures["bench_causes"]:
        said, share = next(iter(found["said"].items()), ("", 0.0))
        said = re.sub(r" \(tid \d+\)| of \S*/.*", "", said.split(",")[0])
        scores = [_score(found[name]) for name in ("logged", "traced")]
        rows.append((f"{found['nf']} `{found['fault']}`", f"{found['late']:,}", *scores, f"{said} {share:.0%}"))
    return make_table(("fault", "late", "log: right", "trace: right", "most often said"), rows)


def _score(score: dict[str, Any]) -> str:
    """`98 of 100, 1 wrong`: the rest is unknown."""
    if not score["judged"]:
        return "-"
    wrong = f", {score['wrong']:,} wrong" if score["wrong"] else ""
    return f"{score['right']:,} of {score['judged']:,}{wrong}"


def chain(figures: Figures) -> str:
    return _blame(figures["bench_chain"])


def wired_chain(figures: Figures) -> str:
    return _blame(figures["bench_wired_chain"])


def _blame(measured: Figures) -> str:
    rows = []
    for found in measured["faults"]:
        counts = [found[name] for name in ("right", "right_function", "local", "local_function")]
        shares = [f"{count / found['packets']:.1%}" if found["packets"] else "-" for count in counts]
        rows.append((found["fault"], f"{found['packets']:,}", *shares))
    head = ("fault", "late packets", "right", "right function of the chain")
    return make_table((*head, "alone: right", "alone: right function of the chain"), rows)


TABLES: dict[str, tuple[str, Callable[[Figures], str]]] = {  # by name: whose figures it needs, and who makes it
    "machine": ("bench_pipeline", machine),
    "spans": ("bench_export", spans),
    "records": ("bench_recording", records),
    "readers": ("bench_readers", readers),
    "forwarders": ("bench_testpmd", forwarders),
    "monitors": ("bench_testpmd", monitors),
    "overhead": ("bench_testpmd", overhead),
    "forwarder": ("bench_forwarder", forwarder),
    "polls": ("bench_poll", polls),
    "times": ("bench_calibration", times),
    "counters": ("bench_counters", counters),
    "snippets": ("bench_snippet", snippets),
    "attach": ("bench_attach", attach),
    "starts": ("bench_starts", starts),
    "tiers": ("bench_tiers", tiers),
    "visible": ("bench_visible", visible),
    "memory": ("bench_soak", memory),
    "fault_free": ("bench_fault_free", fault_free),
    "absences": ("bench_absences", absences),
    "causes": ("bench_causes", causes),
    "chain": ("bench_chain", chain),
    "wired_chain": ("bench_wired_chain", wired_chain),
}


def make_figures(name: str, figures: Figures) -> str:
    """The table of this name as Markdown, or a sentence where it was not measured.

    Raises:
        KeyError: there is no such table.
    """
    source, make = TABLES[name]
    if source not in figures:
        return f"Not measured in this run: `tests/benchmarks/{source}.py` found nothing to measure it with.\n"
    return make(figures)
