# SPDX-License-Identifier: Apache-2.0
"""Packets that are not as usual, through an unmodified testpmd: chains of buffers, empty ones, cut ones, fragments."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import TRANSMITTED, PacketFlag
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.integration.test_testpmd import ROOM, assert_nothing_missing, wait_until_armed
from tests.support.packet_digest import FLAG_FRAGMENT, describe
from tests.support.testpmd import Testpmd, pcap_device
from tests.support.traffic import make_frames, write_pcap

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PACKETS = 600
FRAGMENT_AT = 20  # in a frame: flags and offset of IPv4
ROOM_IN_BUFFER = 2048  # bytes of a packet that testpmd's buffers hold: longer ones are chains


def odd_frames() -> list[bytes]:
    """Every third one as it should be, up to 9000 bytes; others empty, cut off, or fragments."""
    frames = list(make_frames(PACKETS, kinds=("udp4", "tcp4", "icmp4"), lengths=(60, 1500, 2049, 4000, 9000)))
    frames[1::6] = [b""] * len(frames[1::6])
    frames[4::6] = [frame[: 14 + number % 40] for number, frame in enumerate(frames[4::6])]
    for number in range(2, PACKETS, 3):
        more, offset = 0x2000 * (number % 2), number % 5  # offset 0 without more: no fragment
        frame = frames[number]
        frames[number] = frame[:FRAGMENT_AT] + struct.pack(">H", more | offset) + frame[FRAGMENT_AT + 2 :]
    return frames


def test_every_one_is_identified_and_accounted_for(
    nfprobe: Any, start_testpmd: Callable[..., Testpmd], tmp_path: Path
) -> None:
    frames = odd_frames()
    assert sum(len(frame) > ROOM_IN_BUFFER for frame in frames) > 100
    assert sum(not frame for frame in frames) == 100
    capture, recording = tmp_path / "odd.pcap", tmp_path / "odd.nfprobe"
    write_pcap(capture, frames)
    testpmd = start_testpmd(pcap_device(capture), mode="io")
    monitor = nfprobe.start(
        "attach", testpmd.pid, "--trial", "0s", "--packets", "all", *ROOM, "--record", recording, "--json"
    )
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    testpmd.command("start")
    testpmd.wait_for_packets(PACKETS)
    testpmd.command("stop", "Done")
    summary = nfprobe.end(monitor)
    assert_nothing_missing(summary)
    assert testpmd.counters() == (PACKETS, PACKETS)
    assert summary["packets"] == {"received": PACKETS, "transmitted": PACKETS, "dropped": 0, "unknown": 0}
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    packets = packets[np.lexsort((packets["index"], packets["receive_ticks"]))]
    expected = [describe(frame) for frame in frames]
    assert packets["length"].tolist() == [len(frame) for frame in frames]
    assert packets["digest"].tolist() == [facts.digest for facts in expected]
    assert packets["ip_version"].tolist() == [facts.ip_version for facts in expected]
    assert np.all(packets["disposition"] == TRANSMITTED)
    later = np.array([bool(facts.flags & FLAG_FRAGMENT) for facts in expected])
    assert np.array_equal((packets["flags"] & PacketFlag.FRAGMENT) != 0, later)
    assert 50 < np.count_nonzero(later) < PACKETS
