# SPDX-License-Identifier: Apache-2.0
"""Packets of a double of VPP whose way ends, or goes on, in another way than by being transmitted or dropped."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import DROPPED, PUNTED, TRANSMITTED, BatchFlag
from tests.integration.test_vpp_packets import COUNT
from tests.support.vpp_ways import ALL, MODES, Meter, Ways, met

pytestmark = [pytest.mark.integration, pytest.mark.shared]


@pytest.mark.parametrize("options", MODES)
def test_punted_packets(options: tuple[str, ...], meter: Meter) -> None:
    """They are neither transmitted nor dropped, whether they go to the host's stack or to a program's socket."""
    ways, punted = meter.measure("punts", options), len(met(15)) + len(met(17))
    ways.check_totals()
    assert ways.counts.punted == ways.summary["packets"]["punted"] == punted
    assert sum(ways.written(way).total() for way in (TRANSMITTED, DROPPED, PUNTED)) == COUNT
    assert (ways.counts.unknown, ways.counts.pending) == (0, 0)
    if not len(ways.columns.packets):
        return
    for way in (TRANSMITTED, DROPPED, PUNTED):
        assert ways.gone(way) == ways.written(way)


def test_reports_of_punted_packets(meter: Meter, nfprobe: Any) -> None:
    ways = meter.measure("punts", ALL)
    recording = ways.traffic.files[0].with_name("vpp.nfprobe")
    document = json.loads(nfprobe.run("report", recording, "--format", "json").stdout)
    assert document["packets"]["punted"] == ways.counts.punted
    assert f"{ways.counts.punted:,} punted" in nfprobe.run("report", recording).stdout


def sizes_of(ways: Ways) -> list[int]:
    """Of the batches that received packets."""
    batches = ways.columns.batches[(ways.columns.batches["flags"] & BatchFlag.TAKEN_OVER) == 0]
    sizes: list[int] = batches["size"][np.argsort(batches["start_ticks"])].tolist()
    return sizes


@pytest.mark.parametrize("options", MODES)
def test_packets_that_are_encrypted_elsewhere(options: tuple[str, ...], meter: Meter) -> None:
    """They leave one turn and come back in another, by an input node that returns more than it gives: each is one
    packet, received once, and was in two batches."""
    ways, encrypted = meter.measure("crypto", options), met(19) + met(20)
    ways.check_totals()
    assert (ways.counts.unknown, ways.counts.pending, ways.counts.generated) == (0, 0, 0)
    if not len(ways.columns.packets):
        return
    packets, batches = ways.packets(), ways.columns.batches
    changed = np.flatnonzero(packets["digest"] != np.array(ways.came, np.uint64)).tolist()
    assert set(changed) <= (
        set() if ways.is_described() else set(encrypted)
    )  # late ones have the id that they left with
    assert ways.gone(TRANSMITTED) == ways.written(TRANSMITTED)
    assert ways.gone(DROPPED) == ways.written(DROPPED)
    assert set(np.flatnonzero(packets["done_digest"] != packets["digest"]).tolist()) <= set(encrypted)
    assert packets["index"].tolist() == np.concatenate([np.arange(size) for size in sizes_of(ways)]).tolist()
    returning = batches[(batches["flags"] & BatchFlag.TAKEN_OVER) != 0]
    assert returning["size"].sum() == len(encrypted)
    if ways.is_described():
        assert ways.counts.taken_over == len(encrypted)
        kept = ways.columns.packets[ways.columns.handovers["packet"]]
        came = sorted(ways.came[number] for number in encrypted)
        assert sorted(kept["digest"].tolist()) == came
