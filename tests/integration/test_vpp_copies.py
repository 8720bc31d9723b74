# SPDX-License-Identifier: Apache-2.0
"""Packets of a double of VPP that become several, that it makes itself, or that it receives again: each is counted as
what it is, against the capture files that the double reads and writes."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probed import Talker
from test_vpp_packets import COUNT, LATE, Traffic, placed
from traffic import read_pcap
from vpp_double import RELEASES, build_double

from otel_nfprobe.columns import DROPPED, TRANSMITTED, UNKNOWN, Columns
from otel_nfprobe.pipeline import PipelineCounts

pytestmark = pytest.mark.integration

COPIES = 3  # of a packet, itself included
LONG_MIN = 400  # bytes of packets whose clones share the buffer that was received
MODES = (("--packets", "all"), LATE, ("--packets", "none"))
ALL = MODES[0]
Start = Callable[[str], Traffic]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("vpp"), RELEASES[-1])


@pytest.fixture
def start(program: Path, spawn: Callable[..., Any], tmp_path: Path) -> Start:
    """A double that does this, whose nodes have all been called."""

    def start_it(what: str) -> Traffic:
        double = Talker(spawn(program, stdin=subprocess.PIPE))
        assert double.ask(what) == f"{what} 1"
        return Traffic(double, tmp_path)

    return start_it


def met(kind: int) -> list[int]:
    """Which of the packets meet the node that takes those of this kind: 100 others came before."""
    return [number for number in range(COUNT) if (number + 100) % 32 == kind]


def gone(columns: Columns, disposition: int) -> Counter[int]:
    """The packets with this disposition, as they left."""
    packets = columns.packets
    return Counter(packets["done_digest"][packets["disposition"] == disposition].tolist())


def check_totals(
    counts: PipelineCounts, summary: dict[str, Any], received: int, transmitted: int, dropped: int
) -> None:
    """Where packets are matched with what was received, those that were made here are counted apart."""
    assert not any(summary["records"]["lost"].values())
    assert summary["functions"]["switched_off"] == {}
    assert (counts.received, counts.dropped) == (received, dropped)
    assert counts.transmitted + counts.generated == transmitted


@pytest.mark.parametrize("options", MODES)
def test_replicated_packets(start: Start, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    """A short packet is the first of its clones. All clones of a long one are packets of their own, and what became of
    the received one is not known, or its buffer left as another packet's clone. Totals are exact."""
    traffic = start("copies")
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    cloned, came = met(7), traffic.digests(0)
    transmitted, dropped = traffic.digests(1), traffic.digests(2)
    assert len(transmitted) + len(dropped) == COUNT + (COPIES - 1) * len(cloned)
    check_totals(counts, summary, COUNT, len(transmitted), len(dropped))
    if options != ALL:
        return
    packets = placed(columns)
    lengths = [len(frame) for _, frame, _ in read_pcap(traffic.files[0])]
    long = [number for number in cloned if lengths[number] >= LONG_MIN]
    assert 0 < len(long) < len(cloned)
    assert packets["digest"].tolist() == came
    assert np.flatnonzero(packets["done_digest"] != packets["digest"]).tolist() == long
    unknown = int(np.sum(packets["disposition"] == UNKNOWN))
    assert 0 < unknown == counts.unknown <= len(long)
    assert counts.generated == (COPIES - 1) * len(cloned) + unknown
    made = Counter(transmitted) - gone(columns, TRANSMITTED)
    assert made.total() == counts.generated
    assert made.keys() <= {came[number] for number in cloned}
    assert counts.stray_packets == 0
    assert gone(columns, DROPPED) == Counter(dropped)


@pytest.mark.parametrize("options", MODES)
def test_errors_that_vpp_makes(start: Start, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    """The packet that an ICMP error is about is dropped, and the error is no packet that was received."""
    traffic = start("errors")
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    errors = len(met(9))
    transmitted, dropped = traffic.digests(1), traffic.digests(2)
    check_totals(counts, summary, COUNT, len(transmitted), len(dropped))
    assert len(transmitted) + len(dropped) == COUNT + errors
    if options != ALL:
        return
    assert (counts.generated, counts.unknown, counts.stray_packets) == (errors, 0, 0)
    assert gone(columns, DROPPED) == Counter(dropped)
    made = Counter(transmitted) - gone(columns, TRANSMITTED)
    assert made.total() == errors
    assert not made.keys() & set(traffic.digests(0))


@pytest.mark.parametrize("options", MODES)
def test_a_loopback_interface(start: Start, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    """What is sent to it goes on in the same turn: it is one packet, which has not left."""
    traffic = start("loop")
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    transmitted, dropped = traffic.digests(1), traffic.digests(2)
    assert len(transmitted) + len(dropped) == COUNT
    check_totals(counts, summary, COUNT, len(transmitted), len(dropped))
    if options != ALL:
        return
    assert (counts.generated, counts.unknown, counts.stray_packets) == (0, 0, 0)
    assert placed(columns)["digest"].tolist() == traffic.digests(0)
    assert gone(columns, TRANSMITTED) == Counter(transmitted)


@pytest.mark.parametrize("options", MODES)
def test_a_pipe(start: Start, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    """What comes out of it is another packet with the same id: both ends count, as VPP's interfaces do."""
    traffic = start("pipe")
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    piped = len(met(13))
    transmitted, dropped = traffic.digests(1), traffic.digests(2)
    assert len(transmitted) + len(dropped) == COUNT
    check_totals(counts, summary, COUNT + piped, len(transmitted) + piped, len(dropped))
    if options != ALL:
        return
    assert (counts.received, counts.generated, counts.unknown, counts.stray_packets) == (COUNT + piped, 0, 0, 0)
    ids = Counter(columns.packets["digest"].tolist())
    assert sorted(ids) == sorted(traffic.digests(0))
    twice = [digest for digest, count in ids.items() if count == 2]
    assert len(twice) == piped
    rows = columns.packets[np.isin(columns.packets["digest"], twice)]
    rows = rows[np.lexsort((rows["receive_ticks"], rows["digest"]))]
    assert np.all(rows["done_ticks"][0::2] <= rows["receive_ticks"][1::2])
    assert set(gone(columns, TRANSMITTED)) == set(transmitted) | set(twice)
