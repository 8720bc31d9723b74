# SPDX-License-Identifier: Apache-2.0
"""Packets that go from one lcore to another, in DPDK's own examples: over rings, and over an event device.

One thread receives, others work on the packets, and one puts them in order and transmits: each packet is one packet.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dpdk_examples import BURST, Example, build_example, examples_are_installed
from test_dpdk_examples import measure

from otel_nfprobe.columns import TRANSMITTED, Columns, concatenate
from otel_nfprobe.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.recording import RecordingReader
from otel_nfprobe.replay import read_facts, replay

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]


PACKETS = 1_000
Start = Callable[..., Example]
# Lcores of the receiver, the sender, the scheduler and the workers.
EVENT_CORES = ("-r", "1", "-t", "1", "-e", "1", "-w", "6", "-s", "1", "-n", "0")


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    started: list[Example] = []

    def run(name: str, *options: str, **settings: Any) -> Example:
        program = build_example(tmp_path_factory.mktemp("examples"), name)
        started.append(Example(program, tmp_path, f"nfo{os.getpid()}", options, lcores=3, memory_mib=512, **settings))
        return started[-1]

    yield run
    for example in started:
        example.stop()


def follow(recording: Path) -> tuple[Columns, PipelineCounts]:
    """What became of each packet."""
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return concatenate(list(replay(reader, facts, pipeline))), pipeline.counts()


def check(summary: dict[str, Any], columns: Columns, counts: PipelineCounts, sent: int) -> int:
    """All that was transmitted is what was received, with the same id. Returns how many were received before."""
    assert not any(summary["records"]["lost"].values()), summary
    before = PACKETS - summary["packets"]["received"]
    assert 0 < before <= BURST  # in the call that was open when the probes came
    assert (summary["packets"]["transmitted"], summary["packets"]["dropped"]) == (sent, 0)
    assert len(columns.packets) == PACKETS - before
    is_sent = columns.packets["disposition"] == TRANSMITTED
    assert np.count_nonzero(is_sent) == sent - before
    assert np.array_equal(columns.packets["done_digest"][is_sent], columns.packets["digest"][is_sent])
    assert np.all(columns.packets["done_ticks"][is_sent] > columns.packets["receive_ticks"][is_sent])
    assert counts.generated == before
    return before


def test_through_rings(nfprobe: Any, start: Start, capture: Callable[[int], Path], tmp_path: Path) -> None:
    example, recording = start("packet_ordering", "-p", "3"), tmp_path / "rings.nfprobe"
    sent = PACKETS // BURST * BURST  # it sends whole bursts only, and keeps the rest
    summary = measure(
        nfprobe, example, capture(PACKETS).read_bytes(), (PACKETS, sent), "--packets", "all", "--record", recording
    )
    columns, counts = follow(recording)
    check(summary, columns, counts, sent)
    sending = columns.packets["done_function"][columns.packets["disposition"] == TRANSMITTED][0]
    receivers = set(columns.batches["thread"].tolist())
    senders = set(columns.calls["thread"][columns.calls["function"] == sending].tolist())
    assert len(receivers) == len(senders) == 1
    assert not receivers & senders


def test_through_an_event_device(nfprobe: Any, start: Start, capture: Callable[[int], Path], tmp_path: Path) -> None:
    """Two workers take packets from the device's scheduler and give them back; an adapter of it sends them."""
    example = start("eventdev_pipeline", *EVENT_CORES, devices=("event_sw0",))
    recording = tmp_path / "events.nfprobe"
    summary = measure(
        nfprobe, example, capture(PACKETS).read_bytes(), (PACKETS, PACKETS), "--packets", "all", "--record", recording
    )
    check(summary, *follow(recording), PACKETS)
