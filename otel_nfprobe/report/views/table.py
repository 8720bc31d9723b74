# SPDX-License-Identifier: Apache-2.0
"""The report as text for a terminal: functions, batch sizes, packets, the slowest with their causes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from otel_nfprobe.base.printable import printable, printable_value
from otel_nfprobe.base.strategies import ENTRY_ONLY
from otel_nfprobe.causes.arrival import POLL
from otel_nfprobe.pipeline.dropreasons import drop_rows
from otel_nfprobe.pipeline.queue_drops import describe_counts
from otel_nfprobe.recording.nodes import node_rows
from otel_nfprobe.report.views.numbers import format_count, format_duration, format_size

if TYPE_CHECKING:
    from otel_nfprobe.report.report import Report


# ---- sentences ------------------------------------------------------------------------------------------------------
# Sentences about one slow packet, its causes, and what may have affected any late packet.


BOUNDS = {POLL: "up to "}  # prefix of an inexact wait, by arrival source
ORIGINS = {  # start of a latency, by the names of statistics.ORIGINS
    "stamp": "the arrival's stamp",
    "capture": "the generator's capture",
    "poll": "the last poll that had left the queue empty, a bound",
    "receive": "the receive call: how long they waited before is not known",
}
PRECEDES = (
    "It arrived before the recording begins, or may have: what kept it until then is not in it, and can be nfprobe's"
    " own attach."
)
FLOW_SHARE = 0.1  # of a burst: a flow with less is not named
TOLD_SHARE, PARTS_TOLD = 0.02, 4  # of the excess: smaller parts, or more of them, are in no sentence
THERE_SHARE = 0.9  # of a part: with less in one batch it happened mostly there
REST_SHARE = 0.1  # the same for what is unexplained, and for the wait
LISTED_SHARE = 1.01  # of the slowest packet in the list: a longer latency is one that is not in it
STOLEN_SHARE = 0.001  # of the time: the slowest packets are one in a thousand


def explain_cause(packet: dict[str, Any]) -> str:
    """Explains why this packet was late, from an entry of `packets.slowest` of the report's document."""
    cause, waited = packet["cause"], packet.get("queue_wait_ns") or 0
    bound = BOUNDS.get(packet.get("arrival_source") or "", "")
    late_ns = cause.get("late_ns") or 0
    is_told = waited and (cause["kind"] == "unknown" or waited >= REST_SHARE * late_ns)
    waiting = f"it waited {bound}{format_duration(waited)} in the queue" if is_told else ""
    parts = [part for part in cause.get("parts", ()) if part["ns"] >= TOLD_SHARE * late_ns][:PARTS_TOLD]
    clauses = [_explain_part(packet, part) for part in parts]
    rest_ns = cause.get("unexplained_ns") or 0
    if cause["kind"] == "unknown":
        clauses.insert(0, "no single call stands out")
    if rest_ns and rest_ns >= REST_SHARE * late_ns:
        clauses.append(f"nothing explains {format_duration(rest_ns)}")
    late = f"This packet was {format_duration(late_ns)} late: " if late_ns else ""
    found = late + "; ".join([*clauses, waiting] if waiting else clauses) + "."
    found = found[0].upper() + found[1:]
    return f"{PRECEDES} {found}" if packet.get("precedes_recording") else found


def _explain_part(packet: dict[str, Any], part: dict[str, Any]) -> str:
    """Says what a part of the packet's excess is, as a clause."""
    spent, batch, by = format_duration(part["ns"]), _name_batch(part.get("batch")), part.get("by")
    mostly = "" if part.get("batch_ns", part["ns"]) >= THERE_SHARE * part["ns"] else ", mostly"
    function, cause = part.get("function") or "what runs outside of the probed functions", packet["cause"]
    where = f"{mostly} in {batch}" + (f" while {part['during']} ran" if part.get("during") else "")
    command = f" in `{cause['command']}`" if cause.get("command") else ""
    clauses = {
        "own": f"{function} took {spent} longer than usual{mostly} in its own batch",
        "queue": f"{function} took {spent} longer than usual{mostly} in {batch}, which ran before",
        "batching": f"its batch held {_count_others(packet)}, whose work came first: {spent}",
        "burst": f"more packets arrived at once than this thread could process{_name_flow(cause)}: {spent}",
        "preemption": f"the scheduler ran {by or 'something else'} for {spent}{where}",
        "interrupt": f"interrupts took the CPU for {spent}{f' (mostly {by})' if by else ''}{where}",
        "host": f"the hypervisor took the CPU for {spent}{where}",
        "fault": f"{function} was blocked for {spent}{mostly} in {batch}{f' ({by})' if by else ''}",
        "wait": f"{function} waited {spent} for another thread{mostly} in {batch}{f' ({by})' if by else ''}",
        "barrier": f"another thread held this one for {spent}{command}",
        "firmware": f"nothing but {by or 'system management interrupts'} explains {spent}{where}",
    }
    return clauses.get(part["kind"], f"{part['kind']}{f' ({by})' if by else ''} took {spent}{where}")


OWNERS = {
    "batching": "other packets of its batch",
    "burst": "more packets before it",
    "preemption": "another task",
    "interrupt": "interrupts",
    "host": "the hypervisor",
    "barrier": "the barrier",
    "firmware": "system management interrupts",
}


def describe_split(cause: dict[str, Any]) -> str:
    """Returns whose the time is that a packet was late, the largest part first: `6.10 ms the hypervisor, ...`."""
    parts = [f"{format_duration(part['ns'])} {_name_owner(part)}" for part in cause.get("parts", ())]
    if cause.get("unexplained_ns"):
        parts.append(f"{format_duration(cause['unexplained_ns'])} unexplained")
    return ", ".join(parts)


def _name_owner(part: dict[str, Any]) -> str:
    if part["kind"] in ("own", "queue"):
        return str(part.get("function") or "unprobed code")
    return str(part.get("by") or OWNERS.get(part["kind"], part["kind"]))


def describe_packet(packet: dict[str, Any]) -> str:
    """Describes the packet in one line: flow, length, ID and disposition."""
    parts = [packet["flow"]]
    if packet.get("length"):
        parts.append(f"{packet['length']} B")
    if packet.get("disposition"):
        parts.append(packet["disposition"])
    return ", ".join(parts)


def explain_origins(counts: dict[str, int]) -> str:
    """Describes where latencies start, from the `latency_from` of a report; empty if there are none."""
    found = sorted(((count, ORIGINS[name]) for name, count in counts.items() if count), reverse=True)
    if len(found) == 1:
        return f"counted from {found[0][1]}"
    total = sum(count for count, _ in found)
    words = [f"for {_name_share(count / total)} of them from {origin}" for count, origin in found]
    return "counted " + "; ".join(words) if found else ""


def explain_prior(prior: object) -> str:
    """Returns a sentence about the `prior` of a summary or report, possibly from a damaged recording; empty: none."""
    packets, longest = (prior.get(name) if isinstance(prior, dict) else None for name in ("packets", "longest_ns"))
    if not isinstance(packets, int) or not isinstance(longest, int) or packets <= 0:
        return ""
    return (
        f"{format_count(packets)} more packets can have waited since before the recording began, for up to "
        f"{format_duration(longest)} (nfprobe's own attach makes packets wait): no latency counts them"
    )


def explain_unlisted(packets: dict[str, Any]) -> str:
    """Returns a sentence where the slowest packets of a report's `packets` were counted, but not identified."""
    slowest, longest = packets.get("slowest"), (packets.get("latency_ns") or {}).get("max")
    if not slowest or packets.get("flow") or not longest or longest <= LISTED_SHARE * slowest[0]["latency_ns"]:
        return ""
    return (
        f"the slowest packets, up to {format_duration(longest)}, are not in the list: late capture had not learned yet "
        "which packets are late (--packets all identifies each)"
    )


def explain_stolen(stolen: object) -> str:
    """Returns a sentence about the `stolen` of a summary, possibly from a damaged recording; empty if it is small."""
    share = stolen.get("share") if isinstance(stolen, dict) else None
    if not isinstance(share, float) or not STOLEN_SHARE <= share <= 1:
        return ""
    return (
        f"the host of this virtual machine kept its processors from it for {share:.1%} of the time that they had work: "
        "that also makes packets late: cause `host` where run times tell it, else the function that was running"
    )


def _name_share(share: float) -> str:
    return f"{share:.1%}" if 0.0005 <= share < 0.9995 else "nearly none" if share < 0.5 else "nearly all"


def _name_batch(batch: int | None) -> str:
    return f"batch {format_count(batch)}" if batch is not None else "an earlier batch"


def _name_flow(cause: dict[str, Any]) -> str:
    flow = cause.get("flow")
    return f", {flow['share']:.0%} of them {flow['flow']}" if flow and flow["share"] >= FLOW_SHARE else ""


def _count_others(packet: dict[str, Any]) -> str:
    others = (packet.get("batch_size") or 1) - 1
    return f"{others} other packet{'s' if others != 1 else ''}"


# ---- of a session ---------------------------------------------------------------------------------------------------
# The summary of a session as text: what was measured, what was lost, what it cost.


SUMMARY_LINES = 24  # of a terminal


def format_summary(summary: dict[str, Any], is_whole: bool = False) -> str:
    """Formats the summary object of attach as text.

    Args:
        is_whole: with all nodes and drop reasons, however many lines these are; otherwise it fits a terminal.
    """
    summary = printable_value(summary)
    packets, records, spans = summary["packets"], summary["records"], summary["spans"]
    unpaired, stops, overhead = summary["unpaired"], summary["stops"], summary["overhead"]
    lost = sum(records["lost"].values())
    refused = sum(summary["functions"]["refused"].values())
    lines = [
        f"session of {summary['seconds']:.1f} s on process {summary['pid']}"
        + (", which has ended" if summary["target_ended"] else ""),
        f"  functions  {summary['functions']['probed']:,} probed, {refused:,} refused",
        f"  calls      {summary['calls']:,}; unpaired entries {unpaired['entries']:,}, exits {unpaired['exits']:,}",
        f"  batches    {summary['batches']:,}",
        f"  packets    {packets['received']:,} received, {packets['transmitted']:,} transmitted, "
        f"{packets['dropped']:,} dropped, {_format_rare(packets)}{packets['unknown']:,} unknown",
        f"  records    {records['read']:,} read, {lost:,} lost{_format_loss_hint(records['lost'])}",
        f"  spans      {spans['exported']:,} exported, {spans['dropped']:,} dropped{_format_reasons(spans)}"
        + (f", {spans['spooled']:,} spooled" if spans["spooled"] else "")
        + _format_unwritten(spans),
        f"  stops      {stops['count']}, the longest {stops['longest_ns'] / 1e6:.2f} ms",
        f"  cost       {overhead['ticks_per_call']:.0f} ticks a call, "
        f"{100 * overhead['share_of_core']:.2f} to {100 * overhead['share_of_core_max']:.2f} % of a core",
        f"  clock      accurate to {summary['clock']['error_ns']:,} ns{_format_set(summary['clock']['set_ns'])}",
    ]
    lines += _list_where_known(summary)
    nodes = format_nodes(summary.get("nodes")).splitlines()
    if drops := describe_counts(summary.get("queue_drops") or ()):
        lines.append(f"  queues     full ones dropped packets: {drops}")
    reasons = format_drops(summary.get("drop_reasons"), packets["dropped"]).splitlines()
    wrong = [f"  NOT RESTORED: {sentence}" for sentence in summary["not_restored"]]
    if not is_whole:
        room = SUMMARY_LINES - len(lines) - len(wrong)
        reasons = _cut_lines(reasons, room // 2 if nodes else room)
        nodes = _cut_lines(nodes, room - len(reasons))
    return "\n".join([*lines, *nodes, *reasons, *wrong])


def _list_where_known(summary: dict[str, Any]) -> list[str]:
    """Returns the lines that not every session has."""
    lines = []
    if sentence := explain_prior(summary.get("prior")):
        lines.append(f"  prior      {sentence}")
    if sentence := explain_stolen(summary.get("stolen")):
        lines.append(f"  stolen     {sentence}")
    if "recording" in summary:
        recording = summary["recording"]
        files = recording.get("files", [recording["file"]])
        shown = f"{', '.join(files)}, {recording['bytes']:,} bytes: nfprobe report {files[-1]}" if files else "nothing"
        lines.append(f"  recording  {shown}")
    if "children" in summary:
        children, missed = summary["children"], summary["children_missed"]
        calls = sum(child["calls"] for child in children)
        lines.append(f"  children   {len(children):,} measured with {calls:,} calls, {missed:,} missed")
    return lines


def _cut_lines(lines: list[str], room: int) -> list[str]:
    if len(lines) <= room:
        return lines
    kept = lines[: max(room - 1, 0)]
    return [*kept, f"  ...        {len(lines) - len(kept):,} more lines: -v, or nfprobe report of a recording"]


def _format_loss_hint(lost: dict[str, int]) -> str:
    """Suggests what to do if rings were full; this does not help with invalid records (torn, mistimed)."""
    is_full = any(lost[name] for name in ("call", "packet", "poll"))
    return ": rings were full; next: fewer --functions, or a larger --ring-size" if is_full else ""


def _format_rare(packets: dict[str, int]) -> str:
    return "".join(f"{packets[name]:,} {name}, " for name in ("punted", "absorbed") if packets.get(name))


def _format_set(set_ns: int) -> str:
    if not set_ns:
        return ""
    return f"; the system's was set by {set_ns / 1e9:+,.3f} s meanwhile, which times here ignore"


def _format_unwritten(spans: dict[str, Any]) -> str:
    reasons = spans.get("dropped_traces") or {}
    return "".join(f"; traces not written: {count:,} {reason}" for reason, count in reasons.items())


def _format_reasons(spans: dict[str, Any]) -> str:
    reasons = spans.get("dropped_reasons") or {}
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})" if reasons else ""


# ---- table ----------------------------------------------------------------------------------------------------------


BAR_CHARACTERS = 40
HISTOGRAM_ROWS = 16
EXCESS = ("mean_excess_ns", "max_excess_ns")


def render_table(report: Report) -> str:
    """Returns the whole report as text, ending with a newline."""
    document = printable_value(report.document)
    sections = [
        _format_title(report),
        format_functions(document["functions"]),
        format_nodes(document.get("nodes")),
        _format_counters(document),
        format_batches(document["batches"]),
        _format_packets(document["packets"]),
        format_drops(document["packets"].get("drop_reasons"), document["packets"]["dropped"]),
        format_flow(document["packets"]),
        format_causes(document["packets"]),
        explain_stolen(document["recording"].get("stolen")),
        format_slowest(document["packets"]["slowest"]),
        format_queue_drops(document.get("queue_drops"), document["recording"]["start_unix_ns"]),
        _format_losses(report),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def format_functions(functions: Sequence[dict[str, Any]]) -> str:
    """Returns one row per called function, the largest total first."""
    if not any(function["calls"] for function in functions):
        return "No call was recorded."
    rows = [["function", "calls", "total", "self", "min", "p50", "p90", "p99", "max"]]
    for function in sorted(functions, key=lambda function: -function["total_ns"]):
        if not function["calls"]:
            continue
        times = [function[key] for key in ("total_ns", "self_ns", "min_ns", "p50_ns", "p90_ns", "p99_ns", "max_ns")]
        cells = [format_duration(time) for time in times]
        if function.get("strategy") == ENTRY_ONLY:
            cells = ["-"] * len(times)
        mark = " *" if function.get("below_resolution") else ""
        rows.append([function["name"] + mark, format_count(function["calls"]), *cells])
    return align_columns(rows) + _format_resolution(functions)


def format_nodes(nodes: Sequence[dict[str, Any]] | None) -> str:
    """Returns one row per graph node, in the format of the NF itself."""
    return align_columns(node_rows(nodes)) if nodes else ""


def format_drops(reasons: Sequence[dict[str, Any]] | None, dropped: int) -> str:
    """Returns one row per drop reason."""
    rows = list(drop_rows(reasons or (), dropped))
    return align_columns(rows) if rows else ""


def _format_counters(document: dict[str, Any]) -> str:
    rows = counter_rows(document["functions"])
    return "\n".join(filter(None, [align_columns(rows) if rows else "", describe_batches(document["batches"])]))


def _format_resolution(functions: Sequence[dict[str, Any]]) -> str:
    """Explains the marks in the table."""
    if not any(function.get("below_resolution") for function in functions):
        return ""
    whole = max(function["probe_ns"]["whole"] for function in functions if function.get("below_resolution"))
    return f"\n* below resolution: a call takes less than three times what its probe costs ({whole:.0f} ns, taken off)"


def format_batches(batches: dict[str, Any]) -> str:
    """Returns the number of batches of each size, as bars."""
    histogram = [(int(size), count) for size, count in batches["size_histogram"]]
    lines = [f"{format_count(batches['count'])} batches by size"]
    groups = _group_sizes(histogram)
    largest = max((count for _, count in groups), default=0)
    for label, count in groups:
        bar = "#" * max(1, round(BAR_CHARACTERS * count / largest)) if count else ""
        lines.append(f"{label:>9}  {bar:<{BAR_CHARACTERS}}  {format_count(count)}")
    latency = batches["latency_ns"]
    if batches["count"]:
        words = [f"{key} {format_duration(latency[key])}" for key in ("p50", "p99", "p999", "max")]
        lines.append("time of a batch: " + ", ".join(words))
    return "\n".join(lines)


def format_slowest(slowest: Sequence[dict[str, Any]]) -> str:
    """Returns the slowest packets, each with the call that made it late."""
    if not slowest:
        return ""
    lines = [f"the {len(slowest)} slowest packets" if len(slowest) > 1 else "the slowest packet"]
    for number, packet in enumerate(slowest, 1):
        lines.append(f"{number:>3}. {format_duration(packet['latency_ns']):>8}  {describe_packet(packet)}")
        lines.append(f"     {'':>8}  {explain_cause(packet)}")
        if split := describe_split(packet["cause"]):
            lines.append(f"     {'':>8}  {split}")
        lines.append(f"     {'':>8}  id {packet['id']}, content id {packet['content_id']}")
    return "\n".join(lines)


def format_flow(packets: dict[str, Any]) -> str:
    """Returns the flow filter of the packets below, if there is one."""
    return f"below only packets of: {packets['flow']}" if packets.get("flow") else ""


def format_causes(packets: dict[str, Any]) -> str:
    """Returns the causes of late packets, one row per cause, the most frequent first; the last column has the time that
    it took of all of them.
    """
    causes = packets.get("causes")
    if not causes:
        return ""
    late = packets["late"]
    count, over = format_count(late["packets"]), format_duration(late["over_ns"])
    rows = [["cause", "function", "packets", "share", "mean excess", "max", "total"]]
    for cause in causes:
        is_known = cause["kind"] != "unknown" and cause["packets"]
        excess = [format_duration(cause[key]) if is_known else "-" for key in EXCESS]
        excess.append(format_duration(cause["total_ns"]))
        counted = [format_count(cause["packets"]), f"{cause['share']:.1%}"]
        rows.append([cause["kind"], cause["function"] or "-", *counted, *excess])
    return f"what made the {count} packets over {over} late\n" + align_columns(rows)


# ---- queue drops ----------------------------------------------------------------------------------------------------


DROP_ROWS = 10
UNKNOWN_DROPS = {
    "no_reader": "unknown: which thread reads it is not known",
    "several_readers": "unknown: several threads read it",
    "no_batches": "unknown: nothing is known of its thread then",
    "nothing_half": "unknown: nothing explains half of the time",
}


def format_queue_drops(drops: dict[str, Any] | None, start_unix_ns: int) -> str:
    """Returns what queues dropped, and the stalls that filled them: the most expensive ones, in the order of time."""
    if not drops:
        return ""
    events = sorted(drops["events"], key=lambda event: -event["packets"])[:DROP_ROWS]
    rows = [["what dropped packets", "packets", "between", "cause", "function or by", "stall", "batch"]]
    for event in sorted(events, key=lambda event: event["since_unix_ns"]):
        cause = event["cause"]
        times = [(event[key] - start_unix_ns) / 1e9 for key in ("since_unix_ns", "until_unix_ns")]
        rows.append(
            [
                event["queue"],
                ("at least " if event.get("at_least") else "") + format_count(event["packets"]),
                f"{times[0]:.3f} and {times[1]:.3f} s",
                UNKNOWN_DROPS.get(cause["why"], "unknown") if cause["why"] else cause["kind"],
                _name_culprit(cause),
                format_duration(cause["stall_ns"]) if cause["stall_ns"] else "-",
                str(cause["batch"]) if cause["batch"] else "-",
            ]
        )
    shown = sum(event["packets"] for event in events)
    others = sum(queue["packets"] for queue in drops["queues"]) - shown
    more = f"\n{format_count(others)} more packets, dropped at other times" if others > 0 else ""
    return align_columns(rows) + more


def _name_culprit(cause: dict[str, Any]) -> str:
    """Returns who it was: a function, what ran instead, or a burst's flow."""
    if cause["kind"] == "function":
        return cause["function"] or "outside of probed functions"
    if cause.get("flow"):
        return f"{cause['flow']['flow']} ({cause['flow']['share']:.0%})"
    return cause["by"] or "-"


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as aligned text: first column left, the others right, first row underlined."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _format_title(report: Report) -> str:
    header = report.header
    name = printable(PurePath(header.executable).name) or "unknown program"
    version = printable(header.resource.get("service.version", ""))
    words = f"{name} {version}".rstrip() + f", pid {header.pid}"
    if header.host:
        words += f" on {header.host}"
    if report.duration_ns:
        words += f", {format_duration(report.duration_ns)} recorded"
    return words


def _format_packets(packets: dict[str, Any]) -> str:
    rare = [key for key in ("punted", "absorbed") if packets.get(key)]
    keys = ["received", "transmitted", "dropped", *rare, "unknown"]
    text = "packets: " + ", ".join(f"{format_count(packets[key])} {key}" for key in keys)
    latency = packets.get("latency_ns")
    if latency and latency.get("max") is not None:
        words = [f"{key} {format_duration(latency[key])}" for key in ("p50", "p99", "p999", "max")]
        text += "\nlatency of a packet: " + ", ".join(words)
        text += "\n" + explain_origins(packets["latency_from"])
    for sentence in (explain_unlisted(packets), explain_prior(packets.get("prior"))):
        text += "\n" + sentence if sentence else ""
    return text


def _format_losses(report: Report) -> str:
    lost = report.document["lost"]
    words = [f"{format_count(count)} {kind}" for kind, count in lost.items() if count]
    lines = ["lost records: " + (", ".join(words) if words else "none")]
    if report.damage:
        lines.append(report.damage)
    return "\n".join(lines)


def _group_sizes(histogram: Sequence[tuple[int, int]]) -> list[tuple[str, int]]:
    # One row per size if there are few sizes; otherwise ranges of equal width.
    if not histogram:
        return []
    largest = max(size for size, _ in histogram)
    if len(histogram) <= HISTOGRAM_ROWS:
        return [(format_size(size), count) for size, count in sorted(histogram)]
    width = -(-largest // (HISTOGRAM_ROWS // 2))
    groups = []
    for first in range(1, largest + 1, width):
        last = min(first + width - 1, largest)
        count = sum(count for size, count in histogram if first <= size <= last)
        groups.append((f"{first}..{last}" if first < last else str(first), count))
    return groups


# ---- counters -------------------------------------------------------------------------------------------------------
# Counters as text: per call of each function, and per packet (divided by the number of packets in its batch).


def list_counters(functions: Sequence[dict[str, Any]]) -> list[str]:
    """Returns the names of all counters that any function was measured with, in order."""
    found: dict[str, None] = {}
    for function in functions:
        found |= dict.fromkeys(_entries(function))
    return list(found)


def _entries(function: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the counters of a function. If the set was changed meanwhile, it may have only some of them."""
    return {name: value for name, value in function.get("counters", {}).items() if isinstance(value, dict)}


def counter_rows(functions: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Returns a table of the mean per call, the largest first counter first; empty if there is none.

    The first row names the columns.
    """
    names = list_counters(functions)
    if not names:
        return []
    ratios = [key for function in functions for key, value in function.get("counters", {}).items() if _is_ratio(value)]
    derived = list(dict.fromkeys(ratios))
    counted = [function for function in functions if _entries(function)]
    counted.sort(key=lambda function: -(function["counters"].get(names[0], {}).get("total") or 0))
    is_compensated = any(
        entry.get("probe", {}).get("whole") for function in counted for entry in _entries(function).values()
    )
    title = "counters per call, without the probes" if is_compensated else "counters per call"
    rows = [[title, "counted", "not counted", *names, *(name.replace("_", " ") for name in derived)]]
    for function in counted:
        counters, entries = function["counters"], _entries(function).values()
        calls, invalid = (max(entry[key] for entry in entries) for key in ("calls", "invalid"))
        cells = [_format_mean(counters.get(name, {}).get("mean")) for name in names]
        cells += [f"{counters[name]:.3f}" if name in counters else "-" for name in derived]
        rows.append([function["name"], format_count(calls), format_count(invalid), *cells])
    return rows


def describe_batches(batches: dict[str, Any]) -> str:
    """Describes a packet's share of its batch's counters in one line; empty without counters."""
    counters = batches.get("counters") or {}
    shares = {key: value for key, value in counters.items() if key.endswith("_per_packet")}
    if not shares:
        return ""
    words = [f"{key.removesuffix('_per_packet')} {value:,.1f}" for key, value in shares.items()]
    left = f"; {format_count(counters['invalid_batches'])} batches not counted" if counters["invalid_batches"] else ""
    return f"per packet, divided over the packets of its batch: {', '.join(words)}{left}"


def _is_ratio(value: Any) -> bool:
    return isinstance(value, float)


def _format_mean(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:,.1f}"
