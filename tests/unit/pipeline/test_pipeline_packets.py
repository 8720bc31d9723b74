# SPDX-License-Identifier: Apache-2.0
"""Records made by hand, one test per rule of packets, losses of them, and garbage."""

from __future__ import annotations

import pytest

from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, UNKNOWN, PacketFlag, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline
from tests.support.synthetic_records import (
    DR,
    ROLES,
    RX,
    TX,
    TX2,
    F,
    G,
    burst,
    entry,
    hand_on,
    leave,
    lost,
    packet,
    poll,
    receiver,
    record,
    records,
    run,
    value,
)


def test_packets_of_one_thread() -> None:
    rows = [*poll(RX, 10, 20, 800, 3), *burst(RX, [1, 2, 3]), *hand_on(TX, 30, 40, 800, [1, 2, 3])]
    columns, counts = run(rows)
    assert columns.packets["buffer"].tolist() == [1, 2, 3]
    assert columns.packets["digest"].tolist() == [3, 6, 9]
    assert columns.packets["index"].tolist() == [0, 1, 2]
    assert columns.packets["receive_ticks"].tolist() == [20] * 3
    assert columns.packets["done_ticks"].tolist() == [40] * 3
    assert columns.packets["disposition"].tolist() == [TRANSMITTED] * 3
    assert columns.packets["done_function"].tolist() == [TX] * 3
    assert columns.packets["done_digest"].tolist() == [3, 6, 9]
    assert columns.batches[["size", "packets", "transmitted", "dropped", "flags"]].tolist() == [(3, 3, 3, 0, 0)]
    assert (counts.received, counts.transmitted, counts.unknown, counts.generated) == (3, 3, 0, 0)


def test_refused_packets_are_retried_and_dropped() -> None:
    rows = [*poll(RX, 10, 20, 800, 4), *burst(RX, [1, 2, 3, 4]), *hand_on(TX, 30, 40, 800, [1, 2, 3, 4], 2)]
    rows += [*hand_on(TX, 50, 60, 800, [3, 4], 1), *hand_on(DR, 70, 80, 800, [4])]
    columns, counts = run(rows)
    assert columns.packets["done_ticks"].tolist() == [40, 40, 60, 80]
    assert columns.packets["disposition"].tolist() == [TRANSMITTED] * 3 + [DROPPED]
    assert columns.batches[["transmitted", "dropped"]].tolist() == [(3, 1)]
    assert (counts.transmitted, counts.dropped, counts.unknown) == (3, 1, 0)


def test_values_count_where_packets_are_not_described() -> None:
    rows = [*poll(RX, 10, 20, 800, 10), entry(TX, 30, 800), value(TX, 7 | 10 << 32, 800), leave(TX, 40, 800)]
    rows += [entry(DR, 50, 800), value(DR, 2 | 2 << 32, 800), leave(DR, 60, 800)]
    columns, counts = run(rows)
    assert columns.batches[["transmitted", "dropped"]].tolist() == [(7, 2)]
    assert (counts.received, counts.transmitted, counts.dropped, counts.unknown) == (10, 7, 2, 1)


def test_transmit_inside_transmit_counts_once() -> None:
    inner = [entry(TX2, 35, 700), *burst(TX2, [1, 2]), value(TX2, 2 | 2 << 32, 700), leave(TX2, 38, 700)]
    rows = [*poll(RX, 10, 20, 800, 2), *burst(RX, [1, 2]), entry(TX, 30, 800), *burst(TX, [1, 2]), *inner]
    columns, counts = run([*rows, value(TX, 2 | 2 << 32, 800), leave(TX, 40, 800)])
    assert columns.packets["done_function"].tolist() == [TX, TX]
    assert (counts.transmitted, counts.generated) == (2, 0)


def test_facts_of_a_packet() -> None:
    source, destination = 0x0A000001, 0xC0A80102
    v4 = [record(10, RX, source | destination << 32, 1000 | 2000 << 16), record(11, RX, 5, 0)]
    high, low = 0x20010DB800000000, 1
    v6 = [record(12, RX, high, 53 | 54 << 16), record(13, RX, low, 0), record(14, RX, high, 0)]
    v6 += [record(15, RX, 2, 0), record(11, RX, 6, 1)]
    columns, _ = run([*poll(RX, 10, 20, 800, 2), *packet(RX, 1, 0, 99, 1500), *v4, *packet(RX, 2, 1), *v6])
    first, second = columns.packets
    assert bytes(first["source"][:4]) == bytes([10, 0, 0, 1])
    assert bytes(first["destination"][:4]) == bytes([192, 168, 1, 2])
    assert (first["source_port"], first["destination_port"], first["length"]) == (1000, 2000, 1500)
    assert (first["protocol"], first["ip_version"], first["ip_id"]) == (17, 4, 7)
    assert (first["arrival_ticks"], first["flags"]) == (5, PacketFlag.ARRIVAL_KNOWN)
    assert (second["arrival_ticks"], second["flags"]) == (6, PacketFlag.ARRIVAL_UNIX_NS)
    assert bytes(second["source"]).hex() == "20010db8000000000000000000000001"
    assert bytes(second["destination"]).hex() == "20010db8000000000000000000000002"
    assert (second["source_port"], second["destination_port"]) == (53, 54)
    assert first["disposition"] == UNKNOWN


def test_facts_split_between_two_feeds() -> None:
    rows = [*poll(RX, 10, 20, 800, 1), *packet(RX, 1, 0, 99), *hand_on(TX, 30, 40, 800, [1])]
    for cut in range(1, len(rows)):
        with Pipeline(ROLES) as pipeline:
            pipeline.feed(0, records(rows[:cut]))
            early = pipeline.take()
            pipeline.feed(0, records(rows[cut:]))
            pipeline.finish()
            columns = concatenate([early, pipeline.take()])
        assert columns.packets[["digest", "disposition"]].tolist() == [(99, TRANSMITTED)]


def test_latest_receive_of_a_buffer_counts() -> None:
    rows = [*poll(RX, 10, 20, 800, 1), *burst(RX, [1]), *poll(RX, 110, 120, 800, 1), *burst(RX, [1])]
    columns, counts = run([*rows, *hand_on(TX, 130, 140, 800, [1])])
    assert columns.packets["disposition"].tolist() == [UNKNOWN, TRANSMITTED]
    assert (counts.transmitted, counts.unknown) == (1, 1)


def test_other_thread_transmits_in_the_same_round() -> None:
    columns, counts = run(hand_on(TX, 30, 40, 800, [1, 2]), receiver([1, 2], 10))
    assert columns.packets["disposition"].tolist() == [TRANSMITTED] * 2
    assert counts.generated == 0


def test_last_packet_of_a_thread_that_goes_idle() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records(receiver([1], 10)))
        pipeline.feed(1, records(hand_on(TX, 30, 40, 800, [1])))
        for start in range(100, 500, 100):
            pipeline.take()
            pipeline.feed(1, records([entry(G, start, 800), leave(G, start + 10, 800)]))
        counts = pipeline.counts()
    assert (counts.transmitted, counts.generated, counts.pending) == (1, 0, 0)


def test_buffers_are_matched_by_time_over_threads() -> None:
    received = [row for start in range(100, 1000, 100) for row in receiver([1], start)]
    sent = [row for start in range(100, 1000, 100) for row in hand_on(TX, start + 50, start + 60, 800, [1])]
    for first, second in ((received, sent), (sent, received)):
        columns, counts = run(first, second)
        assert columns.packets["done_ticks"].tolist() == [start + 60 for start in range(100, 1000, 100)]
        assert (counts.transmitted, counts.unknown, counts.generated) == (9, 0, 0)


def test_receive_that_is_drained_one_round_later() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(1, records(hand_on(TX, 30, 40, 800, [1, 9])))
        pipeline.take()
        pipeline.feed(0, records([*receiver([1], 10), *receiver([1], 50)]))
        pipeline.take()
        pipeline.finish()
        assert pipeline.take().packets["disposition"].tolist() == [UNKNOWN]
        counts = pipeline.counts()
    assert (counts.transmitted, counts.unknown, counts.generated) == (1, 1, 1)


@pytest.mark.parametrize("behind", [1, 5, 50])
def test_another_thread_is_some_batches_behind(behind: int) -> None:
    """However many batches the first thread receives in a round of the monitor."""
    count, per_round = 900, 150
    with Pipeline(ROLES) as pipeline:
        for first in range(0, count + per_round, per_round):
            mine = range(first, min(first + per_round, count))
            other = range(max(first - behind, 0), min(first + per_round - behind, count))
            pipeline.feed(0, records([row for i in mine for row in receiver([i + 1], 100 * i)]))
            sent = [hand_on(TX, 100 * (i + behind) + 50, 100 * (i + behind) + 60, 800, [i + 1]) for i in other]
            pipeline.feed(1, records([row for rows in sent for row in rows]))
            pipeline.take()
        pipeline.finish()
        pipeline.take()
        counts = pipeline.counts()
    assert (counts.received, counts.transmitted, counts.generated, counts.unknown) == (count, count, 0, 0)


def test_batch_waits_for_its_packets() -> None:
    with Pipeline(ROLES) as pipeline:
        pipeline.feed(0, records([*receiver([1], 10), *receiver([2], 100)]))
        assert len(pipeline.take().batches) == 0
        assert pipeline.counts().pending == 2
        pipeline.feed(0, records(hand_on(TX, 130, 140, 800, [1])))
        assert pipeline.take().batches["id"].tolist() == [1]
        pipeline.finish()
        assert pipeline.take().batches["id"].tolist() == [2]
        assert pipeline.counts().unknown == 1


def test_batch_is_not_given_up_for_batches_of_a_round_that_is_not_matched() -> None:
    """A packet that was kept over the end of a round and sent early in the next one, many batches before its end."""
    kept = [*receiver([0x10], 100), *receiver([0x20], 200)]
    later = hand_on(TX, 220, 230, 600, [0x10, 0x20])
    for number in range(1000):
        start, buffer = 1000 + 100 * number, 0x1000 + 64 * number
        later += [*receiver([buffer], start), *hand_on(TX, start + 50, start + 60, 600, [buffer])]
    with Pipeline(ROLES) as pipeline:
        takes = []
        for rows in (kept, [*receiver([0x30], 210)], later, []):
            pipeline.feed(0, records(rows))
            takes.append(pipeline.take())
        pipeline.finish()
        takes.append(pipeline.take())
        counts = pipeline.counts()
    packets = concatenate(takes).packets
    fate = dict(zip(packets["buffer"].tolist(), packets["disposition"].tolist(), strict=True))
    assert (fate[0x10], fate[0x20]) == (TRANSMITTED, TRANSMITTED)
    assert (counts.transmitted, counts.generated) == (1002, 0)


def test_batch_is_given_up_after_64_later_ones() -> None:
    with Pipeline(ROLES) as pipeline:
        rows = receiver([1], 10)
        for start in range(100, 100 + 66 * 100, 100):
            rows += [*receiver([2], start), *hand_on(TX, start + 20, start + 30, 800, [2])]
        pipeline.feed(0, records(rows))
        assert 1 not in pipeline.take().batches["id"]
        assert pipeline.take().batches["id"].tolist() == [1]
        pipeline.feed(0, records(hand_on(TX, 90000, 90010, 800, [1])))
        pipeline.take()
        pipeline.take()
        assert (pipeline.counts().unknown, pipeline.counts().generated) == (1, 1)


def test_generated_packets_are_counted_only() -> None:
    columns, counts = run(hand_on(TX, 30, 40, 800, [1, 2]))
    assert len(columns.packets) == 0
    assert (counts.generated, counts.transmitted) == (2, 0)


def test_stray_packets_are_counted() -> None:
    counts = run([*burst(RX, [1]), *burst(TX, [2]), *burst(G, [3]), *poll(RX, 10, 20, 800, 1), *burst(RX, [1, 2])])[1]
    assert counts.stray_packets == 4


def test_invalid_records_are_counted() -> None:
    counts = run([entry(99, 10, 900), record(17, F, 1, 1), record(77, F, 1, 1), record(9, F, 1, 1), lost(1, 3)])[1]
    assert (counts.invalid, counts.calls) == (5, 0)
