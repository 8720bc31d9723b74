# SPDX-License-Identifier: Apache-2.0
"""Sentences about one slow packet: what it was and what made it late; and about what may have made any late."""

from __future__ import annotations

from typing import Any

from otel_nfprobe.causes.arrival import POLL
from otel_nfprobe.report.views.numbers import format_count, format_duration

BOUNDS = {POLL: "up to "}  # what a wait says that is not exact, by arrival source
ORIGINS = {  # what a latency counts from, by the names of statistics.ORIGINS
    "stamp": "the arrival's stamp",
    "capture": "the generator's capture",
    "poll": "the last poll that had left the queue empty, a bound",
    "receive": "the receive call: how long they waited before is not known",
}
PRECEDES = (
    "It arrived before the recording begins, or may have: what kept it until then is not in it, and can be nfprobe's"
    " own attach."
)
FLOW_SHARE = 0.1  # of a burst: a flow with less is not worth a name
STOLEN_SHARE = 0.001  # of the time: the slowest packets are looked for among a thousand


def explain_cause(packet: dict[str, Any]) -> str:
    """What made this packet late, from an entry of `packets.slowest` of the report's document."""
    cause = packet["cause"]
    function = cause.get("function") or "What runs outside of the probed functions"
    excess = format_duration(cause.get("excess_ns") or 0)
    batch = _name_batch(cause.get("batch"))
    waited = packet.get("queue_wait_ns")
    bound = BOUNDS.get(packet.get("arrival_source") or "", "")
    waiting = f"it waited {bound}{format_duration(waited)} in the queue" if waited else "it waited in the queue"
    sentences = {
        "own": f"{function} took {excess} longer than usual in its own batch.",
        "batching": f"Its batch held {_count_others(packet)}, whose work came first: {excess} of its time.",
        "queue": f"{function} took {excess} longer than usual in {batch}, which ran before: {waiting}.",
        "burst": f"More packets arrived at once than this thread works off{_name_flow(cause)}: {waiting}.",
        "preemption": f"The scheduler kept the thread from running for {excess} in {batch}"
        + (f": {waiting}." if waited else "."),
        "barrier": f"Another thread held this one for {excess}"
        + (f" in `{cause['command']}`" if cause.get("command") else "")
        + (f": {waiting}." if waited else "."),
    }
    found = sentences.get(cause["kind"], f"No single call stands out: {waiting}." if waited else "No call stands out.")
    return f"{PRECEDES} {found}" if packet.get("precedes_recording") else found


def describe_packet(packet: dict[str, Any]) -> str:
    """The packet in one line: flow, length, id and what became of it."""
    parts = [packet["flow"]]
    if packet.get("length"):
        parts.append(f"{packet['length']} B")
    if packet.get("disposition"):
        parts.append(packet["disposition"])
    return ", ".join(parts)


def explain_origins(counts: dict[str, int]) -> str:
    """From which point latencies count, from the `latency_from` of a report; empty where there are none."""
    found = sorted(((count, ORIGINS[name]) for name, count in counts.items() if count), reverse=True)
    if len(found) == 1:
        return f"counted from {found[0][1]}"
    total = sum(count for count, _ in found)
    words = [f"for {_name_share(count / total)} of them from {origin}" for count, origin in found]
    return "counted " + "; ".join(words) if found else ""


def explain_stolen(stolen: object) -> str:
    """A sentence about the `stolen` of a summary, which may come from a damaged recording; empty where it is little."""
    share = stolen.get("share") if isinstance(stolen, dict) else None
    if not isinstance(share, float) or not STOLEN_SHARE <= share <= 1:
        return ""
    return (
        f"the host of this virtual machine kept its processors from it for {share:.1%} of the time that they had work: "
        "that makes packets late, too, and is blamed on the function that stood still"
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
