# SPDX-License-Identifier: Apache-2.0
"""What is said of one slow packet."""

from __future__ import annotations

from typing import Any

import pytest

from otel_nfprobe.report.views.table import PRECEDES, explain_cause


def packet(kind: str, **more: Any) -> dict[str, Any]:
    cause = {"kind": kind, "function": "fw_output", "excess_ns": 6_000_000, "batch": 7}
    return {"cause": cause, "queue_wait_ns": 5_000, "arrival_source": "mbuf stamp", "batch_size": 3, **more}


KINDS = ["own", "queue", "burst", "preemption", "interrupt", "host", "barrier", "batching", "unknown"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_before_the_recording_is_said_first(kind: str) -> None:
    sentence = explain_cause(packet(kind))
    assert sentence.endswith(".")
    assert PRECEDES not in sentence
    assert explain_cause(packet(kind, precedes_recording=True)) == f"{PRECEDES} {sentence}"


def test_a_bound_is_said_to_be_one() -> None:
    assert "it waited up to 5.00 us in the queue" in explain_cause(packet("queue", arrival_source="poll"))
    assert "it waited 5.00 us in the queue" in explain_cause(packet("queue"))


@pytest.mark.parametrize(
    ("kind", "by", "said"),
    [
        ("preemption", "kworker/1:2 (tid 71)", "The scheduler ran kworker/1:2 (tid 71) for 6.00 ms in batch 7"),
        ("preemption", None, "The scheduler ran something else for 6.00 ms in batch 7"),
        ("interrupt", "softirq NET_RX", "Interrupts took the CPU for 6.00 ms, mostly softirq NET_RX, in batch 7"),
        ("interrupt", None, "Interrupts took the CPU for 6.00 ms in batch 7"),
        ("host", None, "The host of this virtual machine took the processor for 6.00 ms in batch 7"),
    ],
)
def test_what_ran_instead_is_named(kind: str, by: str | None, said: str) -> None:
    late = packet(kind)
    late["cause"]["by"] = by
    assert explain_cause(late) == f"{said}: it waited 5.00 us in the queue."
