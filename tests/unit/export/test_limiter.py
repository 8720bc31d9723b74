# SPDX-License-Identifier: Apache-2.0
"""Limits: the sample goes first, then the late packets that were least late; what is left can still be counted."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.base.columns import latency_ticks
from otel_nfprobe.cli.main import main
from otel_nfprobe.export.delivery import Outcome, OutcomeKind
from otel_nfprobe.export.limiter import (
    BEHIND_PER_S,
    SAMPLE_OVER_LIMIT,
    SAMPLE_WHILE_BEHIND,
    SLOW_OVER_LIMIT,
    SLOW_WHILE_BEHIND,
    Limiter,
    Quota,
    choose,
)
from otel_nfprobe.export.otlp import Exporter
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.monitor.drain import SpanPath
from otel_nfprobe.pipeline.sampling import REASON_SAMPLE, REASON_SLOW, Sampler
from tests.support.marks import in_parts
from tests.support.otlp_receiver import Receiver
from tests.support.span_expectation import NAMES, make_clock
from tests.support.synthetic_columns import SECOND_TICKS, make_columns, move_columns
from tests.support.synthetic_recording import BATCH_SIZE, write_recording
from tests.support.synthetic_recording import PACKETS as RECORDED_PACKETS

RANDOM = st.integers(0, 2**56 - 1)
PACKET = st.tuples(
    st.sampled_from([REASON_SAMPLE, REASON_SLOW, REASON_SAMPLE | REASON_SLOW]), st.integers(0, 99), RANDOM
)


@in_parts(5)
@given(packets=st.lists(PACKET, max_size=40), allowed=st.integers(0, 45))
@settings(max_examples=60, deadline=None)
def test_the_order(part: int, packets: list[tuple[int, int, int]], allowed: int) -> None:
    reasons = np.array([reason for reason, _, _ in packets], np.uint8)
    latency = np.array([ticks for _, ticks, _ in packets], np.int64)
    randomness = np.array([drawn for _, _, drawn in packets], np.uint64)
    kept, threshold = choose(reasons, latency, randomness, allowed)
    assert kept.sum() <= allowed or kept.all()
    late = (reasons & REASON_SLOW) != 0
    if late.sum() > allowed:
        assert kept.sum() == allowed
        assert not kept[~late].any()
        assert latency[late & kept].min(initial=99) >= latency[late & ~kept].max(initial=0)
    else:
        assert kept[late].all()
        assert (randomness[~late] >= threshold).tolist() == kept[~late].tolist()
        if len(np.unique(randomness)) == len(packets):
            assert kept.sum() == min(allowed, len(packets))


def test_a_quota_in_the_packets_own_time() -> None:
    quota, given_ = Quota(10, 1000), 0
    for now in range(5000, 15_000, 50):
        allowed = quota.count_allowed(now)
        given_ += allowed
        quota.take(allowed)
    assert 108 <= given_ <= 110  # what it held, and ten a second
    owing = Quota(10, 1000)
    owing.take(35)
    assert [owing.count_allowed(now) for now in (0, 2000, 3050, 90_000, 80_000)] == [0, 0, 5, 10, 10]
    slow = Quota(0.5, 1000)
    slow.take(1)
    assert [slow.count_allowed(now) for now in (0, 1999, 2000)] == [0, 0, 1]


def explained(limiter: Limiter, columns_count: int = 4000) -> tuple[list[Span], int]:
    """Roots of what is written of a sample of everything, and how many packets there were."""
    columns = make_columns(columns_count, seed=6)
    columns.packets["flags"] = 0
    encoder = SpanEncoder({}, NAMES, 3, make_clock())
    slower = int(np.quantile(latency_ticks(columns), 0.99))
    path = SpanPath(Sampler(1.0, slower), encoder, _Sink(), limiter)  # type: ignore[arg-type]
    path.explainer.add(columns)
    spans = []
    for request in path.explainer.requests():
        spans += ExportTraceServiceRequest.FromString(request.data).resource_spans[0].scope_spans[0].spans
    return [span for span in spans if not span.parent_span_id], columns_count


class _Sink:
    """Takes nothing."""


def reason_of(span: Span) -> str:
    return next(entry.value.string_value for entry in span.attributes if entry.key == "nf.sampling.reason")


@pytest.mark.parametrize("allowed", [100, 1000, 3900])
def test_the_sample_stays_fair_and_says_its_probability(allowed: int) -> None:
    limiter = Limiter(allowed, SECOND_TICKS, is_consistent=True)
    roots, total = explained(limiter)
    assert len(roots) == allowed
    late = [span for span in roots if reason_of(span) == "slow"]
    assert 35 <= len(late) <= 45
    assert dict(limiter.dropped) == {SAMPLE_OVER_LIMIT: total - allowed}
    (state,) = {span.trace_state for span in roots if reason_of(span) == "sample"}
    threshold = int(state.removeprefix("ot=th:").ljust(14, "0"), 16)
    in_sample = [span for span in roots if span.trace_state]
    assert all(int.from_bytes(span.trace_id[-7:], "big") >= threshold for span in in_sample)
    assert {span.trace_state for span in late} <= {"", state}
    probability = 1 - threshold / 2**56
    deviation = (total * probability * (1 - probability)) ** 0.5 / probability
    assert abs(len(in_sample) / probability - total) < 6 * deviation + 1 / probability


def test_a_sample_by_batch_says_no_probability() -> None:
    roots, _ = explained(Limiter(100, SECOND_TICKS))
    assert {span.trace_state for span in roots} == {""}


def test_late_packets_go_last_and_the_least_late_first() -> None:
    limiter = Limiter(10, SECOND_TICKS)
    roots, total = explained(limiter)
    every = [span for span in explained(Limiter(None, 1.0))[0] if reason_of(span) == "slow"]
    lengths = [
        sorted(span.end_time_unix_nano - span.start_time_unix_nano for span in spans) for spans in (every, roots)
    ]
    assert lengths[0][-10:] == lengths[1]
    assert limiter.dropped.total() == total - 10
    assert 25 <= limiter.dropped[SLOW_OVER_LIMIT] <= 35


def test_while_the_drain_is_behind_no_sample_is_written() -> None:
    limiter = Limiter(None, SECOND_TICKS)
    limiter.is_behind = True
    roots, total = explained(limiter)
    assert {reason_of(span) for span in roots} == {"slow"}
    assert dict(limiter.dropped) == {SAMPLE_WHILE_BEHIND: total - len(roots)}
    limiter.take(round(BEHIND_PER_S))
    limiter.dropped.clear()
    explained(limiter)
    assert limiter.dropped.keys() == {SAMPLE_WHILE_BEHIND, SLOW_WHILE_BEHIND}


class SlowTransport:
    """A receiver that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.requests: list[bytes] = []

    def attempt(self, data: bytes, timeout_s: float) -> Outcome:
        self.opened.wait(timeout_s)
        self.requests.append(data)
        return Outcome(OutcomeKind.DELIVERED)

    def cancel(self) -> None:
        self.opened.set()

    def close(self) -> None:
        pass


def test_a_slow_receiver_costs_the_sample_first() -> None:
    """Every selected packet is delivered or counted, nothing is refused by the queue, and the late ones get through."""
    transport, selected, late = SlowTransport(), 0, 0
    exporter = Exporter(transport, queue_bytes=6 << 20)
    encoder = SpanEncoder({}, NAMES, 3, make_clock())
    start, slower = 0, 0
    for take in range(30):
        columns = make_columns(1000, seed=take)
        columns.packets["flags"] = 0
        columns.packets["digest"] += np.uint64(take)
        start = start or int(columns.batches["start_ticks"][0])
        move_columns(columns, start + take * SECOND_TICKS // 100)
        latency = latency_ticks(columns)
        if not slower:
            slower = int(np.quantile(latency, 0.98))
            path = SpanPath(Sampler(1.0, slower), encoder, exporter)
        selected += len(columns.packets)
        late += int((latency > slower).sum())
        path.explainer.add(columns)
        path.submit()
    dropped = dict(path.limits.dropped)
    transport.opened.set()
    counters = exporter.close(60)
    assert not counters.dropped_spans
    roots = [
        span
        for data in transport.requests
        for span in ExportTraceServiceRequest.FromString(data).resource_spans[0].scope_spans[0].spans
        if not span.parent_span_id
    ]
    assert len(roots) + sum(dropped.values()) == selected
    assert dropped[SAMPLE_WHILE_BEHIND] > selected / 3
    through = sum(reason_of(span) == "slow" for span in roots)
    assert through + dropped.get(SLOW_WHILE_BEHIND, 0) == late
    assert through > len(roots) * late / selected * 1.5


@pytest.mark.usefixtures("clean_environment")
def test_an_export_keeps_to_the_limit(receiver: Receiver, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = write_recording(tmp_path / "session.nfp")
    words = ["export", str(recording), "--endpoint", f"http://127.0.0.1:{receiver.port}", "--json"]
    words += ["--slower-than", "10us", "--sample", "1", "--max-traces-per-second"]
    assert main([*words, "100"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    roots = [span for span in receiver.spans() if not span.parent_span_id]
    # It is over in 2 ms: one second's worth.
    assert len(roots) == summary["packets"] == 100
    assert summary["spans"]["dropped_traces"] == {SAMPLE_OVER_LIMIT: RECORDED_PACKETS - 100}
    assert sum(reason_of(span) == "slow" for span in roots) == BATCH_SIZE
    assert {span.trace_state[:6] for span in roots if reason_of(span) == "sample"} == {"ot=th:"}
    first, receiver.requests = receiver.requests, []
    assert main([*words, "100"]) == 0
    assert receiver.requests == first
    for wrong in ("0", "-1", "x", "inf"):
        assert main([*words, wrong]) == 2
