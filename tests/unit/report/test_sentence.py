# SPDX-License-Identifier: Apache-2.0
"""What is said of one slow packet."""

from __future__ import annotations

from typing import Any

import pytest

from otel_nfprobe.report.views.table import PRECEDES, explain_cause


def packet(kind: str, **more: Any) -> dict[str, Any]:
    cause = {"kind": kind, "function": "fw_output", "excess_ns": 6_000_000, "batch": 7}
    return {"cause": cause, "queue_wait_ns": 5_000, "arrival_source": "mbuf stamp", "batch_size": 3, **more}


@pytest.mark.parametrize("kind", ["own", "queue", "burst", "preemption", "barrier", "batching", "unknown"])
def test_a_wait_before_the_recording_is_said_first(kind: str) -> None:
    sentence = explain_cause(packet(kind))
    assert sentence.endswith(".")
    assert PRECEDES not in sentence
    assert explain_cause(packet(kind, precedes_recording=True)) == f"{PRECEDES} {sentence}"


def test_a_bound_is_said_to_be_one() -> None:
    assert "it waited up to 5.00 us in the queue" in explain_cause(packet("queue", arrival_source="poll"))
    assert "it waited 5.00 us in the queue" in explain_cause(packet("queue"))
