# SPDX-License-Identifier: Apache-2.0
"""What is said of one slow packet."""

from __future__ import annotations

from typing import Any

import pytest

from otel_nfprobe.report.views.table import PRECEDES, describe_split, explain_cause


def part(kind: str, ns: int = 6_000_000, **more: Any) -> dict[str, Any]:
    function = "fw_output" if kind in ("own", "queue") else None
    return {"kind": kind, "function": function, "by": None, "batch": 7, "during": None, "ns": ns, **more}


def packet(*parts: dict[str, Any], unexplained_ns: int = 0, **more: Any) -> dict[str, Any]:
    kind = parts[0]["kind"] if parts else "unknown"
    late_ns = sum(part["ns"] for part in parts) + unexplained_ns
    cause = {"kind": kind, "late_ns": late_ns, "parts": list(parts), "unexplained_ns": unexplained_ns}
    return {"cause": cause, "queue_wait_ns": 5_000, "arrival_source": "mbuf stamp", "batch_size": 3, **more}


KINDS = ["own", "queue", "burst", "preemption", "interrupt", "host", "barrier", "batching", "firmware"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_before_the_recording_is_said_first(kind: str) -> None:
    sentence = explain_cause(packet(part(kind)))
    assert sentence.startswith("This packet was 6.00 ms late: ")
    assert sentence.endswith(".")
    assert PRECEDES not in sentence
    assert explain_cause(packet(part(kind), precedes_recording=True)) == f"{PRECEDES} {sentence}"


def test_a_bound_is_said_to_be_one() -> None:
    late = packet(part("queue", 5_500), arrival_source="poll")
    assert "; it waited up to 5.00 us in the queue." in explain_cause(late)
    assert "; it waited 5.00 us in the queue." in explain_cause(late | {"arrival_source": "mbuf stamp"})


@pytest.mark.parametrize(
    ("kind", "by", "said"),
    [
        ("preemption", "kworker/1:2 (tid 71)", "the scheduler ran kworker/1:2 (tid 71) for 6.00 ms in batch 7"),
        ("preemption", None, "the scheduler ran something else for 6.00 ms in batch 7"),
        ("interrupt", "softirq NET_RX", "interrupts took the CPU for 6.00 ms (mostly softirq NET_RX) in batch 7"),
        ("interrupt", None, "interrupts took the CPU for 6.00 ms in batch 7"),
        ("host", None, "the hypervisor took the CPU for 6.00 ms in batch 7"),
        ("firmware", None, "nothing but system management interrupts explains 6.00 ms in batch 7"),
    ],
)
def test_what_ran_instead_is_named(kind: str, by: str | None, said: str) -> None:
    assert explain_cause(packet(part(kind, by=by))) == f"This packet was 6.00 ms late: {said}."


def test_all_of_it_is_said_as_a_person_would() -> None:
    late = packet(
        part("host", 6_100_000, during="fw_output"), part("own", 400_000), part("burst", 200_000), unexplained_ns=20_000
    )
    assert explain_cause(late) == (
        "This packet was 6.72 ms late: the hypervisor took the CPU for 6.10 ms in batch 7 while fw_output ran;"
        " fw_output took 400 us longer than usual in its own batch; more packets arrived at once than this thread"
        " could process: 200 us."
    )
    assert describe_split(late["cause"]) == (
        "6.10 ms the hypervisor, 400 us fw_output, 200 us more packets before it, 20.0 us unexplained"
    )


def test_what_happened_in_many_batches_happened_mostly_in_one() -> None:
    late = packet(part("queue", batch_ns=4_000_000), part("preemption", batch_ns=5_900_000))
    assert explain_cause(late) == (
        "This packet was 12.0 ms late: fw_output took 6.00 ms longer than usual, mostly in batch 7, which ran before;"
        " the scheduler ran something else for 6.00 ms in batch 7."
    )


def test_small_parts_are_in_the_split_alone() -> None:
    late = packet(part("host"), part("interrupt", 60_000, by="softirq NET_RX"), part("own", 60_000, function=None))
    assert explain_cause(late) == "This packet was 6.12 ms late: the hypervisor took the CPU for 6.00 ms in batch 7."
    assert describe_split(late["cause"]) == "6.00 ms the hypervisor, 60.0 us softirq NET_RX, 60.0 us unprobed code"


def test_what_nobody_can_explain() -> None:
    late = packet(part("own", 100_000), unexplained_ns=900_000)
    late["cause"]["kind"] = "unknown"
    assert explain_cause(late) == (
        "This packet was 1.00 ms late: no single call stands out; fw_output took 100 us longer than usual in its own"
        " batch; nothing explains 900 us; it waited 5.00 us in the queue."
    )
    assert explain_cause(packet()) == "No single call stands out; it waited 5.00 us in the queue."
    assert describe_split(packet()["cause"]) == ""
