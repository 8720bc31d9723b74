# SPDX-License-Identifier: Apache-2.0
"""Packets in a double of VPP: who they are, against the capture files that it reads and writes, packet by packet."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.adapters.vpp import VppAdapter
from otel_nfprobe.adapters.vpp_buffers import find_buffer_memory
from otel_nfprobe.adapters.vpp_graph import read_graph
from otel_nfprobe.base.columns import DROPPED, RECORD, TRANSMITTED, Columns, Rows, concatenate
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.recording.recording import RECORDS, RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.packet_digest import describe
from tests.support.probed import Talker
from tests.support.traffic import make_frames, read_pcap, write_pcap
from tests.support.vpp_double import RELEASES

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COUNT = 5_000
LENGTHS = (60, 74, 590, 1514, 2061, 2062, 2063, 6000)  # a buffer holds 2,048 bytes
NAMES = ("in.pcap", "transmitted.pcap", "dropped.pcap", "punted.pcap")
LATE = ("--packets", "slow", "--slower-than", "0us")


class Traffic:
    """A double that has been given packets. The first of them it receives before it is measured."""

    def __init__(self, double: Talker, folder: Path, frames: Sequence[bytes] | None = None) -> None:
        self.double = double
        self.files = [folder / name for name in NAMES]
        write_pcap(self.files[0], make_frames(COUNT, lengths=LENGTHS) if frames is None else frames)
        double.ask("100")
        assert double.ask(" ".join(["files", *map(str, self.files)])) == "opened"

    def measure(self, nfprobe: Any, recording: Path, *options: str) -> tuple[Columns, PipelineCounts, dict[str, Any]]:
        """What became of each packet, and the summary."""
        words = ("--ring-size", "64MiB", "--record", str(recording), "--json", *options)
        monitor = nfprobe.start("attach", self.double.pid, *words)
        wait_until_armed(nfprobe, self.double.pid, monitor)
        self.double.ask(str(COUNT))
        summary = nfprobe.end(monitor)
        reader = RecordingReader(recording)
        facts = read_facts(reader)
        with Pipeline(facts.roles) as pipeline:
            return concatenate(list(replay(reader, facts, pipeline))), pipeline.counts(), summary

    def digests(self, number: int) -> list[int]:
        """Of the packets of a file, by the same code in Python."""
        return [describe(frame).digest for _, frame, _ in read_pcap(self.files[number])]


def placed(columns: Columns) -> np.ndarray[Any, Any]:
    """The packets, batch by batch and in each as it was received."""
    starts = columns.batches["start_ticks"][columns.packets["batch"]]
    return columns.packets[np.lexsort((columns.packets["index"], starts))]


def read_records(reader: RecordingReader) -> Rows:
    """Of the one thread that works."""
    blocks = [block for block in reader.blocks() if block.type == RECORDS]
    assert {block.thread for block in blocks} == {0}
    return np.concatenate([block.array(RECORD) for block in blocks])


def check_all(traffic: Traffic, columns: Columns, counts: PipelineCounts, summary: dict[str, Any]) -> None:
    """Every packet, once, at its own place, with its own id when it came and when it left."""
    packets, came = placed(columns), traffic.digests(0)
    assert not any(summary["records"]["lost"].values())
    assert summary["functions"]["switched_off"] == {}
    assert packets["digest"].tolist() == came
    assert np.array_equal(packets["done_digest"], packets["digest"])
    for disposition, number in ((TRANSMITTED, 1), (DROPPED, 2)):
        gone = packets["digest"][packets["disposition"] == disposition]
        assert sorted(gone.tolist()) == sorted(traffic.digests(number))
    assert set(packets["disposition"].tolist()) == {TRANSMITTED, DROPPED}
    assert np.all(columns.batches["size"] == np.bincount(columns.packets["batch"]))
    assert (counts.generated, counts.stray_packets, counts.unplaced, counts.unknown, counts.invalid) == (0,) * 5
    assert np.all(packets["flags"] == 0)
    lengths = np.array([len(frame) for _, frame, _ in read_pcap(traffic.files[0])])
    whole = packets["disposition"] == TRANSMITTED  # those that are dropped begin with their IP header then
    assert np.array_equal(packets["length"][whole], lengths[whole])


@pytest.fixture
def traffic(
    request: pytest.FixtureRequest, doubles: dict[int, Path], spawn: Callable[..., Any], tmp_path: Path
) -> Traffic:
    release = getattr(request, "param", RELEASES[-1])
    return Traffic(Talker(spawn(doubles[release], stdin=subprocess.PIPE)), tmp_path)


@pytest.mark.parametrize("options", [("--packets", "all"), LATE])
def test_every_packet(traffic: Traffic, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    check_all(traffic, columns, counts, summary)


def test_several_streams(traffic: Traffic, nfprobe: Any, tmp_path: Path) -> None:
    """One call of an input node returns up to 768 packets in three frames."""
    traffic.double.ask("streams")
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", "--packets", "all")
    assert columns.batches["size"].max() > 256
    check_all(traffic, columns, counts, summary)


@pytest.mark.parametrize("traffic", [1903], indirect=True)
def test_a_release_whose_frames_are_not_found(traffic: Traffic, nfprobe: Any, tmp_path: Path) -> None:
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", "--packets", "all")
    assert len(columns.packets) == counts.generated == 0
    assert (counts.received, counts.invalid) == (COUNT, 0)
    (thread,) = [thread for thread in summary["threads"] if thread["packets"]]
    assert thread["packets"] == COUNT


@pytest.mark.parametrize("options", [("--packets", "all"), LATE])
def test_two_input_nodes_in_one_turn(traffic: Traffic, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    """VPP calls both, and then the graph for the packets of both: each packet is in its own node's batch, wherever a
    round of the monitor ends. The second one fills the frame on that the first one has begun."""
    traffic.double.ask("both")
    traffic.double.ask("0")  # both have been called
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *options)
    assert len(np.unique(columns.batches["function"])) == 2
    check_all(traffic, columns, counts, summary)
    if options != LATE:
        return
    reader = RecordingReader(tmp_path / "vpp.nfprobe")
    roles, records = read_facts(reader).roles, read_records(reader)
    for place in range(0, len(records), len(records) // 40):
        with Pipeline(roles) as pipeline:
            for part in (records[:place], records[place:place], records[place:]):
                pipeline.feed(0, part)
                pipeline.take()
            assert (pipeline.counts().identified, pipeline.counts().unplaced) == (COUNT, 0), place


def test_a_number_that_names_no_buffer(traffic: Traffic, nfprobe: Any, tmp_path: Path) -> None:
    """Nothing is read there: the node is switched off with a sentence, and VPP runs on."""
    traffic.double.ask("wild")
    monitor = nfprobe.start("attach", traffic.double.pid, "--packets", "all", "--json")
    wait_until_armed(nfprobe, traffic.double.pid, monitor)
    assert traffic.double.ask(str(COUNT)).startswith(f"{COUNT + 100} received")
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 1
    assert (
        "(tap0-tx/tap1-tx transmit) is switched off, its description is wrong: there is no buffer 2147483647." in errors
    )
    assert len(json.loads(output.splitlines()[-1])["functions"]["switched_off"]) == 1
    assert traffic.double.ask("0").startswith(f"{COUNT + 100} received")


def test_where_buffers_are(doubles: dict[int, Path], spawn: Callable[..., Any]) -> None:
    double = Talker(spawn(doubles[RELEASES[-1]], stdin=subprocess.PIPE))
    double.ask("100")
    target, adapter = Target(double.pid), VppAdapter()
    adapter.roles(target)
    buffers = adapter.numbered_buffers()
    (mapping,) = [mapping for mapping in target.maps() if mapping.start == buffers.start]
    assert mapping.end - buffers.start == buffers.size_bytes
    assert f"buffers are at {buffers.start:#x}, {buffers.size_bytes >> 20} MiB" in "\n".join(adapter.notes(target))
    assert double.ask("spoil buffers") == "spoiled"
    assert VppAdapter().roles(target)
    assert find_buffer_memory(target, read_graph(target).mains[0]) is None
