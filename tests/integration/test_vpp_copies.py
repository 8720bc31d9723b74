# SPDX-License-Identifier: Apache-2.0
"""Packets of a double of VPP that become several, that it makes itself, or that it receives again: each is counted as
what it is, against the capture files that the double reads and writes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from otel_nfprobe.base.columns import DROPPED, TRANSMITTED
from tests.integration.test_vpp_packets import COUNT, LENGTHS
from tests.support.traffic import MAC_HEADER, make_frames, read_pcap
from tests.support.vpp_ways import MODES, Meter, met, twice

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COPIES = 3  # of a packet, itself included
LONG_MIN = 400  # bytes of packets whose clones share the buffer that was received


@pytest.mark.parametrize("options", MODES)
def test_replicated_packets(options: tuple[str, ...], meter: Meter) -> None:
    """The first clone that leaves is the packet that was received, whether they are copies of a short packet or share
    most of a long one; the others are packets that were made here."""
    ways, cloned = meter.measure("copies", options), met(7)
    ways.check_totals()
    assert ways.written(TRANSMITTED).total() + ways.written(DROPPED).total() == COUNT + (COPIES - 1) * len(cloned)
    if not len(ways.columns.packets):
        return
    packets, counts = ways.packets(), ways.counts
    lengths = [len(frame) for _, frame, _ in read_pcap(ways.traffic.files[0])]
    assert 0 < sum(lengths[number] >= LONG_MIN for number in cloned) < len(cloned)
    assert packets["digest"].tolist() == packets["done_digest"].tolist() == ways.came
    assert (counts.unknown, counts.pending, counts.stray_packets) == (0, 0, 0)
    assert (counts.generated if ways.is_described() else counts.unplaced) == (COPIES - 1) * len(cloned)
    made = ways.written(TRANSMITTED) - ways.gone(TRANSMITTED)
    assert made.total() == (COPIES - 1) * len(cloned)
    assert made.keys() <= {ways.came[number] for number in cloned}
    assert ways.gone(DROPPED) == ways.written(DROPPED)


@pytest.mark.parametrize("options", MODES)
def test_errors_that_vpp_makes(options: tuple[str, ...], meter: Meter) -> None:
    """The packet that an ICMP error is about is dropped, and the error is no packet that was received."""
    ways, errors = meter.measure("errors", options), len(met(9))
    ways.check_totals()
    assert ways.written(TRANSMITTED).total() + ways.written(DROPPED).total() == COUNT + errors
    if not ways.is_described():
        return
    assert (ways.counts.generated, ways.counts.unknown, ways.counts.stray_packets) == (errors, 0, 0)
    assert ways.gone(DROPPED) == ways.written(DROPPED)
    made = ways.written(TRANSMITTED) - ways.gone(TRANSMITTED)
    assert made.total() == errors
    assert not made.keys() & set(ways.came)


@pytest.mark.parametrize("options", MODES)
def test_a_loopback_interface(options: tuple[str, ...], meter: Meter) -> None:
    """What is sent to it goes on in the same turn: it is one packet, which has not left."""
    ways = meter.measure("loop", options)
    ways.check_totals()
    if not ways.is_described():
        return
    assert (ways.counts.generated, ways.counts.unknown, ways.counts.stray_packets) == (0, 0, 0)
    assert ways.packets()["digest"].tolist() == ways.came
    assert ways.gone(TRANSMITTED) == ways.written(TRANSMITTED)


@pytest.mark.parametrize("options", MODES)
def test_a_pipe(options: tuple[str, ...], meter: Meter) -> None:
    """What comes out of it is another packet with the same id: both ends count, as VPP's interfaces do."""
    ways, piped = meter.measure("pipe", options), len(met(13))
    ways.check_totals(received=COUNT + piped, again=piped)
    if not ways.is_described():
        return
    assert (ways.counts.generated, ways.counts.unknown, ways.counts.stray_packets) == (0, 0, 0)
    ids = ways.columns.packets["digest"]
    assert sorted(set(ids.tolist())) == sorted(ways.came)
    both = twice(ids)
    assert len(both) == piped
    rows = ways.columns.packets[np.isin(ids, both)]
    rows = rows[np.lexsort((rows["receive_ticks"], rows["digest"]))]
    assert np.all(rows["done_ticks"][0::2] <= rows["receive_ticks"][1::2])
    assert ways.gone(TRANSMITTED) == ways.written(TRANSMITTED) + Counter(both)


@pytest.mark.parametrize("options", MODES)
def test_arp(options: tuple[str, ...], meter: Meter) -> None:
    """A request that VPP makes was not received, and the packet that it is for is dropped. One that VPP answers is the
    packet that is transmitted, with another id."""
    frames, answered = list(make_frames(COUNT, lengths=LENGTHS)), met(28)
    for number in answered:
        body = (
            bytes.fromhex("0001080006040001") + number.to_bytes(6, "big") + bytes(4) + bytes(6) + bytes([10, 0, 0, 1])
        )
        frames[number] = (MAC_HEADER + b"\x08\x06" + body).ljust(60, b"\0")
    ways, dropped = meter.measure("arp", options, frames), met(27)
    ways.check_totals()
    assert ways.written(DROPPED).total() == len(met(3)) + len(met(5)) + len(dropped)
    assert ways.written(TRANSMITTED).total() + ways.written(DROPPED).total() == COUNT + len(dropped)
    if not ways.is_described():
        return
    assert (ways.counts.generated, ways.counts.unknown, ways.counts.stray_packets) == (len(dropped), 0, 0)
    packets = ways.packets()
    assert packets["digest"].tolist() == ways.came
    assert np.flatnonzero(packets["done_digest"] != packets["digest"]).tolist() == answered
    assert set(packets["disposition"][answered].tolist()) == {TRANSMITTED}
    assert set(packets["disposition"][dropped].tolist()) == {DROPPED}
    assert (ways.written(TRANSMITTED) - ways.gone(TRANSMITTED)).total() == len(dropped)


@pytest.mark.parametrize("options", MODES)
def test_an_input_node_that_returns_no_packets(options: tuple[str, ...], meter: Meter) -> None:
    ways = meter.measure("messages", options)
    ways.check_totals()
    assert ways.counts.generated == ways.counts.unknown == 0
