# SPDX-License-Identifier: Apache-2.0
"""A double of VPP that forwards without a pause while a session ends: its last turns are whole or left out."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker, wait_until
from tests.support.vpp_ways import LATE, MODES

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COUNT = 10**15  # more than it can have done when the test ends
BUSY_CLOCKS = 50  # half a second


def spent_clocks(pid: int) -> int:
    """Of processor time."""
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(words[11]) + int(words[12])


@pytest.mark.parametrize("ways", ["", "both"])
@pytest.mark.parametrize("options", MODES)
def test_every_packet_that_was_received_left(
    options: tuple[str, ...], ways: str, vpp_program: Any, spawn: Any, nfprobe: Any
) -> None:
    double = Talker(spawn(vpp_program, stdin=subprocess.PIPE))
    if ways:  # two input nodes in a turn
        double.ask(ways)
    double.ask("100")
    monitor = nfprobe.start("attach", double.pid, "--ring-size", "64MiB", "--json", *options)
    wait_until_armed(nfprobe, double.pid, monitor)
    before = spent_clocks(double.pid)
    double.say(str(COUNT))
    assert wait_until(lambda: spent_clocks(double.pid) > before + BUSY_CLOCKS)
    summary = nfprobe.end(monitor)
    packets = summary["packets"]
    assert packets["received"] > 0
    assert (packets["unknown"], packets["received"]) == (0, packets["transmitted"] + packets["dropped"])
    assert options != LATE or summary["identified"]["differing"] == 0
