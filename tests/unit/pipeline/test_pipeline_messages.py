# SPDX-License-Identifier: Apache-2.0
"""Records of a broker's messages and of turns, made by hand: one test per rule."""

from __future__ import annotations

import numpy as np
import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.base.columns import MESSAGE, NONE, TRANSMITTED, UNKNOWN, BatchFlag, Columns, concatenate
from otel_nfprobe.pipeline.flow import describe_flow
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from tests.support.synthetic_records import Row, entry, leave, lost, poll, record, records, value

READ, HANDLE, ACL, FIND, QUEUE, SEND, INNER, TURN, RX = range(9)
ROLES = np.array(
    [
        lib.NFP_ROLE_MESSAGE_SCOPE,
        lib.NFP_ROLE_MESSAGE_SCOPE,
        lib.NFP_ROLE_LENGTH,
        lib.NFP_ROLE_NUMBER,
        lib.NFP_ROLE_MESSAGE,
        lib.NFP_ROLE_SEND,
        lib.NFP_ROLE_CALL,
        lib.NFP_ROLE_LOOP_ITERATION,
        lib.NFP_ROLE_RECEIVE,
    ],
    np.uint8,
)
TOPIC = b"plant/7/temperature"


def run(rows: list[Row], *later: list[Row]) -> tuple[Columns, PipelineCounts]:
    """One thread: takes between the parts and at the end."""
    with Pipeline(ROLES) as pipeline:
        parts = []
        for part in (rows, *later):
            pipeline.feed(0, records(part))
            parts.append(pipeline.take())
        pipeline.finish()
        return concatenate([*parts, pipeline.take()]), pipeline.counts()


def short(function: int, ticks: int, rsp: int, captured: int | None = None) -> list[Row]:
    between = [] if captured is None else [value(function, captured, rsp)]
    return [entry(function, ticks, rsp), *between, leave(function, ticks + 1, rsp)]


def described(buffer: int, topic: bytes, digest: int = 77) -> list[Row]:
    rows = [record(8, QUEUE, buffer, 0), record(9, QUEUE, digest, 15 << 24)]
    rows.append(record(24, QUEUE, 0, min(len(topic), 1024)))
    for start in range(0, min(len(topic), 84), 12):
        piece = topic[start : start + 12][: 84 - start].ljust(12, b"\0")
        rows.append(record(25, QUEUE, int.from_bytes(piece[:8], "little"), int.from_bytes(piece[8:], "little")))
    return rows


def queue(ticks: int, buffer: int, receivers: int, topic: bytes = TOPIC, number: int = 0) -> list[Row]:
    """sub__messages_queue, 10 ticks long plus 10 for each receiver."""
    rows = [entry(QUEUE, ticks, 600), *described(buffer, topic)]
    for index in range(receivers):
        rows += [entry(SEND, ticks + 10 * index + 2, 500), value(SEND, buffer << 16 | number, 500)]
        rows += [*short(INNER, ticks + 10 * index + 3, 400), leave(SEND, ticks + 10 * index + 8, 500)]
    return [*rows, value(QUEUE, 1 | 1 << 32, 600), leave(QUEUE, ticks + 10 * (receivers + 1), 600)]


def publish(ticks: int, buffer: int, receivers: int, length: int = 5, number: int = 0) -> list[Row]:
    rows = [entry(READ, ticks, 800), entry(HANDLE, ticks + 1, 700), *short(ACL, ticks + 2, 600, length)]
    if number:
        rows += short(FIND, ticks + 4, 600, number)
    rows += queue(ticks + 10, buffer, receivers, number=number)
    end = ticks + 10 * (receivers + 3)
    return [*rows, leave(HANDLE, end, 700), leave(READ, end + 1, 800)]


def test_a_message_is_a_batch_from_the_entry_to_the_exit_of_the_call_around_it() -> None:
    columns, counts = run([*short(READ, 10, 800), *publish(100, 0xAB, 1), *short(READ, 300, 800)])
    (packet,), (batch,) = columns.packets, columns.batches
    assert (batch["start_ticks"], batch["end_ticks"], batch["size"], batch["transmitted"]) == (100, 141, 1, 1)
    inside = columns.calls[batch["first_call"] : batch["first_call"] + batch["calls"]]
    assert inside["function"].tolist() == [READ, HANDLE, ACL, QUEUE, SEND, INNER]
    assert inside["depth"].tolist() == [0, 1, 2, 2, 3, 4]
    assert inside["start_ticks"].tolist() == [100, 101, 102, 110, 112, 113]
    assert inside["end_ticks"].tolist() == [141, 140, 103, 130, 118, 114]
    assert inside["flags"].tolist() == [0, 0, 4, 0, 4 | 16, 0]
    assert (columns.calls["batch"] == NONE).sum() == 2
    assert (packet["receive_ticks"], packet["done_ticks"], packet["done_function"]) == (110, 118, SEND)
    assert (packet["disposition"], packet["buffer"], packet["digest"], packet["length"]) == (TRANSMITTED, 0xAB, 77, 5)
    assert (counts.batches, counts.received, counts.transmitted, counts.unknown) == (1, 1, 1, 0)
    assert (counts.calls, counts.unpaired_entries, counts.invalid, counts.generated) == (8, 0, 0, 0)


def test_topic_id_and_length() -> None:
    columns, _ = run(publish(100, 0xAB, 1, length=70_000, number=12))
    (packet,) = columns.packets
    message = np.frombuffer(packet["source"].tobytes()[: MESSAGE.itemsize], MESSAGE)[0]
    assert (message["body_bytes"], message["topic_bytes"], packet["length"]) == (70_000, len(TOPIC), 65_535)
    assert columns.topic(77) == TOPIC.decode()
    assert columns.topic(78) == ""
    assert describe_flow(packet, columns.topic(77)) == "topic plant/7/temperature, message 12"
    assert columns.calls["value"][columns.calls["function"] == SEND].tolist() == [12]
    assert columns.calls["flags"][columns.calls["function"] == QUEUE].tolist() == [0]


def test_a_length_that_is_known_only_while_the_message_is_routed() -> None:
    rows = [entry(READ, 100, 800), *short(FIND, 104, 700, 9), entry(QUEUE, 110, 600), *described(0xAB, TOPIC)]
    rows += [*short(ACL, 112, 500, 33), *short(ACL, 114, 500, 44), leave(QUEUE, 120, 600), leave(READ, 121, 800)]
    columns, _ = run(rows)
    assert columns.packets[["length", "ip_id"]].tolist() == [(33, 9)]


def test_facts_of_one_network_packet_are_not_those_of_the_next() -> None:
    rows = [entry(READ, 10, 800), *short(ACL, 12, 600, 55), *short(FIND, 14, 600, 3), leave(READ, 20, 800)]
    columns, _ = run([*rows, entry(READ, 30, 800), *queue(40, 0xAB, 0), leave(READ, 60, 800)])
    assert columns.packets[["length", "ip_id"]].tolist() == [(0, 0)]


def test_sent_to_several_receivers() -> None:
    columns, counts = run(publish(100, 0xAB, 3))
    assert columns.packets["done_ticks"].tolist() == [138]
    assert columns.batches["transmitted"].tolist() == [1]
    assert (counts.received, counts.transmitted, counts.resent, counts.unknown) == (1, 3, 2, 0)


def test_sent_to_nobody() -> None:
    columns, counts = run([*publish(100, 0xAB, 0), *publish(200, 0xAC, 2)])
    assert sorted(columns.packets["disposition"].tolist()) == [UNKNOWN, TRANSMITTED]
    assert (counts.received, counts.transmitted, counts.resent, counts.unknown) == (2, 2, 1, 1)


def test_sent_again_after_its_batch_was_delivered() -> None:
    later = [entry(SEND, 500, 500), value(SEND, 0xAB << 16, 500), leave(SEND, 510, 500)]
    columns, counts = run(publish(100, 0xAB, 1), [], later)
    assert columns.packets["done_ticks"].tolist() == [118]
    assert (counts.transmitted, counts.resent, counts.generated, counts.unknown) == (2, 1, 0, 0)


def test_what_the_broker_makes_is_not_received() -> None:
    made = queue(300, 0xAB, 2)  # at the address of a received topic that was freed
    columns, counts = run([*publish(100, 0xAB, 1), *made])
    assert len(columns.packets) == 1
    assert (counts.received, counts.transmitted, counts.generated, counts.stray_packets) == (1, 1, 2, 0)


def test_two_messages_of_one_network_packet() -> None:
    rows = [entry(READ, 100, 800), *queue(110, 0xAB, 1), *queue(140, 0xAC, 1), leave(READ, 170, 800)]
    columns, counts = run(rows)
    assert columns.batches[["size", "packets", "transmitted"]].tolist() == [(2, 2, 2)]
    assert columns.packets["index"].tolist() == [0, 1]
    assert (counts.batches, counts.received, counts.transmitted) == (1, 2, 2)


def test_messages_between_takes() -> None:
    for cut in range(len(publish(100, 0xAB, 2))):
        rows = publish(100, 0xAB, 2)
        columns, counts = run(rows[:cut], [], rows[cut:])
        assert (len(columns.packets), len(columns.batches)) == (1, 1)
        assert (counts.received, counts.transmitted, counts.generated) == (1, 2, 0)
        assert (counts.unpaired_entries, counts.invalid) == (0, 0)
        assert len(columns.calls) == 8


def test_long_and_invalid_topics() -> None:
    long = b"a" * 60_000
    for topic, expected in (
        (b"x" * 84, "x" * 84),
        (long, "a" * 81 + "..."),
        ("ä".encode() * 42, "ä" * 42),
        ("€".encode() * 40, "€" * 27 + "..."),
        (b"bad \xff\xc0\x80 \xed\xa0\x80 end", "bad ??? ??? end"),
        (b"cut \xe2\x82", "cut ??"),
    ):
        columns, _ = run([entry(READ, 10, 800), *queue(20, 0xAB, 0, topic), leave(READ, 50, 800)])
        assert columns.topic(77) == expected
        bytes(columns.topics["text"][0][: columns.topics["size"][0]]).decode()


@pytest.mark.thorough
def test_more_topics_than_are_remembered() -> None:
    with Pipeline(ROLES) as pipeline:
        for digest in range(70_000):
            rows = [entry(READ, 10 + digest, 800), entry(QUEUE, 10 + digest, 600)]
            rows += described(0xAB, b"topic %d" % digest, digest + 1)
            pipeline.feed(0, records([*rows, leave(QUEUE, 10 + digest, 600), leave(READ, 10 + digest, 800)]))
            if digest % 1000 == 999:
                columns = pipeline.take()
                assert set(columns.packets["digest"].tolist()) == set(columns.topics["digest"].tolist())
        assert columns.topic(69_900) == "topic 69899"


def test_lost_records_and_garbage() -> None:
    rows = publish(100, 0xAB, 2, number=3)
    for gone in range(len(rows)):
        columns, counts = run([*rows[:gone], lost(1, 0), *rows[gone + 1 :], *publish(900, 0xAC, 1)])
        assert len(columns.packets) <= counts.received <= 2
        assert counts.transmitted <= 3
    random = np.random.default_rng(5)
    for _ in range(200):
        some = [rows[i] for i in random.integers(0, len(rows), 60)]
        _, counts = run(some, [*some, *poll(RX, 5, 6, 100, 2)], some)
        assert counts.transmitted - counts.resent <= counts.received


def test_turns() -> None:
    rows = [*short(TURN, 100, 800), *short(INNER, 110, 800), *short(TURN, 150, 800), *short(INNER, 160, 800)]
    columns, counts = run(rows, [*short(TURN, 1000, 800)])
    batches = columns.batches[np.argsort(columns.batches["start_ticks"])]
    assert batches[["start_ticks", "end_ticks", "size", "transmitted", "calls"]].tolist() == [
        (100, 150, 1, 1, 2),
        (150, 1000, 1, 1, 2),
        (1000, 1001, 1, 0, 1),
    ]
    packets = columns.packets[np.argsort(columns.packets["receive_ticks"])]
    assert packets["done_ticks"].tolist() == [150, 1000, 0]
    assert len(set(packets["digest"].tolist())) == 3
    assert batches["flags"].tolist() == [0, 0, BatchFlag.UNFINISHED]
    assert (counts.received, counts.transmitted, counts.unknown, counts.pending) == (3, 2, 1, 0)


def test_a_turn_inside_a_turn_is_none() -> None:
    rows = [entry(TURN, 100, 800), *short(TURN, 120, 700), leave(TURN, 130, 800), *short(TURN, 200, 800)]
    columns, counts = run(rows)
    assert sorted(columns.batches["start_ticks"].tolist()) == [100, 200]
    assert (counts.calls, counts.unpaired_entries) == (3, 0)


def test_a_call_around_turns_is_cut() -> None:
    rows = [entry(INNER, 50, 900), *short(TURN, 100, 800), *short(TURN, 200, 800), leave(INNER, 300, 900)]
    columns, counts = run(rows)
    around = columns.calls[columns.calls["function"] == INNER]
    assert sorted(zip(around["start_ticks"].tolist(), around["end_ticks"].tolist(), strict=True)) == [
        (100, 101),
        (200, 300),
    ]
    assert counts.calls == 3
