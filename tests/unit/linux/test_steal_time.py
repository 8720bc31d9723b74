# SPDX-License-Identifier: Apache-2.0
"""Stolen time: what the kernel counts, from the session's begin on; and nothing is said of what is not known."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_nfprobe.linux.steal_time import PROCESSORS, StolenTime
from otel_nfprobe.report.views.table import explain_stolen

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
BEGIN = "cpu  1000 10 200 9000 50 5 5 70 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"


def describe(path: Path, begin: str, end: str) -> dict[str, float]:
    path.write_text(begin)
    stolen = StolenTime(str(path))
    path.write_text(end)
    return stolen.describe()


def test_a_share_of_the_time_that_there_was_work(tmp_path: Path) -> None:
    found = describe(tmp_path / "stat", BEGIN, "cpu  1080 10 210 9900 60 5 5 80 7 7\n")
    assert found == {"ns": 10 * TICK_NS, "share": 0.1}  # of 80 + 10 + 10; idle and waiting for disks do not count
    assert "10.0% of the time" in explain_stolen(found)


@pytest.mark.parametrize(
    "end",
    [
        BEGIN,
        "cpu  1080 10 210 9900 60 5 5 70 0 0\n",
        "cpu  1 2 3\n",
        "",
        "cpu  a b c d e f g h\n",
        "cpu 0 0 0 0 0 0 0 0\n",
    ],
)
def test_nothing_was_stolen_or_the_kernel_does_not_say(tmp_path: Path, end: str) -> None:
    found = describe(tmp_path / "stat", BEGIN, end)
    assert found == {"ns": 0, "share": 0.0}
    assert explain_stolen(found) == ""


@pytest.mark.parametrize(
    "damaged", [None, 3, {}, {"share": "much"}, {"share": 0.0009}, {"share": 1.5}, {"share": True}]
)
def test_what_a_recording_may_hold_instead(damaged: object) -> None:
    assert explain_stolen(damaged) == ""


def test_the_kernel_of_this_machine() -> None:
    """What it has counted since it was started is what it shows."""
    words = Path(PROCESSORS).read_text().split()
    stolen = StolenTime(os.devnull)
    stolen._path = PROCESSORS
    found = stolen.describe()
    assert found["ns"] >= int(words[8]) * TICK_NS
    assert 0 <= found["share"] < 1
