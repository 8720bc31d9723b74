# SPDX-License-Identifier: Apache-2.0
"""A double of VPP whose main thread holds its worker for 0.4 s while packets arrive: why they are late."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters.base import COMMAND, HOLD, RELEASE
from otel_nfprobe.adapters.vpp import VppAdapter
from otel_nfprobe.causes.holds import describe_hold
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker
from tests.support.vpp_double import RELEASES, build_double

pytestmark = [pytest.mark.integration, pytest.mark.shared]

LINE = "ip route add 10.0.0.0/8 via 192.0.2.1 and much more that is not kept of so long a line as this one is"
HOLD_US, SHORT_US, PACKETS = 400_000, 100, 20


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("vpp"), RELEASES[-1])


@pytest.fixture
def double(program: Path, spawn: Callable[..., Any]) -> Talker:
    talker = Talker(spawn(program, stdin=subprocess.PIPE))
    talker.ask("100")
    return talker


@pytest.mark.parametrize("packets", [("all",), ("slow", "--slower-than", "100ms")])
@pytest.mark.parametrize("by_command", [True, False])
def test_the_barrier_is_named(
    double: Talker, by_command: bool, packets: tuple[str, ...], nfprobe: Any, tmp_path: Path
) -> None:
    recording = tmp_path / "vpp.nfprobe"
    double.ask("run")
    monitor = nfprobe.start("attach", double.pid, "--packets", *packets, "--record", recording, "--json")
    wait_until_armed(nfprobe, double.pid, monitor)
    for _ in range(200):  # what is usual
        double.ask(f"hold {SHORT_US} {PACKETS}")
    double.ask(f"hold {HOLD_US} {PACKETS} {LINE if by_command else ''}")
    double.ask("stop")
    summary = nfprobe.end(monitor)
    assert summary["packets"]["unknown"] == 0 or packets != ("all",)
    assert summary["functions"]["refused"] == {}
    document = json.loads(nfprobe.run("report", recording, "--format", "json").stdout)
    slowest = document["packets"]["slowest"][0]
    cause = slowest["cause"]
    assert slowest["latency_ns"] >= HOLD_US * 1000
    assert cause["kind"] == "barrier"
    assert cause["excess_ns"] >= HOLD_US * 900
    assert cause["command"] == (LINE[:81] + "..." if by_command else "fib_table_update")
    assert "barrier" in {row["kind"] for row in document["packets"]["causes"]}
    table = nfprobe.run("report", recording).stdout
    assert f"in `{cause['command']}`" in table
    assert len(read_holds(recording)) == 201
    assert read_holds(recording)[-1] == cause["command"]


def read_holds(recording: Path) -> list[str]:
    """The texts of all holds of a recording, each once."""
    reader, found = RecordingReader(recording), {}
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            found.update({int(hold["end_ticks"]): describe_hold(hold) for hold in columns.holds})
    return [found[ticks] for ticks in sorted(found)]


def test_which_functions(double: Talker) -> None:
    roles = {role.role: role.name for role in VppAdapter().roles(Target(double.pid))}
    assert roles[HOLD] == "libvlib.so:vlib_worker_thread_barrier_sync_int"
    assert roles[RELEASE] == "libvlib.so:vlib_worker_thread_barrier_release"
    assert roles[COMMAND] == "libvlib.so:vlib_cli_input"
