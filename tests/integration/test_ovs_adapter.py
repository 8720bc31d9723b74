# SPDX-License-Identifier: Apache-2.0
"""Debian's Open vSwitch with DPDK, unmodified and stripped: every packet through two ports is accounted for."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from otel_nfprobe.adapters import ovs
from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.adapters.dpdk import find_table
from otel_nfprobe.base.columns import DROPPED
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import ROOM, assert_nothing_missing, wait_until_armed
from tests.support.ovs_dpdk import OvsDpdk
from tests.support.packet_digest import describe
from tests.support.probed import Talker, wait_until
from tests.support.traffic import make_frames, read_pcap

pytestmark = pytest.mark.integration

COUNT, BURST = 200_000, 32
TAP_FRAMES = 300  # fewer than the queue of a tap takes


@pytest.fixture(scope="module")
def switch(tmp_path_factory: pytest.TempPathFactory, capture: Callable[[int], Path]) -> Iterator[OvsDpdk]:
    if not OvsDpdk.is_installed():
        pytest.skip("openvswitch-switch-dpdk is not installed: scripts/set-up test")
    folder = tmp_path_factory.mktemp("ovs")
    started = OvsDpdk(folder, capture(7), folder / "sent.pcap")
    try:
        assert wait_until(lambda: started.polled() == 7)  # mostly dropped: not all of it knows the ports yet
        yield started
    finally:
        started.stop()


def code_of(pid: int) -> dict[str, str]:
    """Digest of the code of the switch and of DPDK in its memory, by file."""
    digests = {}
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for mapping in Target(pid).maps():
            if "x" in mapping.permissions and re.search("/(ovs-vswitchd|librte_)", mapping.path):
                memory.seek(mapping.start)
                code = memory.read(mapping.end - mapping.start)
                digests[mapping.path] = hashlib.sha256(code).hexdigest()
    assert len(digests) > 2
    return digests


def attach(nfprobe: Any, switch: OvsDpdk, *options: object) -> subprocess.Popen[str]:
    monitor: subprocess.Popen[str] = nfprobe.start(
        "attach", switch.pid, "--packets", "all", "--trial", "0", "--counters", "auto", *options, "--json"
    )
    wait_until_armed(nfprobe, switch.pid, monitor)
    return monitor


def play(switch: OvsDpdk, capture_file: Path, count: int) -> None:
    """Plays a file into p1 and waits until p2 has sent all of it."""
    before = switch.counters()[1]
    switch.play(capture_file)
    assert wait_until(lambda: switch.counters()[1] - before == count, 60), switch.ask("dpif-netdev/pmd-stats-show")


def test_every_packet_through_its_ports(
    nfprobe: Any, switch: OvsDpdk, capture: Callable[[int], Path], tmp_path: Path
) -> None:
    """A file through two ports of DPDK by a polling thread, then frames from a tap by another thread."""
    recording, code = tmp_path / "ovs.nfprobe", code_of(switch.pid)
    polled, ports = switch.polled(), switch.counters()
    switch.take_up("br0")
    monitor = attach(nfprobe, switch, *ROOM, "--record", recording)
    play(switch, capture(COUNT), COUNT)
    assert switch.polled() - polled == COUNT
    assert [late - early for early, late in zip(ports, switch.counters(), strict=True)] == [COUNT, COUNT]
    frames = [frame for _, frame, _ in read_pcap(capture(COUNT))]
    # Packets of a flow that is not cached yet are sent one by one, after the others of their batch.
    # In the file before them are what the switch was started with, where it knew its ports by then.
    assert_same([frame for _, frame, _ in read_pcap(switch.sent)][ports[1] :], frames)
    send_through_tap(switch)
    summary = nfprobe.end(monitor)
    assert summary["adapter"] == "ovs"
    (thread,) = [thread for thread in summary["threads"] if thread["name"].startswith("pmd-c")]
    assert (thread["batches"], thread["packets"]) == (COUNT // BURST, COUNT)
    total = {"received": COUNT + TAP_FRAMES, "transmitted": COUNT + 2 * TAP_FRAMES, "dropped": 0, "unknown": 0}
    assert summary["packets"] == total
    assert summary["functions"]["switched_off"] == {}
    assert bool(summary["counters"]) == (find_refusal(choose_counters("auto")) is None)
    assert_nothing_missing(summary)
    assert code_of(switch.pid) == code
    check_digests(recording, frames)


def assert_same(sent: list[bytes], frames: list[bytes]) -> None:
    """Each of `frames` was sent once, in any order; else the message has the places in `frames` of the others."""
    places = {frame: place for place, frame in enumerate(frames)}
    times = Counter(places.get(frame) for frame in sent)
    missing = [place for place in range(len(frames)) if not times[place]]
    again = [place for place in times if times[place] > 1 and place is not None]
    assert (missing, again, times[None]) == ([], [], 0), f"{len(missing)} missing, {len(again)} sent again"


def test_what_a_flow_drops(nfprobe: Any, switch: OvsDpdk, capture: Callable[[int], Path], tmp_path: Path) -> None:
    """No function of the switch has a name, and its one copy of rte_pktmbuf_free frees what it drops."""
    count, recording = 5_000, tmp_path / "dropped.nfprobe"
    frames = [frame for _, frame, _ in read_pcap(capture(count))]
    dropped = sum(frame[12:14] == b"\x08\x00" and frame[23] == 6 for frame in frames)
    before, polled = switch.counters()[1], switch.polled()
    switch.add_flow("priority=60000,in_port=1,tcp,actions=drop")
    try:
        monitor = attach(nfprobe, switch, *ROOM, "--record", recording)
        play(switch, capture(count), count - dropped)
        assert wait_until(lambda: switch.polled() - polled == count, 60)
        summary = nfprobe.end(monitor)
    finally:
        switch.add_flow("priority=60000,in_port=1,tcp,actions=output:2")
    assert switch.counters()[1] - before == count - dropped > 0
    assert summary["packets"] == {
        "received": count, "transmitted": count - dropped, "dropped": dropped, "unknown": 0
    }  # fmt: skip
    assert_nothing_missing(summary)
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    assert np.array_equal(packets["disposition"] == DROPPED, (packets["protocol"] == 6) & (packets["ip_version"] == 4))


def send_through_tap(switch: OvsDpdk) -> None:
    """Frames that the kernel hands to the switch go out at p2, and back into the tap."""
    switch.add_flow("in_port=LOCAL,actions=output:2,IN_PORT")
    before, written = switch.counters()[1], switch.written("br0")
    with switch.open_tap("br0") as sender:
        for frame in make_frames(TAP_FRAMES):
            sender.send(frame)
        assert wait_until(lambda: switch.written("br0") - written == TAP_FRAMES, 60)
    assert wait_until(lambda: switch.counters()[1] - before == TAP_FRAMES, 60)


def read_packets(recording: Path) -> np.ndarray[Any, Any]:
    """The packets of a recording in the order of their receipt."""
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    assert reader.complete
    return packets[np.lexsort((packets["index"], packets["receive_ticks"]))]


def check_digests(recording: Path, frames: list[bytes]) -> None:
    """The first packets of the recording are those of the file, at receive and at transmit, in order."""
    packets = read_packets(recording)[: len(frames)]
    assert np.array_equal(packets["length"], [len(frame) for frame in frames])
    assert np.array_equal(packets["done_digest"], packets["digest"])
    step = 37  # the digest in Python is slow
    expected = np.array([describe(frame).digest for frame in frames[::step]], np.uint64)
    assert np.array_equal(packets["digest"][::step], expected)
    assert np.all(packets["disposition"] == 1)


def find_dpdk_kind(target: Target) -> ovs.PortKind:
    """The functions of DPDK ports above their drivers."""
    program = target.modules()[0]
    data = list(ovs._data_of(target, program))
    callers = ovs._functions_that_use(program, data, find_table(target).address)
    part, place, offsets = next(iter(ovs._dpdk_classes(program, data, callers)))
    send, receive = (ovs._word(part, place + offset) for offset in offsets)
    return ovs.PortKind("dpdk", receive, send)


def describe_switch(switch: OvsDpdk, path: Path, **changes: Any) -> Path:
    """A description of DPDK ports above their drivers, with functions found in the running switch."""
    target = Target(switch.pid)
    program = target.modules()[0]
    kind = find_dpdk_kind(target)
    description = {
        "name": "described",
        "recognise": {"executable": "ovs-vswitchd*"},
        "receive": [{"function": f"{program.name}:{kind.receive - program.base:#x}", "batch": 1, "when": "zero"}],
        "transmit": [{"function": f"{program.name}:{kind.send - program.base:#x}", "batch": 2}],
        "batch": {"count": {"offset": 0, "bytes": 8}, "pointers": 16, "capacity": 32},
        "buffer": {
            "data": 0,
            "data_offset": 16,
            "length": {"offset": 36, "bytes": 4},
            "segment_length": {"offset": 40, "bytes": 2},
        },
    }
    for key, value in changes.items():
        place: Any = description
        *parents, last = key.split("__")
        for part in parents:
            place = place[int(part) if part.isdigit() else part]
        place[last] = value
    path.write_text(yaml.safe_dump(description))
    return path


def test_batches_behind_pointers_by_a_description(
    nfprobe: Any, switch: OvsDpdk, capture: Callable[[int], Path], tmp_path: Path
) -> None:
    count, description = 1000, describe_switch(switch, tmp_path / "ovs.yaml")
    inside = tmp_path / "inside.yaml"
    inside.write_text(re.sub(r"(ovs-vswitchd-dpdk:0x\w+)0", r"\g<1>4", description.read_text()))
    with pytest.raises(UsageError, match="No function starts at"):
        DescribedAdapter.from_file(inside).roles(Target(switch.pid))
    recording, code = tmp_path / "described.nfprobe", code_of(switch.pid)
    monitor = attach(nfprobe, switch, "--adapter", description, "--record", recording)
    play(switch, capture(count), count)
    summary = nfprobe.end(monitor)
    assert summary["adapter"] == "described"
    assert summary["packets"] == {"received": count, "transmitted": count, "dropped": 0, "unknown": 0}
    assert summary["functions"]["switched_off"] == {}
    assert_nothing_missing(summary)
    assert code_of(switch.pid) == code
    check_digests(recording, [frame for _, frame, _ in read_pcap(capture(count))])


@pytest.mark.parametrize("described", [True, False])
def test_late_capture(
    described: bool, nfprobe: Any, switch: OvsDpdk, capture: Callable[[int], Path], tmp_path: Path
) -> None:
    """What is identified when it is sent is what came, by where its bytes were and by pools."""
    count, recording = 1000, tmp_path / "late.nfprobe"
    adapter = describe_switch(switch, tmp_path / "ovs.yaml") if described else "ovs"
    options = ("--adapter", adapter, "--packets", "slow", "--sample", "1", "--record", recording)
    monitor = attach(nfprobe, switch, *options)
    play(switch, capture(count), count)
    summary = nfprobe.end(monitor)
    assert summary["packets"] == {"received": count, "transmitted": count, "dropped": 0, "unknown": 0}
    identified = summary["identified"]
    # The switch empties the array of pointers that it has sent; the probe knows after the first call that it does.
    assert identified["unheld"] <= (0 if described else 2 * BURST)
    assert (identified["packets"] + identified["unheld"], identified["unplaced"]) == (count, 0)
    assert identified["differing"] == 0
    assert identified["checked"] > 0
    assert_nothing_missing(summary)
    packets, came = read_packets(recording), [describe(frame).digest for _, frame, _ in read_pcap(capture(count))]
    kept = set(packets["digest"].tolist())
    assert packets["digest"].tolist() == [digest for digest in came if digest in kept]
    assert len(packets) == len(kept) == identified["packets"]


def test_a_wrong_description_is_switched_off(
    nfprobe: Any, switch: OvsDpdk, capture: Callable[[int], Path], tmp_path: Path
) -> None:
    """A wrong argument at receive, right ones at transmit, and for both lengths that are parts of pointers."""
    changes: dict[str, Any] = {"receive__0__batch": 0, "buffer__length": {"offset": 0, "bytes": 4}}
    description, code = describe_switch(switch, tmp_path / "ovs.yaml", **changes), code_of(switch.pid)
    monitor = attach(nfprobe, switch, "--adapter", description)
    play(switch, capture(1000), 1000)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 1, errors
    summary = json.loads(output.splitlines()[-1])
    sentences = list(summary["functions"]["switched_off"].values())
    assert len(sentences) == 2, errors
    for role, says in (("receive", "its batch would hold|nothing can be read"), ("transmit", "would have a length")):
        assert any(re.search(f"described {role}.* {says}", sentence) for sentence in sentences), sentences
    assert all(sentence in errors for sentence in sentences)
    assert summary["packets"]["received"] == summary["packets"]["transmitted"] == 0
    assert summary["not_restored"] == []
    assert code_of(switch.pid) == code


def test_names_without_dpdk(
    nfprobe: Any, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    """A double of Open vSwitch without DPDK that has its names: batches behind pointers, misses as calls."""
    program = tmp_path / "ovs-vswitchd"
    shutil.copy(compile_target("ovs_batches", "-rdynamic"), program)
    talker = Talker(spawn(program, stdin=subprocess.PIPE))
    options = ("--packets", "all", "--trial", "0", "--record", tmp_path / "named.nfprobe")
    monitor = nfprobe.start("attach", talker.pid, *options, "--json")
    wait_until_armed(nfprobe, talker.pid, monitor)
    assert talker.ask("5010") == f"5010 packets {5010 * 60} bytes"
    summary = nfprobe.end(monitor)
    assert summary["adapter"] == "ovs"
    assert (summary["batches"], summary["functions"]["switched_off"]) == (157, {})
    assert summary["packets"] == {"received": 5010, "transmitted": 5010, "dropped": 0, "unknown": 0}
    (thread,) = summary["threads"]
    assert (thread["polls"], thread["empty_polls"]) == (160, 3)
    assert_nothing_missing(summary)
    functions = json.loads(nfprobe.run("report", options[-1], "--format", "json").stdout)["functions"]
    assert next(row["calls"] for row in functions if row["name"] == "upcall_cb") == 16


def test_without_dpdk_and_without_names_it_says_what_to_do(
    nfprobe: Any, spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    binary = Path("/usr/lib/openvswitch-switch/ovs-vswitchd")
    if not binary.exists():
        pytest.skip("openvswitch-switch is not installed: scripts/set-up test")
    switch = spawn(binary, f"unix:{tmp_path}/none", "--no-chdir", "--unixctl=none", stderr=subprocess.DEVNULL)
    assert wait_until(lambda: Target(switch.pid).name.startswith("ovs-vswitchd") and Target(switch.pid).modules())
    done = nfprobe.run("attach", switch.pid)
    assert done.returncode == 3
    assert done.stdout == ""
    sentence, command = done.stderr.strip().splitlines()[-2:]
    assert "has no port of DPDK and its functions have no names" in sentence
    assert command == f"next: nfprobe attach {switch.pid} --adapter FILE.yaml"
    assert "nfprobe" not in Path(f"/proc/{switch.pid}/maps").read_text()
    assert switch.poll() is None
