# SPDX-License-Identifier: Apache-2.0
"""The spool: what was not delivered is on disk, private, bounded, checked, and sent by whoever comes next."""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.export.endpoint import Endpoint
from otel_nfprobe.export.export_counters import ExportCounters
from otel_nfprobe.export.otlp import (
    DROPPED_DAMAGED,
    DROPPED_REJECTED,
    DROPPED_SPOOL_FULL,
    DROPPED_TOO_OLD,
    Exporter,
)
from otel_nfprobe.export.span import EncodedRequest
from otel_nfprobe.export.spool import Spool, SpoolFullError, SpoolSettings, describe_endpoint, find_directory
from tests.support.otlp_receiver import Receiver, answer_ok, find_dead_endpoint

PATIENCE_S = 30.0


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def request(number: int, size: int = 1000, spans: int = 3) -> EncodedRequest:
    return EncodedRequest(number.to_bytes(4, "big") + os.urandom(size - 4), spans, 1)


def spool_of(directory: Path, endpoint: Endpoint, **bounds: float) -> Spool:
    return Spool(SpoolSettings(directory, **bounds), describe_endpoint(endpoint))  # type: ignore[arg-type]


def leave(directory: Path, endpoint: Endpoint, requests: list[EncodedRequest], **bounds: float) -> ExportCounters:
    """A session whose receiver was not there."""
    exporter = Exporter(endpoint, spool=spool_of(directory, endpoint, **bounds))
    for item in requests:
        assert exporter.submit(item)
    await_that(lambda: exporter.read_counters().is_failing)
    return exporter.close(0.0)


def send_rest(directory: Path, receiver: Receiver, endpoint: Endpoint, **bounds: float) -> ExportCounters:
    """What `nfprobe export` does."""
    exporter = Exporter(receiver.endpoint(), spool=Spool(SpoolSettings(directory, **bounds), write=False))  # type: ignore[arg-type]
    exporter.wait(PATIENCE_S)
    counters = exporter.close(PATIENCE_S)
    assert counters.recovered is not None
    return counters


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_while_the_receiver_is_there_nothing_stays(receiver: Receiver, tmp_path: Path) -> None:
    exporter = Exporter(receiver.endpoint(), spool=spool_of(tmp_path / "spool", receiver.endpoint()))
    sent = [request(number, 100_000) for number in range(50)]
    for item in sent:
        exporter.submit(item)
    counters = exporter.close(PATIENCE_S)
    assert receiver.requests == [item.data for item in sent]
    assert (counters.exported_spans, counters.spooled_spans, counters.dropped_spans) == (150, 0, {})
    assert list((tmp_path / "spool").iterdir()) == []


def test_the_next_session_sends_what_was_left_and_that_first(receiver: Receiver, tmp_path: Path) -> None:
    endpoint = receiver.endpoint()
    receiver.answers = [lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "busy")]
    first, second = [request(number) for number in range(20)], [request(100 + number) for number in range(3)]
    counters = leave(tmp_path, endpoint, first)
    assert (counters.exported_spans, counters.spooled_spans, counters.dropped_spans) == (0, 60, {})
    for path in [tmp_path, *tmp_path.rglob("*")][1:]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    receiver.answers, tried = [answer_ok], len(receiver.requests)
    exporter = Exporter(endpoint, spool=spool_of(tmp_path, endpoint))
    for item in second:
        exporter.submit(item)
    counters = exporter.close(PATIENCE_S)
    assert counters.recovered is not None
    assert (counters.recovered.exported_spans, counters.exported_spans) == (60, 9)
    assert receiver.requests[tried:] == [item.data for item in first + second]
    assert files_of(tmp_path) == []


def test_what_was_acknowledged_is_not_sent_again(receiver: Receiver, tmp_path: Path) -> None:
    endpoint, refuse = receiver.endpoint(), threading.Event()

    def answer(context: grpc.ServicerContext) -> bytes:
        if len(receiver.requests) > 7:
            refuse.set()
            context.abort(grpc.StatusCode.UNAVAILABLE, "busy")
        return b""

    receiver.answers = [answer]
    exporter = Exporter(endpoint, spool=spool_of(tmp_path, endpoint))
    sent = [request(number, spans=number + 1) for number in range(12)]
    for item in sent:
        exporter.submit(item)
    assert refuse.wait(PATIENCE_S)
    counters = exporter.close(0.0)
    assert (counters.exported_spans, counters.spooled_spans) == (sum(range(8)), sum(range(8, 13)))
    assert counters.exported_spans == 28
    receiver.answers = [answer_ok]
    receiver.requests.clear()
    assert send_rest(tmp_path, receiver, endpoint).recovered.exported_spans == counters.spooled_spans  # type: ignore[union-attr]
    assert receiver.requests == [item.data for item in sent[7:]]


def test_a_receiver_that_comes_back_gets_all_in_order(tmp_path: Path) -> None:
    receiver = Receiver()
    endpoint, port = receiver.endpoint(), receiver.port
    exporter = Exporter(endpoint, queue_bytes=20_000, spool=spool_of(tmp_path, endpoint))
    sent = [request(number) for number in range(200)]  # ten times what fits into memory
    receiver.stop()
    for item in sent:
        await_that(lambda item=item: exporter.submit(item))  # type: ignore[misc]
    assert exporter.read_counters().exported_spans == 0
    receiver = Receiver(port=port)
    await_that(lambda: exporter.read_counters().exported_spans == 600)
    counters = exporter.close(PATIENCE_S)
    receiver.stop()
    assert receiver.requests == [item.data for item in sent]
    refused = counters.dropped_spans.total()  # when the queue was full for a moment
    assert counters.exported_spans + refused + counters.spooled_spans == 600 + refused


def test_the_bound_in_bytes(receiver: Receiver, tmp_path: Path) -> None:
    endpoint = find_dead_endpoint()
    counters = leave(tmp_path, endpoint, [request(number) for number in range(30)], max_bytes=10_500)
    assert counters.spooled_spans == 30
    assert counters.dropped_spans == {DROPPED_SPOOL_FULL: 60}
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.segment")) <= 10_500
    counters = leave(tmp_path, endpoint, [request(number) for number in range(5)], max_bytes=10_500)
    assert counters.recovered is not None
    assert (counters.recovered.spooled_spans, counters.spooled_spans) == (30, 0)
    assert counters.dropped_spans == {DROPPED_SPOOL_FULL: 15}
    assert send_rest(tmp_path, receiver, endpoint).recovered.exported_spans == 30  # type: ignore[union-attr]


def test_the_bound_in_age(receiver: Receiver, tmp_path: Path) -> None:
    endpoint = find_dead_endpoint()
    leave(tmp_path, endpoint, [request(number) for number in range(4)])
    time.sleep(0.2)
    counters = send_rest(tmp_path, receiver, endpoint, max_age_s=0.1)
    assert counters.recovered is not None
    assert counters.recovered.dropped_spans == {DROPPED_TOO_OLD: 12}
    assert receiver.requests == []
    assert files_of(tmp_path) == []


def test_spans_for_another_endpoint_stay(receiver: Receiver, tmp_path: Path) -> None:
    elsewhere = find_dead_endpoint()
    leave(tmp_path, elsewhere, [request(0)])
    exporter = Exporter(receiver.endpoint(), spool=spool_of(tmp_path, receiver.endpoint()))
    exporter.submit(request(1))
    assert exporter.close(PATIENCE_S).recovered == ExportCounters()
    assert len(receiver.requests) == 1
    assert send_rest(tmp_path, receiver, elsewhere).recovered.exported_spans == 3  # type: ignore[union-attr]


def test_a_session_that_lives_keeps_its_own(receiver: Receiver, tmp_path: Path) -> None:
    gate = threading.Event()
    receiver.answers = [lambda _: bytes(not gate.wait(PATIENCE_S))]
    exporter = Exporter(receiver.endpoint(), spool=spool_of(tmp_path, receiver.endpoint()))
    exporter.submit(request(0))
    await_that(lambda: exporter.read_counters().spooled_spans == 3)
    second = Exporter(receiver.endpoint(), spool=spool_of(tmp_path, receiver.endpoint()))
    assert second.wait(PATIENCE_S)
    gate.set()
    assert second.close().recovered == ExportCounters()
    assert exporter.close(PATIENCE_S).exported_spans == 3


@pytest.mark.parametrize("place", [0, 3, 5_300, 9_000, -1])
def test_damage_is_found_counted_and_set_aside(receiver: Receiver, tmp_path: Path, place: int) -> None:
    endpoint = find_dead_endpoint()
    sent = [request(number) for number in range(10)]
    leave(tmp_path, endpoint, sent)
    (segment,) = tmp_path.rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[place] ^= 1
    segment.write_bytes(data)
    counters = send_rest(tmp_path, receiver, endpoint)
    recovered = counters.recovered
    assert recovered is not None
    good = (place % len(data)) // 1032
    assert receiver.requests == [item.data for item in sent[:good]]
    assert (recovered.exported_spans, recovered.dropped_spans) == (3 * good, {DROPPED_DAMAGED: 30 - 3 * good})
    (aside,) = tmp_path.rglob("*.damaged")
    assert bytes(data) == aside.read_bytes()
    assert str(aside) in counters.sentences[0]
    assert send_rest(tmp_path, receiver, endpoint).recovered == ExportCounters()


def test_damage_is_counted_once_although_the_receiver_is_away(receiver: Receiver, tmp_path: Path) -> None:
    endpoint = find_dead_endpoint()
    leave(tmp_path, endpoint, [request(number) for number in range(10)])
    (segment,) = tmp_path.rglob("*.segment")
    data = bytearray(segment.read_bytes())
    data[5_300] ^= 1
    segment.write_bytes(data)
    counters = leave(tmp_path, endpoint, [])
    assert counters.recovered is not None
    assert counters.recovered.dropped_spans == {DROPPED_DAMAGED: 15}
    counters = send_rest(tmp_path, receiver, endpoint)
    assert counters.recovered is not None
    assert (counters.recovered.exported_spans, counters.recovered.dropped_spans) == (15, {})


@pytest.mark.parametrize("cut", [1, 500, 1031])
def test_a_file_that_was_cut_short_is_sent_as_far_as_it_goes(receiver: Receiver, tmp_path: Path, cut: int) -> None:
    endpoint = find_dead_endpoint()
    sent = [request(number) for number in range(5)]
    leave(tmp_path, endpoint, sent)
    (segment,) = tmp_path.rglob("*.segment")
    os.truncate(segment, segment.stat().st_size - cut)
    recovered = send_rest(tmp_path, receiver, endpoint).recovered
    assert recovered is not None
    assert receiver.requests == [item.data for item in sent[:4]]
    assert (recovered.exported_spans, recovered.dropped_spans) == (12, {DROPPED_DAMAGED: 3})


def test_what_is_no_spool_is_left_alone(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "1-file").write_text("something else")
    (tmp_path / "1-folder").mkdir()
    (tmp_path / "2-folder").mkdir()
    (tmp_path / "2-folder" / "ledger").write_bytes(b"short")
    (tmp_path / "3-folder").mkdir()
    (tmp_path / "3-folder" / "ledger").write_bytes(bytes(8192))
    before = files_of(tmp_path)
    assert send_rest(tmp_path, receiver, receiver.endpoint()).recovered == ExportCounters()
    assert files_of(tmp_path) == before


def test_what_is_refused_leaves_the_spool(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [lambda context: context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")]
    exporter = Exporter(receiver.endpoint(), spool=spool_of(tmp_path, receiver.endpoint()))
    exporter.submit(request(0))
    assert exporter.close(PATIENCE_S).dropped_spans == {DROPPED_REJECTED: 3}
    assert files_of(tmp_path) == []


def test_a_directory_that_cannot_be_used(receiver: Receiver, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"spool .*file.* cannot be used") as caught:
        spool_of(tmp_path / "file", receiver.endpoint())
    assert caught.value.next_command == f"ls -ld {tmp_path / 'file'}"


def test_where_it_is_by_default() -> None:
    assert find_directory({"XDG_STATE_HOME": "/state"}) == Path("/state/nfprobe/spool")
    assert find_directory({"XDG_STATE_HOME": "not/absolute"}) == Path.home() / ".local/state/nfprobe/spool"


def test_a_full_spool_raises(tmp_path: Path) -> None:
    spool = spool_of(tmp_path, find_dead_endpoint(), max_bytes=100)
    with pytest.raises(SpoolFullError):
        spool.append(bytes(101), 1)
    spool.close(is_empty=True)
