# SPDX-License-Identifier: Apache-2.0
"""What made packets late in a chain, as text for a terminal: ways, times between, blame, and the slowest packets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.report.views.numbers import format_count, format_duration
from otel_nfprobe.report.views.table import align_columns

ARROW = " -> "
UNCOVERED_NS = 100_000  # usually passing between two recordings: something is missing there
NOT_IDENTIFIED_SHARE = 0.05  # of the packets: with --packets all the last ones of a session are not
WAYS_SHOWN, BLAME_SHOWN = 10, 20


def render_why(document: dict[str, Any]) -> str:
    """Returns the whole document as text, ending with a newline."""
    document = printable_value(document)
    sections = [
        _format_joined(document),
        _format_ways(document["ways"]),
        _format_between(document["between"]),
        _format_clocks(document["clocks"]),
        _format_blame(document),
        _format_packets(document["packets"]),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def explain_late(packet: dict[str, Any]) -> str:
    """Explains in one sentence where a packet was late and what that comes from."""
    late, cause = format_duration(packet["late_there_ns"]), packet["cause"]
    if packet["is_between"]:
        local = packet["local_cause"]
        where = f"{late} late between {local['after']} and {local['nf']}"
    else:
        where = f"{late} late in {packet['late_in']}"
    is_elsewhere = packet["is_between"] or cause["nf"] != packet["late_in"]
    released = cause.get("released") if is_elsewhere else None
    if cause["kind"] == "between" and not released:
        at = f"between {cause['after']} and {cause['nf']}"
        return f"{where}: {format_duration(cause['ns'])} pass {at} that no recording covers."
    if cause["kind"] == "burst" and is_elsewhere and not released:
        return f"{where}: {_name_delay(cause)}, and from {cause['nf']} on nothing held them: so the source sent them."
    if not released:
        place = f"in {cause['nf']} " if is_elsewhere else ""
        return f"{where}: {place}{_name_delay(cause)}."
    behind = f"behind {_count_packets(released['packets'])} that"
    if cause["kind"] == "between":
        place = f"between {cause['after']} and {cause['nf']}, which no recording covers"
        return f"{where}: {behind} came at once from {place}."
    place = "" if cause["nf"] == released["by"] else f", as in {cause['nf']}"
    return f"{where}: {behind} {released['by']} released at once after {place}{_name_delay(cause)}."


def _name_delay(cause: dict[str, Any]) -> str:
    held, by = format_duration(cause["held_ns"]), cause.get("by")
    function = cause.get("function") or "what runs outside of the probed functions"
    words = {
        "own": f"{function} took {held} longer than usual",
        "queue": f"{function} took {held} longer than usual",
        "batching": f"larger batches than usual took {held}",
        "burst": f"more packets came at once than it could work off in {held}",
        "preemption": f"it stood for {held}, because {by or 'something else'} ran on its CPU",
        "interrupt": f"it stood for {held}, because of interrupts" + (f", mostly {by}" if by else ""),
        "host": f"it stood for {held}, because the host of the virtual machine took the CPU",
        "fault": f"it stood for {held}, because of {by or 'page faults or system calls'}",
        "wait": f"it waited for {held}" + (f", for {by}" if by else ""),
        "firmware": f"it stood for {held}, because of {by or 'system management interrupts'} of the firmware",
        "barrier": f"it stood for {held}, because another thread of it held this one",
    }
    return words.get(cause["kind"], f"no single call stands out in {held}")


def _format_joined(document: dict[str, Any]) -> str:
    joined = document["joined"]
    rows = [["recording", "packets", "joined", "ambiguous", "not identified", "file"]]
    for one in document["recordings"]:
        counts = [format_count(one[key]) for key in ("packets", "joined", "ambiguous", "not_identified")]
        rows.append([one["name"], *counts, one["file"]])
    lines = [f"{_count_packets(joined['packets'])} seen in more than one recording", align_columns(rows)]
    if joined["by_content"]:
        lines.append(f"{format_count(joined['by_content'])} of them by their content: addresses or ports are rewritten")
    for one in document["recordings"]:
        if one["left_out"]:
            lines.append(f"of {one['name']} the last {_count_packets(one['left_out'])} were left out")
        if one["not_identified"] > NOT_IDENTIFIED_SHARE * one["packets"]:
            lines.append(
                f"{one['name']} was not recorded with --packets all: what released packets at once may be missing"
            )
    for key, words in (("impossible", "were dropped, or not yet sent, when the next one received their id"),
                       ("inconsistent", "hops contradict each other")):  # fmt: skip
        if joined[key]:
            lines.append(f"{format_count(joined[key])} {words}: not joined")
    return "\n".join(lines)


def _format_ways(ways: Sequence[dict[str, Any]]) -> str:
    rows = [["way", "packets", "p50", "p99", "max"]]
    for way in ways[:WAYS_SHOWN]:
        times = [format_duration(way["latency_ns"][key]) for key in ("p50", "p99", "max")]
        rows.append([ARROW.join(way["way"]), format_count(way["packets"]), *times])
    return align_columns(rows)


def _format_between(between: Sequence[dict[str, Any]]) -> str:
    if not between:
        return ""
    rows = [["between", "packets", "p50", "p99", "max", "at most, p50", "p99", "lost"]]
    notes = []
    for one in between:
        least, most = one["at_least_ns"], one["at_most_ns"]
        times = [format_duration(least[key]) for key in ("p50", "p99", "max")]
        times += [format_duration(most[key]) for key in ("p50", "p99")]
        lost = "-" if one["lost"] is None else format_count(one["lost"])
        rows.append([f"{one['from']}{ARROW}{one['to']}", format_count(one["packets"]), *times, lost])
        if least["p50"] >= UNCOVERED_NS:
            notes.append(
                f"between {one['from']} and {one['to']} {format_duration(least['p50'])} to"
                f" {format_duration(most['p99'])} pass that no recording covers"
            )
    return "\n".join([align_columns(rows), *notes])


def _format_clocks(clocks: Sequence[dict[str, Any]]) -> str:
    lines = []
    for clock in clocks:
        if clock["is_same"]:
            continue
        there, back = clock["packets"]
        offset = f"the clock of {clock['name']} is moved by {clock['offset_ns'] / 1e6:+,.3f} ms"
        if clock["error_ns"] is None:
            lines.append(
                f"{offset}: packets go only one way, so the fastest of {format_count(there + back)} counts as having"
                " taken no time, and times between are beyond it"
                + ("" if clock["is_order_known"] else "; which one was first is as the clocks say")
            )
            continue
        rate = f" and {clock['rate'] * 1e6:+.1f} us a second" if clock["rate"] else ""
        lines.append(
            f"{offset}{rate}, known to {format_duration(clock['error_ns'])} from {format_count(there)} packets one way"
            f" and {format_count(back)} the other"
        )
    return "\n".join(lines)


def _format_blame(document: dict[str, Any]) -> str:
    late = document["late"]
    if not late["judged"]:
        return f"no packet over {format_duration(late['over_ns'])} is later than usual on its way"
    judged = "" if late["judged"] == late["packets"] else f" ({format_count(late['judged'])} of them judged)"
    title = (
        f"whose delay it was, of the {_count_packets(late['packets'])} over {format_duration(late['over_ns'])}{judged}"
    )
    local = "the same, where they were late: without the other recordings"
    return f"{title}\n{_blame_rows(document['blame'])}\n\n{local}\n{_blame_rows(document['baseline'])}"


def _blame_rows(blame: Sequence[dict[str, Any]]) -> str:
    rows = [["where", "cause", "function", "packets", "share", "mean", "max"]]
    for one in blame[:BLAME_SHOWN]:
        place = f"{one['after']}{ARROW}{one['nf']}" if one["kind"] == "between" else one["nf"]
        times = [format_duration(one["mean_ns"]), format_duration(one["max_ns"])]
        counts = [format_count(one["packets"]), f"{one['share']:.1%}"]
        rows.append([place, one["kind"], one["function"] or "-", *counts, *times])
    return align_columns(rows)


def _format_packets(packets: Sequence[dict[str, Any]]) -> str:
    if not packets:
        return ""
    lines = [f"the {len(packets)} slowest packets" if len(packets) > 1 else "the packet"]
    for number, packet in enumerate(packets, 1):
        lines.append(f"{number:>3}. {format_duration(packet['latency_ns']):>8}  {packet['flow']}, id {packet['id']}")
        lines.append(f"     {'':>8}  {explain_late(packet)}")
        lines += [f"     {'':>8}  {line}" for line in _describe_way(packet["way"])]
        rest = [part for part in packet["parts"][1:] if part["share"] >= 0.05]
        if rest:
            words = [f"{format_duration(part['ns'])} {part['nf']} {part['function'] or part['kind']}" for part in rest]
            lines.append(f"     {'':>8}  besides: {', '.join(words)}")
    return "\n".join(lines)


def _describe_way(way: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for hop in way:
        if hop["between_ns"] is not None and hop["between_at_most_ns"]:
            least, most = format_duration(hop["between_ns"]), format_duration(hop["between_at_most_ns"])
            lines.append(f"between {least}, with the queue at most {most}")
        lines.append(
            f"{hop['nf']}: queue {format_duration(hop['queue_ns'])}, batch {hop['batch']} of {hop['batch_size']}"
            f" {format_duration(hop['batch_ns'])}"
        )
    return lines


def _count_packets(count: int) -> str:
    return f"{format_count(count)} packet{'s' if count != 1 else ''}"
