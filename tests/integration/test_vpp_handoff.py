# SPDX-License-Identifier: Apache-2.0
"""A double of VPP whose workers hand packets to each other by frame queues: each packet's way over the threads, and
what full queues drop, against the double's own files and counts."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.adapters.base import DEQUEUE, HAND_OVER
from otel_nfprobe.adapters.vpp import find_handoff, find_thread_numbers
from otel_nfprobe.adapters.vpp_frames import Frame
from otel_nfprobe.adapters.vpp_graph import read_graph
from otel_nfprobe.base.columns import DROPPED, TRANSMITTED, BatchFlag, Columns, concatenate, with_again
from otel_nfprobe.monitor.latecapture import UPDATE_S
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.integration.test_vpp_packets import COUNT, LATE, LENGTHS, Traffic, placed
from tests.support.probed import Talker
from tests.support.traffic import make_frames
from tests.support.vpp_double import RELEASES, build_double

pytestmark = [pytest.mark.integration, pytest.mark.shared]

MODES = (("--packets", "all"), LATE, ("--packets", "none"))
ALL = MODES[0]
BEFORE = 100  # packets that were received before
STEPS, STEP, SLOW_US = 100, 400, 400_000
LINGERED = 1200  # more than are received before the second worker sends the first of them, fewer than fill a queue
LAYOUTS = {"26.06": (), "22.02": ("-DDEQUEUE_IN_TABLE",)}
Start = Callable[..., Traffic]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp
    return {name: build_double(folder("vpp"), RELEASES[-1], *words) for name, words in LAYOUTS.items()}


@pytest.fixture
def start(programs: dict[str, Path], spawn: Callable[..., Any], tmp_path: Path) -> Start:
    """A double that does this, whose nodes have all been called."""

    def start_it(what: str, layout: str = "26.06", frames: Sequence[bytes] | None = None) -> Traffic:
        double = Talker(spawn(programs[layout], stdin=subprocess.PIPE))
        assert double.ask(what) == f"{what} 1"
        return Traffic(double, tmp_path, frames)

    return start_it


def queue_counts(traffic: Traffic) -> tuple[int, ...]:
    """Packets handed over, dropped at queues and taken over."""
    return tuple(int(word) for word in traffic.double.ask("queues").split() if word.isdecimal())


def way_of(packet: int) -> list[int]:
    """By which of the two workers, one after the other."""
    kind = packet % 32
    if kind % 4 == 1 or kind == 3:  # goes on where it is, or is dropped there
        return [0]
    if packet % 16 == 2:
        return [0, 0]
    return [0, 1, 0] if packet % 5 == 0 else [0, 1]


def ways(columns: Columns) -> list[list[int]]:
    """The threads of each packet's batches, as the packets were received; the thread that receives is 0."""
    own = with_again(columns)
    first = int(own.batches["thread"][own.packets["batch"][0]])
    found = [[int(own.batches["thread"][batch])] for batch in own.packets["batch"]]
    for row in own.handovers:
        found[row["packet"]].append(int(own.batches["thread"][row["batch"]]))
    order = np.lexsort((own.packets["index"], own.batches["start_ticks"][own.packets["batch"]]))
    return [[int(thread != first) for thread in found[packet]] for packet in order]


def check_totals(
    traffic: Traffic, mode: tuple[str, ...], tmp_path: Path, nfprobe: Any
) -> tuple[Columns, tuple[int, ...]]:
    """Measures, and checks all counts. Returns what became of the packets, and the double's own counts."""
    before = queue_counts(traffic)
    columns, counts, summary = traffic.measure(nfprobe, tmp_path / "vpp.nfprobe", *mode)
    grown = tuple(now - then for now, then in zip(queue_counts(traffic), before, strict=True))
    transmitted, dropped = len(traffic.digests(1)), len(traffic.digests(2))
    assert transmitted + dropped == COUNT
    assert summary["packets"] == {
        "received": COUNT,
        "transmitted": transmitted,
        "dropped": dropped,
        "unknown": 0,
    }
    threads = summary["threads"]
    assert {thread["name"]: thread["number"] for thread in threads} == {"vpp_wk_0": 1, "vpp_wk_1": 2}
    assert sum(thread["packets"] for thread in threads) == COUNT
    assert sum(thread["handed_over"] for thread in threads) == grown[0] == counts.handed_over
    assert sum(thread["taken_over"] for thread in threads) == grown[2] == grown[0]
    replayed = nfprobe.json("report", tmp_path / "vpp.nfprobe")["threads"]
    assert [{key: thread[key] for key in one} for thread, one in zip(threads, replayed, strict=True)] == replayed
    assert sum(thread["taken_over"] for thread in replayed) == grown[2]
    assert not any(summary["records"]["lost"].values())
    assert (counts.stray_packets, counts.invalid, counts.generated) == (0, 0, 0)
    assert summary["functions"]["switched_off"] == {}
    taken = (columns.batches["flags"] & BatchFlag.TAKEN_OVER) != 0
    assert columns.batches["size"][taken].sum() == grown[2]
    assert columns.batches["size"][~taken].sum() == COUNT
    return columns, grown


@pytest.mark.parametrize(("mode", "layout"), [*((mode, "26.06") for mode in MODES), (ALL, "22.02")])
def test_totals(mode: tuple[str, ...], layout: str, start: Start, nfprobe: Any, tmp_path: Path) -> None:
    _, (handed_over, refused, _) = check_totals(start("handoff", layout), mode, tmp_path, nfprobe)
    assert handed_over > COUNT // 2
    assert refused == 0


@pytest.mark.parametrize("mode", MODES)
def test_a_full_queue_drops(mode: tuple[str, ...], start: Start, nfprobe: Any, tmp_path: Path) -> None:
    """Which packets: in some calls all, in others those for one of two threads."""
    traffic = start("overflow")
    columns, (_, refused, _) = check_totals(traffic, mode, tmp_path, nfprobe)
    assert refused > 100
    if mode != ALL:
        return
    packets = placed(columns)
    assert packets["digest"].tolist() == traffic.digests(0)
    for disposition, number in ((TRANSMITTED, 1), (DROPPED, 2)):
        gone = packets["digest"][packets["disposition"] == disposition]
        assert Counter(gone.tolist()) == Counter(traffic.digests(number))


def test_ways(start: Start, nfprobe: Any, tmp_path: Path) -> None:
    """Each packet has the batches of all threads that it was in, in their order, and the wait between them."""
    traffic = start("handoff")
    columns, _ = check_totals(traffic, ALL, tmp_path, nfprobe)
    packets = placed(columns)
    assert packets["digest"].tolist() == traffic.digests(0)
    assert np.array_equal(packets["done_digest"], packets["digest"])
    assert ways(columns) == [way_of(packet) for packet in range(BEFORE, BEFORE + COUNT)]
    own = with_again(columns)
    for row in own.handovers:
        packet, batch = own.packets[row["packet"]], own.batches[row["batch"]]
        assert packet["receive_ticks"] <= batch["end_ticks"]
        assert batch["start_ticks"] < packet["done_ticks"]
        assert row["index"] < batch["size"]


def test_what_is_late_on_the_second_worker(start: Start, nfprobe: Any, tmp_path: Path) -> None:
    """With the default thresholds it is identified, in the batches of all threads that it was in, and the call of the
    second worker that was slow is why: those packets are late that were in it, and those that waited in the queue."""
    traffic, recording = start("handoff", frames=make_frames(STEPS * STEP, lengths=LENGTHS)), tmp_path / "vpp.nfprobe"
    found, _ = identify_late(traffic, f"slow {SLOW_US}", STEP, recording, nfprobe)
    late = {packet for packet in range((STEPS - 1) * STEP, STEPS * STEP) if 1 in way_of(BEFORE + packet)}
    assert late <= set(found)
    document = json.loads(nfprobe.run("report", recording, "--format", "json").stdout)
    # A busy machine makes other packets late, by less.
    cause = max(document["packets"]["causes"], key=lambda cause: cause["max_excess_ns"])
    assert cause["kind"] in ("own", "queue", "fault")  # it sleeps in a system call there
    assert "ip4-full-reassembly" in cause["function"]
    assert cause["max_excess_ns"] > 900 * SLOW_US


def test_buffers_that_are_used_again_before_a_call_ends(start: Start, nfprobe: Any, tmp_path: Path) -> None:
    """A transmit call of the second worker is late when it has freed its packets, and the first one has received others
    into their buffers: no packet is taken for another one, and those that are not identified are counted."""
    frames = make_frames(STEPS * STEP + LINGERED, lengths=LENGTHS)
    traffic = start("handoff", frames=frames)
    found, summary = identify_late(traffic, f"linger {SLOW_US}", LINGERED, tmp_path / "vpp.nfprobe", nfprobe)
    assert 0 < summary["identified"]["unheld"] < LINGERED
    lingered = {packet for packet in found if packet >= (STEPS - 1) * STEP}
    assert len(lingered) > LINGERED // 4  # the others waited for the second worker, mostly


def identify_late(
    traffic: Traffic, late: str, packets: int, recording: Path, nfprobe: Any
) -> tuple[list[int], dict[str, Any]]:
    """Measures small steps and then so many packets, of which some are late, with the default thresholds. Returns which
    packets were identified, all of them rightly, and the summary."""
    words = ("--ring-size", "64MiB", "--record", str(recording), "--json")
    monitor = nfprobe.start("attach", traffic.double.pid, *words)
    wait_until_armed(nfprobe, traffic.double.pid, monitor)
    for _ in range(STEPS - 1):
        traffic.double.ask(str(STEP))
        time.sleep(UPDATE_S / 2)  # thresholds follow meanwhile
    traffic.double.ask(late)
    traffic.double.ask(str(packets))
    summary = nfprobe.end(monitor)
    assert summary["identified"]["unplaced"] == 0
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(list(replay(reader, facts, pipeline)))
        assert (pipeline.counts().unplaced, pipeline.counts().invalid) == (0, 0)
    rows = placed(columns)
    number = {digest: packet for packet, digest in enumerate(traffic.digests(0))}
    found = [number[digest] for digest in rows["digest"].tolist()]
    assert ways(columns) == [way_of(BEFORE + packet) for packet in found]
    assert all(count == 1 for count in Counter(found).values())
    firsts = [packet - index for packet, index in zip(found, rows["index"].tolist(), strict=True)]
    assert len(set(zip(rows["batch"].tolist(), firsts, strict=True))) == len(set(firsts)) == len(set(rows["batch"]))
    return found, summary


@pytest.mark.parametrize("mode", MODES)
def test_nonsense_in_frames(mode: tuple[str, ...], start: Start, nfprobe: Any, tmp_path: Path) -> None:
    """Lengths, addresses and numbers that cannot be are not followed, and VPP runs on."""
    traffic = start("handoff")
    assert traffic.double.ask("hostile") == "hostile 1"
    words = (*mode, "--record", str(tmp_path / "vpp.nfprobe"), "--json")
    monitor = nfprobe.start("attach", traffic.double.pid, *words)
    wait_until_armed(nfprobe, traffic.double.pid, monitor)
    traffic.double.ask(str(COUNT))
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert "Traceback" not in errors
    summary = json.loads(output.splitlines()[-1])
    if mode == ALL:  # a number that names no buffer ends it, and says so
        assert monitor.returncode == 1
        assert "(frame queues take over) is switched off" in errors
        assert "there is no buffer 2147483647" in errors
    else:
        assert (monitor.returncode, summary["functions"]["switched_off"]) == (0, {})
    assert summary["packets"]["received"] == COUNT
    assert summary["packets"]["dropped"] + summary["packets"]["transmitted"] <= COUNT
    assert traffic.double.ask("0").startswith(f"{COUNT + 100} received")
    assert nfprobe.run("report", tmp_path / "vpp.nfprobe").returncode == 0


def test_no_workers_no_queues(start: Start) -> None:
    """A target whose tables lead nowhere has no such roles, and all others."""
    target = Target(start("handoff").double.pid)
    graph, frame = read_graph(target), Frame(10, 6)
    assert [role.role for role in find_handoff(target, graph, frame)] == [HAND_OVER, DEQUEUE]
    assert find_handoff(target, replace(graph, mains=graph.mains[:1]), frame) == []
    assert find_handoff(target, replace(graph, nodes=graph.nodes[:20]), frame) == []


def test_thread_numbers(start: Start) -> None:
    target = Target(start("handoff").double.pid)
    names = {thread.tid: thread.name for thread in target.threads()}
    found = find_thread_numbers(target, 3)
    assert [(number, names[tid]) for tid, number in found.items()] == [(0, "vpp"), (1, "vpp_wk_0"), (2, "vpp_wk_1")]
    assert find_thread_numbers(target, 4) == {}
