# SPDX-License-Identifier: Apache-2.0
"""Calls of VPP's graph nodes go to the batches whose packets they worked on, on a double, against its own counters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import CallFlag, Columns, Rows
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts
from tests.integration.test_vpp_packets import COUNT, LATE, Traffic
from tests.support.probed import Talker
from tests.support.vpp_double import build_double

pytestmark = [pytest.mark.integration, pytest.mark.shared]

MODES = (("--packets", "none"), ("--packets", "all"), LATE)
ALL_PASS = ("ethernet-input", "ip4-input")
LOW = np.uint64(0xFFFFFFFF)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("vpp"), 2606)


def counters(double: Talker) -> dict[str, tuple[int, int]]:
    """Calls and vectors of each node, as the double counts them."""
    items = (item.split() for item in double.ask("counters").split(";") if item)
    return {name: (int(calls), int(vectors)) for name, calls, vectors in items}


def vectors_by_batch(columns: Columns, calls: Rows) -> list[int]:
    """Vectors of these calls, by batch."""
    inside = calls[calls["batch"] < len(columns.batches)]
    weights = (inside["value"] & LOW).astype(np.float64)
    return np.bincount(inside["batch"], weights=weights, minlength=len(columns.batches)).astype(int).tolist()


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("inputs", [("both",), ("streams",), ("both", "streams"), ("both", "pipe")])
def test_each_batch_has_the_calls_of_its_packets(
    inputs: tuple[str, ...],
    options: tuple[str, ...],
    double: Path,
    spawn: Callable[..., Any],
    nfprobe: Any,
    tmp_path: Path,
) -> None:
    """Of each node as many vectors as the batch has packets that pass it, whoever else's stand in the same frames."""
    talker = Talker(spawn(double, stdin=subprocess.PIPE))
    for command in inputs:
        talker.ask(command)
    traffic = Traffic(talker, tmp_path)
    before = counters(traffic.double)
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    after = counters(traffic.double)
    assert counts.invalid == 0
    assert not any(summary["records"]["lost"].values())
    names = {info.id: info.name for info in read_facts(RecordingReader(tmp_path / "vpp.nfprobe")).functions.values()}
    calls, batches = columns.calls, columns.batches
    by_node = {name: calls[calls["function"] == number] for number, name in names.items()}
    for name in ALL_PASS:
        assert vectors_by_batch(columns, by_node[name]) == batches["size"].tolist(), name
    for flag, done in ((CallFlag.TRANSMIT, "transmitted"), (CallFlag.DROP, "dropped")):
        assert vectors_by_batch(columns, calls[(calls["flags"] & flag) != 0]) == batches[done].tolist(), done
    assert np.array_equal(batches["transmitted"] + batches["dropped"], batches["size"])
    for node in (node for node in summary["nodes"] if node["name"] not in ("pg-input", "dpdk-input", "pipe-input")):
        first = before.get(node["name"], (0, 0))
        grown = tuple(now - then for now, then in zip(after[node["name"]], first, strict=True))
        assert (node["calls"], node["vectors"]) == grown, node
    shared = (calls["flags"] & CallFlag.SHARED) != 0
    assert shared.any() or inputs == ("streams",)
    assert np.all(calls["end_ticks"] >= calls["start_ticks"])
    assert np.all(
        batches["end_ticks"][calls["batch"][calls["batch"] < len(batches)]]
        >= calls["end_ticks"][calls["batch"] < len(batches)]
    )


def test_a_turn_of_one_batch_shares_nothing(
    double: Path, spawn: Callable[..., Any], nfprobe: Any, tmp_path: Path
) -> None:
    traffic = Traffic(Talker(spawn(double, stdin=subprocess.PIPE)), tmp_path)
    columns, _, _ = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe")
    assert columns.batches["size"].sum() == COUNT
    assert not np.any(columns.calls["flags"] & CallFlag.SHARED)
