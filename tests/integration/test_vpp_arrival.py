# SPDX-License-Identifier: Apache-2.0
"""An input node that always returns full frames: its packets' latency counts from its call, and the report says so."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker
from tests.support.vpp_double import build_double

pytestmark = pytest.mark.integration

COUNT = 400 * 256  # nearly all calls of the input node return a full frame, and none returns nothing


@pytest.fixture
def report(tmp_path: Path, spawn: Callable[..., Any], nfprobe: Any) -> tuple[dict[str, Any], str]:
    """Of a session on a generator: as JSON, and as a person reads it."""
    double = Talker(spawn(build_double(tmp_path, 2606), stdin=subprocess.PIPE))
    double.ask("1000")
    recording = tmp_path / "vpp.nfprobe"
    options = ("--record", str(recording), "--packets", "all", "--ring-size", "64MiB", "--json")
    monitor = nfprobe.start("attach", double.pid, *options)
    wait_until_armed(nfprobe, double.pid, monitor)
    double.ask(str(COUNT))
    nfprobe.end(monitor)
    found = nfprobe.run("report", recording, "--format", "json", "--slowest", "50").stdout
    return json.loads(found), nfprobe.run("report", recording).stdout


def test_latencies_say_from_which_point_they_count(report: tuple[dict[str, Any], str]) -> None:
    document, text = report
    packets, batches = document["packets"], document["batches"]
    assert packets["latency_from"] == {"stamp": 0, "capture": 0, "poll": 0, "receive": COUNT}
    assert packets["transmitted"] + packets["dropped"] == COUNT
    assert "\ncounted from the receive call: how long they waited before is not known\n" in text
    # Not from the call before, which would be twice the time of a batch.
    assert packets["latency_ns"]["max"] <= batches["latency_ns"]["max"]
    assert {packet["arrival_source"] for packet in packets["slowest"]} == {"saturated"}
    assert {packet["queue_wait_ns"] for packet in packets["slowest"]} == {None}
