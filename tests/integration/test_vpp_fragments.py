# SPDX-License-Identifier: Apache-2.0
"""Packets of a double of VPP that are reassembled of fragments, or sent in fragments."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from otel_nfprobe.base.columns import ABSORBED, DROPPED, TRANSMITTED
from tests.integration.test_vpp_packets import COUNT, LENGTHS
from tests.support.traffic import MAC_HEADER, make_frames
from tests.support.vpp_ways import BEFORE, KINDS, MODES, Meter, Ways, met

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PIECES = ((21, 2), (22, 0), (23, 1))  # kinds of the fragments of one packet, and which of them each is
PIECE_BYTES = (64, 1480, 3000)  # of payload: some fit into the buffer of the first one, others do not
MORE_FRAGMENTS = 0x2000
INCOMPLETE, GROUPS = 5, 16  # the last fragment of one of so many packets does not come
MTU = 576
IP_BYTES = 20


def make_fragment(group: int, place: int) -> bytes:
    """One of the three fragments of the packet of a group."""
    size = PIECE_BYTES[group % len(PIECE_BYTES)]
    offset = (place * size // 8) | (0 if place == len(PIECES) - 1 else MORE_FRAGMENTS)
    head = struct.pack(">BBHHHBBHII", 0x45, 0, IP_BYTES + size, group, offset, 64, 17, 0, 0x0A000001, 0x0A000002)
    payload = struct.pack(">HHHH", 1000 + group, 53, 0, 0) + bytes((group + place) % 251 for _ in range(size - 8))
    return MAC_HEADER + b"\x08\x00" + head + payload


def make_traffic() -> list[bytes]:
    """Frames of which three in each group are fragments."""
    frames, places = list(make_frames(COUNT, lengths=LENGTHS)), dict(PIECES)
    for number in range(COUNT):
        group, kind = divmod(number + BEFORE, KINDS)
        if kind in places:
            frames[number] = make_fragment(group, places[kind])
    return frames


def is_complete(number: int) -> bool:
    return (number + BEFORE) // KINDS % GROUPS != INCOMPLETE


def numbers_of(ways: Ways, disposition: int) -> set[int]:
    """Which packets had it."""
    return set(np.flatnonzero(ways.packets()["disposition"] == disposition).tolist())


@pytest.mark.parametrize("options", MODES)
def test_reassembled_packets(options: tuple[str, ...], meter: Meter) -> None:
    """The first fragment is the packet that leaves, with the id of the whole one. The others are absorbed, and those
    that wait for one that never comes."""
    ways = meter.measure("reassemble", options, make_traffic())
    ways.check_totals()
    late = [number for number in met(23) if not is_complete(number)]
    absorbed = {*met(21), *met(23), *(number for number in met(22) if not is_complete(number))} - set(late)
    whole = [number for number in met(22) if is_complete(number)]
    assert 0 < len(whole) < len(met(22))
    assert ways.written(TRANSMITTED).total() + ways.written(DROPPED).total() == COUNT - len(absorbed)
    assert ways.gone(TRANSMITTED) == ways.written(TRANSMITTED) or not len(ways.columns.packets)
    if not ways.is_described():
        assert not len(ways.columns.packets) or ways.counts.unplaced == 0
        return
    packets = ways.packets()
    assert packets["digest"].tolist() == ways.came
    assert numbers_of(ways, ABSORBED) == absorbed
    assert set(whole) <= numbers_of(ways, TRANSMITTED)
    assert (ways.counts.absorbed, ways.counts.generated, ways.counts.unknown) == (len(absorbed), 0, 0)
    assert ways.summary["packets"]["absorbed"] == len(absorbed)


@pytest.mark.parametrize("options", MODES)
def test_packets_that_are_sent_in_fragments(options: tuple[str, ...], meter: Meter) -> None:
    """The packet is absorbed, and its fragments are packets that were made here, though they are in buffers that
    packets have just left. One that must not be fragmented is dropped."""
    frames = list(make_frames(COUNT, lengths=LENGTHS))
    ways = meter.measure("fragment", options, frames)
    ways.check_totals()
    long = [n for n in (*met(25), *met(26)) if frames[n][14] == 0x45 and len(frames[n]) - 14 > MTU]
    kept = {number for number in long if (number + BEFORE) % 64 == 26}
    split = set(long) - kept
    made = sum(-(-(len(frames[number]) - 14 - IP_BYTES) // ((MTU - IP_BYTES) // 8 * 8)) for number in split)
    assert kept
    assert len(split) > 10
    assert ways.written(TRANSMITTED).total() + ways.written(DROPPED).total() == COUNT - len(split) + made
    if not len(ways.columns.packets):
        return
    if not ways.is_described():
        assert len(ways.columns.packets) == COUNT - len(long)
        assert ways.counts.unplaced == made + len(kept)
        return
    assert ways.packets()["digest"].tolist() == ways.came
    assert numbers_of(ways, ABSORBED) == split
    assert kept <= numbers_of(ways, DROPPED)
    assert (ways.counts.absorbed, ways.counts.generated, ways.counts.unknown) == (len(split), made, 0)
    assert (ways.written(TRANSMITTED) - ways.gone(TRANSMITTED)).total() == made
