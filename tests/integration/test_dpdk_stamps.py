# SPDX-License-Identifier: Apache-2.0
"""Arrival stamps in rte_mbuf, by a real driver: net_pcap puts the time of each captured packet there.

It writes seconds * 1,000,000 + microseconds. Here half of the packets were "captured" at times that give the number
which the processor's time stamp counter had a moment ago; the others in 2023, which is no time of a known clock.
"""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.adapters import base
from otel_nfprobe.adapters.dpdk import DpdkAdapter
from otel_nfprobe.base.columns import PacketFlag
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.support.dpdk_examples import BURST, Example, build_example, examples_are_installed, wait_until_said
from tests.support.packet_digest import describe
from tests.support.traffic import make_frames

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]

PACKETS = 512
HEADER = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 1)
MICROSECONDS = 1_000_000
LONG_AGO = 1_700_000_000 * MICROSECONDS


@pytest.fixture
def example(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    example = Example(build_example(tmp_path_factory.mktemp("examples"), "skeleton"), tmp_path, f"nfs{os.getpid()}")
    yield example
    example.stop()


def capture(stamps: list[int]) -> bytes:
    """Records of a capture file with these times."""
    frames = zip(make_frames(len(stamps)), stamps, strict=True)
    return b"".join(
        struct.pack("<IIII", stamp // MICROSECONDS, stamp % MICROSECONDS, len(frame), len(frame)) + frame
        for frame, stamp in frames
    )


def test_stamps_of_a_driver(
    nfprobe: Any, example: Example, tmp_path: Path, capture_stamps: Callable[[], list[int]]
) -> None:
    example.feed(HEADER)
    example.wait_until_it_receives()
    recording = tmp_path / "stamps.nfprobe"
    options = ("--trial", "0s", "--packets", "all", "--ring-size", "16MiB", "--record", recording, "--json")
    monitor = nfprobe.start("attach", example.pid, *options)
    wait_until_said(monitor, "attached to")
    stamps = capture_stamps()
    example.feed(capture(stamps))
    example.end_of_packets()
    example.wait_for_packets(PACKETS, PACKETS)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    assert json.loads(output.splitlines()[-1])["not_restored"] == []
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    assert len(packets) == PACKETS - BURST
    expected = {
        describe(frame).digest: stamp if position % 2 else 0
        for position, (frame, stamp) in enumerate(zip(make_frames(PACKETS), stamps, strict=True))
    }
    assert packets["arrival_ticks"].tolist() == [expected[digest] for digest in packets["digest"].tolist()]
    known = (packets["flags"] & PacketFlag.ARRIVAL_KNOWN) != 0
    assert np.array_equal(known, packets["arrival_ticks"] > 0)
    assert np.count_nonzero(known) == len(packets) // 2


def test_where_they_are_is_said(example: Example) -> None:
    example.feed(HEADER)
    example.wait_until_it_receives()
    target, adapter = Target(example.pid), DpdkAdapter()
    (note,) = [note for note in adapter.notes(target) if "stamps" in note]
    for role in adapter.roles(target):
        if role.role == base.RECEIVE:
            assert note.startswith(f"arrival stamps are at {role.program['arrival']} in rte_mbuf")
            assert f"bit {role.program['arrival_bit']} " in note
            assert role.program["arrival"] % 8 == 0


@pytest.fixture
def capture_stamps() -> Callable[[], list[int]]:
    """Makes the times: of odd packets a moment ago."""
    if lib.nfp_ticks_now() // MICROSECONDS >= 1 << 32:
        pytest.skip("the processor's counter is too far on for the seconds of a capture file")

    def make() -> list[int]:
        now = lib.nfp_ticks_now()
        return [now - 1000 * (PACKETS - number) if number % 2 else LONG_AGO + number for number in range(PACKETS)]

    return make
