# SPDX-License-Identifier: Apache-2.0
"""The summary of a session, for a person: what was measured, what was lost, what it cost."""

from __future__ import annotations

from typing import Any

from otel_nfprobe.base.printable import printable_value
from otel_nfprobe.report.views.sentence import explain_stolen
from otel_nfprobe.report.views.table import format_drops, format_nodes


def format_summary(summary: dict[str, Any]) -> str:
    """Some lines of text from the summary object of attach."""
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
        f"{100 * overhead['share_of_core']:.2f} % of a core",
        f"  clock      right within {summary['clock']['error_ns']:,} ns{_format_set(summary['clock']['set_ns'])}",
    ]
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
    lines += format_nodes(summary.get("nodes")).splitlines()
    lines += format_drops(summary.get("drop_reasons"), packets["dropped"]).splitlines()
    lines += [f"  NOT RESTORED: {sentence}" for sentence in summary["not_restored"]]
    return "\n".join(lines)


def _format_loss_hint(lost: dict[str, int]) -> str:
    """What to do where rings were full; of records that cannot be (torn, mistimed) nothing of this helps."""
    is_full = any(lost[name] for name in ("call", "packet", "poll"))
    return ": rings were full; next: fewer --functions, or a larger --ring-size" if is_full else ""


def _format_rare(packets: dict[str, int]) -> str:
    return "".join(f"{packets[name]:,} {name}, " for name in ("punted", "absorbed") if packets.get(name))


def _format_set(set_ns: int) -> str:
    if not set_ns:
        return ""
    return f"; the system's was set by {set_ns / 1e9:+,.3f} s meanwhile, which times here do not follow"


def _format_unwritten(spans: dict[str, Any]) -> str:
    reasons = spans.get("dropped_traces") or {}
    return "".join(f"; traces not written: {count:,} {reason}" for reason, count in reasons.items())


def _format_reasons(spans: dict[str, Any]) -> str:
    reasons = spans.get("dropped_reasons") or {}
    return f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})" if reasons else ""
