# SPDX-License-Identifier: Apache-2.0
"""The capture files of the integration tests: the same from the same seed, whole, no two packets equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import packet_digest as digest
from tests.support import traffic


def test_round_trip_and_digests_are_unique(tmp_path: Path) -> None:
    frames = list(traffic.make_frames(2000, seed=5))
    assert traffic.write_pcap(tmp_path / "f.pcap", frames) == 2000
    read = list(traffic.read_pcap(tmp_path / "f.pcap"))
    assert [frame for _, frame, _ in read] == frames
    assert all(length == len(frame) for _, frame, length in read)
    facts = [digest.describe(frame) for frame in frames]
    assert len({fact.digest for fact in facts}) == 2000
    assert {fact.protocol for fact in facts} == {1, 6, 17}
    assert {fact.ip_version for fact in facts} == {4, 6}
    assert all(fact.flags == 0 for fact in facts)


def test_the_seed_decides() -> None:
    assert list(traffic.make_frames(50, 1)) == list(traffic.make_frames(50, 1))
    assert list(traffic.make_frames(50, 1)) != list(traffic.make_frames(50, 2))


def test_ipv4_headers_have_right_checksums() -> None:
    frames = [frame for frame in traffic.make_frames(100) if frame[12:14] == b"\x08\x00"]
    assert frames
    assert all(traffic.checksum(frame[14:34]) == 0 for frame in frames)


@pytest.mark.parametrize("cut", [0, 10, 30, 50])
def test_a_cut_capture_is_refused(tmp_path: Path, cut: int) -> None:
    traffic.write_pcap(tmp_path / "f.pcap", traffic.make_frames(1))
    (tmp_path / "f.pcap").write_bytes((tmp_path / "f.pcap").read_bytes()[:cut])
    with pytest.raises(ValueError):
        list(traffic.read_pcap(tmp_path / "f.pcap"))
