# SPDX-License-Identifier: Apache-2.0
"""Repeated ids and contents: marked against a plain set, in bounded memory; shared trace ids never join two packets."""

from __future__ import annotations

import random

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.base.columns import Columns, PacketFlag
from otel_nfprobe.cli.options import recorded_window_ns
from otel_nfprobe.export.span import SpanEncoder
from otel_nfprobe.pipeline.repeats import FOREVER_NS, WINDOW_NS, Repeats, Seen
from tests.support.span_expectation import NAMES, attributes_of, make_clock
from tests.support.synthetic_columns import SECOND_TICKS, START_NS, START_TICKS, make_columns

SECOND = 10**9
MASK = (1 << 64) - 1


def look(repeats: Repeats, digests: list[int], unix_ns: list[int]) -> list[int]:
    return repeats.look(np.array(digests, np.uint64), np.array(unix_ns, np.uint64)).tolist()


def test_against_a_plain_set() -> None:
    """Random digests over many windows, some late: repeated means in the same window or the one before it."""
    rng = random.Random(5)
    repeats, seen, newest = Repeats(SECOND), set[tuple[int, int]](), {0: 0, 1: 1}
    now = 1000 * SECOND
    for _ in range(30_000):
        now += rng.choice((0, 10**5, 10**6))
        time = now - rng.choice((0, 0, 0, 5 * 10**8))
        window, digest = time // SECOND, rng.randrange(1, 3000) * 0x9E3779B97F4A7C15 & MASK
        late = newest[window & 1] > window
        newest[window & 1] = max(newest[window & 1], window)
        near = (window - 1, window, window + 1)
        known = any((w, digest) in seen for w in near if newest[w & 1] == w)
        expected = Seen.PERHAPS if late else Seen.BEFORE if known else 0
        if not late and not known:
            seen.add((window, digest))
        assert look(repeats, [digest], [time]) == [expected]
    assert repeats.counts().packets == 30_000


def test_what_is_forgotten_is_unsure() -> None:
    repeats = Repeats(FOREVER_NS, ids_max=1000)
    digests = [n * 0x9E3779B97F4A7C15 & MASK for n in range(1, 2001)]
    assert look(repeats, digests, [0] * 2000) == [0] * 1000 + [Seen.PERHAPS] * 1000
    assert look(repeats, digests[:1000], [0] * 1000) == [Seen.BEFORE] * 1000


def test_a_new_window_is_empty_again() -> None:
    repeats = Repeats(SECOND, ids_max=100)
    for window in range(5):
        marks = look(repeats, list(range(1 + 1000 * window, 100 + 1000 * window)), [window * SECOND] * 99)
        assert set(marks) == {0}
    assert look(repeats, [4001, 3001, 2001], [4 * SECOND] * 3) == [Seen.BEFORE] * 2 + [0]


@pytest.mark.parametrize("factor", [1 << 40, 1 << 32, pow(0x9E3779B97F4A7C15, -1, 1 << 64)])
def test_hostile_digests_are_remembered_as_any_others(factor: int) -> None:
    """Alike in all bits, or after the usual mixing, that a table of digests could go by."""
    repeats = Repeats(FOREVER_NS)
    digests = [(n * factor & MASK) | (7 if factor >> 32 << 32 == factor else 0) for n in range(1, 20_001)]
    assert set(look(repeats, digests, [0] * len(digests))) == {0}
    assert set(look(repeats, digests, [0] * len(digests))) == {Seen.BEFORE}


def columns_of(digests: list[int], seconds: list[float], ids: list[int] | None = None) -> Columns:
    columns = make_columns(len(digests), batch_size=1)
    columns.packets["digest"] = digests
    columns.packets["id"] = digests if ids is None else ids
    columns.packets["receive_ticks"] = [START_TICKS + round(second * SECOND_TICKS) for second in seconds]
    columns.packets["flags"] = 0
    return columns


def test_packets_are_marked_in_the_order_of_their_receipt() -> None:
    columns = columns_of([7, 8, 7, 0], [0.3, 0.1, 0.2, 0.1])
    columns.packets["flags"] = [PacketFlag.MALFORMED, PacketFlag.CUT, PacketFlag.FRAGMENT, PacketFlag.INNER]
    repeats = Repeats()
    repeats.mark(columns.packets, make_clock())
    assert [bool(flags & PacketFlag.REPEATED) for flags in columns.packets["flags"]] == [True, False, False, False]
    counts = {"repeated": 1, "unsure": 0, "fragments": 1, "truncated": 1, "malformed": 1, "inner": 1}
    assert repeats.counts().as_summary() == counts


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def documented_trace_id(digest: int, unix_ns: int, window_ns: int) -> bytes:
    """As docs/identity.md defines it."""
    high = mix((mix(digest) + unix_ns // window_ns) & MASK)
    return (high or 1).to_bytes(8, "big") + mix(~high & MASK ^ digest).to_bytes(8, "big")


def encode(columns: Columns, session: int, window_ns: int) -> list[tuple[bytes, bytes, dict[str, object]]]:
    """Trace id, span id and attributes of each packet's own span."""
    encoder = SpanEncoder({"service.name": "nf"}, NAMES, session, make_clock(), correlate_window_ns=window_ns)
    every = np.arange(len(columns.packets), dtype=np.uint32)
    requests = encoder.encode(columns, every, np.zeros(len(every), np.uint8))
    spans = [
        span
        for request in requests
        for part in ExportTraceServiceRequest.FromString(request.data).resource_spans
        for scope in part.scope_spans
        for span in scope.spans
    ]
    ids = encoder.find_trace_ids(columns, every)
    roots = [span for span in spans if not span.parent_span_id]
    assert [span.trace_id for span in roots] == [b"".join(int(word).to_bytes(8, "big") for word in row) for row in ids]
    known = {(span.trace_id, span.span_id) for span in spans}
    assert len(known) == len(spans)
    assert all((span.trace_id, span.parent_span_id) in known for span in spans if span.parent_span_id)
    return [(span.trace_id, span.span_id, attributes_of(list(span.attributes))) for span in roots]


@pytest.mark.parametrize("window_ns", [WINDOW_NS, 10**8, FOREVER_NS])
def test_two_monitors_agree_on_the_trace_of_a_packet(window_ns: int) -> None:
    digests = [random.Random(n).getrandbits(64) for n in range(50)]
    offset = (10**10 - START_NS % 10**10) / 1e9  # both NFs in one window
    here = encode(columns_of(digests, [offset + n * 1e-4 for n in range(50)]), 1, window_ns)
    there = encode(columns_of(digests[::-1], [offset + 0.01 + n * 1e-4 for n in range(50)]), 2, window_ns)[::-1]
    unix_ns = START_NS + round(offset * 1e9)
    for digest, (trace, span, values), (other_trace, other_span, _) in zip(digests, here, there, strict=True):
        assert trace == other_trace == documented_trace_id(digest, unix_ns, window_ns)
        assert span != other_span
        assert "nf.packet.ambiguous" not in values


def test_windows_separate_and_repeated_packets_are_never_merged() -> None:
    columns = columns_of([7, 7, 7, 9], [0.0, 1e-3, 2.5, 2.5])
    Repeats.correlating(WINDOW_NS).mark(columns.packets, make_clock())
    columns.packets["flags"][3] |= PacketFlag.AMBIGUOUS
    found = encode(columns, 1, WINDOW_NS)
    assert len({trace for trace, _, _ in found}) == 4
    assert [values.get("nf.packet.ambiguous") for _, _, values in found] == [None, True, None, True]
    assert [values.get("nf.packet.repeated") for _, _, values in found] == [None, True, None, None]
    unique = encode(columns, 1, 0)
    assert unique[1][0] == found[1][0]
    assert unique[0][0] != found[0][0]
    assert not any("nf.packet.ambiguous" in values for _, _, values in unique)


def test_equal_packets_of_several_flows_are_not_repeated_and_share_no_trace() -> None:
    columns = columns_of([7, 7, 7, 9, 7], [0.0, 1e-3, 2e-3, 3e-3, 2.5], ids=[1, 2, 1, 3, 1])
    repeats = Repeats.correlating(WINDOW_NS)
    repeats.mark(columns.packets, make_clock())
    found = encode(columns, 1, WINDOW_NS)
    assert [values.get("nf.packet.repeated") for _, _, values in found] == [None, None, True, None, None]
    assert [values.get("nf.packet.ambiguous") for _, _, values in found] == [None, True, True, None, None]
    assert [values["nf.packet.content_id"] for _, _, values in found] == [f"{n:016x}" for n in (7, 7, 7, 9, 7)]
    assert len({trace for trace, _, _ in found}) == 5
    assert repeats.counts().repeated == 1


def test_contents_beyond_those_remembered_are_ambiguous() -> None:
    columns = columns_of([1, 2, 3, 4], [0.0] * 4)
    repeats = Repeats(WINDOW_NS, ids_max=2, correlates=True)
    repeats.mark(columns.packets, make_clock())
    assert [bool(flags & PacketFlag.AMBIGUOUS) for flags in columns.packets["flags"]] == [False, False, True, True]
    assert repeats.counts().unsure == 2


def test_window_of_a_recording() -> None:
    assert recorded_window_ns({}) == recorded_window_ns({"correlate": "False"}) == 0
    assert recorded_window_ns({"correlate": "True"}) == WINDOW_NS
    assert recorded_window_ns({"correlate": "False", "correlate_window": "5000000"}) == 5_000_000
