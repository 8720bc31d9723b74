# SPDX-License-Identifier: Apache-2.0
"""Packets that wait for another lcore than the one that received them: what held it up is said, and linked to.

DPDK's packet_ordering sends into a pipe whose reader stops reading now and then: its sender stands in the transmit
function meanwhile. The reader's own log is the truth.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.integration.test_dpdk_handover import attributes_of, traces_of
from tests.support.dpdk_examples import BURST, Example, build_example, examples_are_installed, wait_until_said
from tests.support.otlp_receiver import Receiver

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]

PACKETS = 32_000
HEADER_BYTES = 24
PIECE_BYTES, PIECE_S = 4096, 0.002
PIPE_BYTES = 16384
PAUSES, PAUSE_S = 4, 0.08
SENDS = "eth_pcap_tx_dumper"
RIGHT_SHARE = 0.9  # the scheduler, too, holds up three lcores on two processors


class Reader(threading.Thread):
    """Reads what is sent, and stops after every so many bytes.

    Attributes:
        pauses: start and end, Unix ns.
    """

    def __init__(self, path: Path, every_bytes: int) -> None:
        super().__init__()
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._every_bytes = every_bytes
        self._ending = threading.Event()
        self.pauses: list[tuple[int, int]] = []

    def run(self) -> None:
        read = 0
        while not self._ending.is_set():
            if not select.select([self._pipe], [], [], 0.05)[0]:
                continue
            read += len(os.read(self._pipe, 1 << 16))
            if read > (len(self.pauses) + 1) * self._every_bytes and len(self.pauses) < PAUSES:
                start = time.time_ns()
                time.sleep(PAUSE_S)
                self.pauses.append((start, time.time_ns()))

    def end(self) -> None:
        self._ending.set()
        self.join()
        os.close(self._pipe)


def play(example: Example, content: bytes) -> None:
    """At an even pace."""
    for start in range(0, len(content), PIECE_BYTES):
        example.feed(content[start : start + PIECE_BYTES])
        time.sleep(PIECE_S)


def record(nfprobe: Any, example: Example, content: bytes, recording: Path) -> None:
    """A session in which a file is played; its last packets stay in the program's buffers."""
    example.feed(content[:HEADER_BYTES])
    example.wait_until_it_receives()
    words = ("--packets", "all", "--trial", "0s", "--ring-size", "64MiB", "--record", recording, "--json")
    monitor = nfprobe.start("attach", example.pid, *words)
    wait_until_said(monitor, "attached to")
    example.wait_until_open_calls_ended()
    play(example, content[HEADER_BYTES:])
    example.end_of_packets()
    example.wait_for_packets(PACKETS, PACKETS // BURST * BURST)
    nfprobe.end(monitor)


def held_up(packet: Span, pauses: list[tuple[int, int]]) -> bool:
    """Whether most of a pause lies in its life, and the pause is most of its life."""
    start, end = packet.start_time_unix_nano, packet.end_time_unix_nano
    inside = max(min(end, last) - max(start, first) for first, last in pauses)
    return inside > 0.6 * PAUSE_S * 1e9 and inside > 0.6 * (end - start)


def test_the_wait_for_a_slow_sender(
    nfprobe: Any, capture: Callable[[int], Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
    receiver: Receiver,
) -> None:  # fmt: skip
    content, recording = capture(PACKETS).read_bytes(), tmp_path / "slow.nfprobe"
    reader = Reader(tmp_path / "sent", len(content) // (PAUSES + 2))
    program = build_example(tmp_path_factory.mktemp("examples"), "packet_ordering")
    reader.start()
    example = Example(
        program, tmp_path, f"nfc{os.getpid()}", ("-p", "3"), lcores=3, memory_mib=512, sent=tmp_path / "sent"
    )
    try:
        record(nfprobe, example, content, recording)
    finally:
        example.stop()
        reader.end()
    assert len(reader.pauses) == PAUSES
    words = ("export", recording, "--endpoint", f"http://127.0.0.1:{receiver.port}", "--slower-than", "40ms")
    done = nfprobe.run(*words)
    assert done.returncode == 0, done.stderr
    check(traces_of(receiver.requests), reader.pauses)
    listed = nfprobe.json("report", recording)["packets"]["slowest"]
    assert {(slow["cause"]["kind"], slow["cause"]["function"]) for slow in listed} == {("fault", SENDS)}


def check(traces: dict[bytes, list[Span]], pauses: list[tuple[int, int]]) -> None:
    spans = {(span.trace_id, span.span_id): span for trace in traces.values() for span in trace}
    roots = [span for span in spans.values() if not span.parent_span_id and held_up(span, pauses)]
    judged = [(span, attributes_of(span)) for span in roots]
    right = [(span, found) for span, found in judged if found.get("nf.tail.function") == SENDS]
    assert len(judged) > 100
    assert len(right) >= RIGHT_SHARE * len(judged)
    blocked = [(span, found) for span, found in right if found["nf.tail.cause"] == "fault"]
    assert len(blocked) >= RIGHT_SHARE * len(right)
    assert all(found["nf.tail.by"].startswith("write: ") for _, found in blocked)
    assert all(found["nf.tail.by"].endswith("/sent") for _, found in blocked)
    waited = [(span, found) for span, found in blocked if span.links]  # of the others their own batch was slow
    assert len(waited) > 100
    for span, found in waited:
        (culprit,) = [spans[link.trace_id, link.span_id] for link in span.links]
        values = attributes_of(culprit)
        assert (culprit.name, values["nf.batch.id"], values["nf.handover"]) == ("batch", found["nf.tail.batch"], 1)
        slow = [one for one in traces[culprit.trace_id] if one.parent_span_id == culprit.span_id and one.name == SENDS]
        longest = max(one.end_time_unix_nano - one.start_time_unix_nano for one in slow)
        assert longest > 0.5 * PAUSE_S * 1e9
