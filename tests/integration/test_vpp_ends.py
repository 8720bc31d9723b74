# SPDX-License-Identifier: Apache-2.0
"""Packets of a double of VPP whose way ends, or goes on, in another way than by being transmitted or dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_vpp_packets import COUNT
from vpp_ways import ALL, MODES, Meter, met

from otel_nfprobe.columns import DROPPED, PUNTED, TRANSMITTED

pytestmark = pytest.mark.integration


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
