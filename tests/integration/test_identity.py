# SPDX-License-Identifier: Apache-2.0
"""One packet has one id in every capture and NF, one content id behind address translation; --correlate: one trace."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.cli.main import main
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.support.frames import INNER, ethernet, ipv4, udp, vxlan
from tests.support.otlp_receiver import Receiver
from tests.support.ovs_dpdk import OvsDpdk
from tests.support.packet_digest import describe
from tests.support.probed import wait_until
from tests.support.testpmd import Testpmd
from tests.support.traffic import make_frames, read_pcap, write_pcap
from tests.unit.pipeline.test_repeats import documented_trace_id

pytestmark = [pytest.mark.integration, pytest.mark.shared]

ROOM = ("--ring-size", "64MiB")
COUNT = 1000
FLOWS = 4096
CENTURY = "876000h"  # the NFs run one after the other: no window may end in between
EQUAL = 5  # packets at the end of the file that are the first one again
# Everything that a router with address translation rewrites.
ROUTE = "mod_dl_src:02:00:00:00:00:09,mod_dl_dst:02:00:00:00:00:08,mod_vlan_vid:5,dec_ttl"
TRANSLATE = f"{ROUTE},mod_nw_src:192.0.2.1,mod_nw_dst:198.51.100.2,mod_nw_tos:184"
REWRITES = {
    "udp": f"{TRANSLATE},mod_tp_src:4000,mod_tp_dst:4001",
    "tcp": f"{TRANSLATE},mod_tp_src:4000,mod_tp_dst:4001",
    "icmp": TRANSLATE,
    "udp6": f"{ROUTE},set_field:2001:db8::1->ipv6_src,set_field:2001:db8::2->ipv6_dst,mod_tp_src:4000,mod_tp_dst:4001",
}


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    server = Receiver()
    yield server
    server.stop()


def wait_until_attached(monitor: subprocess.Popen[str]) -> None:
    """Its probes are in place when it says so; until then it says other things, or ends."""
    assert monitor.stderr is not None
    said = []
    for line in monitor.stderr:
        said.append(line)
        if line.startswith("nfprobe: attached to"):
            return
    raise AssertionError("".join(said))


def attach(nfprobe: Any, pid: int, *options: object) -> subprocess.Popen[str]:
    monitor: subprocess.Popen[str] = nfprobe.start("attach", pid, *ROOM, "--trial", "0s", "--json", *options)
    wait_until_attached(monitor)
    return monitor


def end(monitor: subprocess.Popen[str]) -> dict[str, Any]:
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert not any(summary["records"]["lost"].values()), summary
    return summary


def forward(nfprobe: Any, testpmd: Testpmd, count: int, *options: object) -> dict[str, Any]:
    """Measures testpmd while it forwards its file; it has ended, and written its output, afterwards."""
    monitor = attach(nfprobe, testpmd.pid, *options)
    testpmd.command("start")
    testpmd.wait_for_packets(count)
    testpmd.command("stop")  # no call is under way any more
    summary = end(monitor)
    testpmd.command("quit", "Bye")
    testpmd.process.wait(120)
    return summary


class InProcess:
    """The command line without the start of a process each time."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def run(self, *arguments: object) -> str:
        self._capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = self._capsys.readouterr()
        assert status == 0, captured.err
        return captured.out

    def ids(self, capture: Path, *options: str) -> list[str]:
        return [packet["id"] for packet in self._packets(capture, *options)]

    def content_ids(self, capture: Path, *options: str) -> list[str]:
        return [packet["content_id"] for packet in self._packets(capture, *options)]

    def _packets(self, capture: Path, *options: str) -> Any:
        return json.loads(self.run("ids", capture, "--json", *options))["packets"]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capsys)


def recorded_packets(path: Path) -> np.ndarray[Any, Any]:
    reader = RecordingReader(path)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        packets = np.concatenate([columns.packets for columns in replay(reader, facts, pipeline)])
    return packets[np.lexsort((packets["index"], packets["receive_ticks"]))]


def hexadecimal(digests: np.ndarray[Any, Any]) -> list[str]:
    return [f"{digest:016x}" for digest in digests.tolist()]


def roots_of(receiver: Receiver) -> list[tuple[str, Span]]:
    """Service and packet span of everything that was received, by packet id."""
    found = []
    for data in receiver.requests:
        for part in ExportTraceServiceRequest.FromString(data).resource_spans:
            service = next(
                entry.value.string_value for entry in part.resource.attributes if entry.key == "service.name"
            )
            found += [(service, span) for scope in part.scope_spans for span in scope.spans if not span.parent_span_id]
    return found


def attribute(span: Span, name: str) -> Any:
    values = [entry.value for entry in span.attributes if entry.key == name]
    return getattr(values[0], values[0].WhichOneof("value")) if values else None


def test_two_network_functions_in_a_row(
    nfprobe: Any, command: InProcess, start_testpmd: Callable[..., Testpmd], receiver: Receiver, tmp_path: Path
) -> None:
    """testpmd macswap -> capture -> testpmd macswap: one id and one trace per packet; equal packets are not merged."""
    frames = list(make_frames(COUNT))
    frames += [frames[0]] * EQUAL
    count = len(frames)
    first, second, third = (tmp_path / f"{number}.pcap" for number in (1, 2, 3))
    write_pcap(first, frames)
    endpoint = f"http://127.0.0.1:{receiver.port}"
    device = "net_pcap0,rx_pcap={},tx_pcap={}"

    correlate = ("--correlate-window", CENTURY, "--sample", "1", "--packets", "all")
    recording = tmp_path / "one.nfp"
    nf = start_testpmd(device.format(first, second))
    live = ("--record", recording, "--endpoint", endpoint, "--service", "nf-one")
    summary = forward(nfprobe, nf, count, *correlate, *live)
    assert summary["ids"]["repeated"] == EQUAL
    assert summary["ids"]["malformed"] == summary["ids"]["truncated"] == 0
    packets = recorded_packets(recording)
    ids = command.ids(first)
    assert hexadecimal(packets["id"]) == ids
    assert hexadecimal(packets["digest"]) == hexadecimal(packets["done_digest"]) == command.content_ids(first)
    assert command.ids(second) == ids

    again = tmp_path / "two.nfp"
    forward(nfprobe, start_testpmd(device.format(second, third)), count, "--packets", "all", "--record", again)
    assert command.ids(third) == ids
    command.run("export", again, "--correlate-window", CENTURY, "--endpoint", endpoint, "--service", "nf-two")

    check_traces(roots_of(receiver), ids)
    before = {span.span_id for service, span in roots_of(receiver) if service == "nf-one"}
    receiver.requests.clear()  # an export of what was exported already has the same ids
    command.run("export", recording, "--endpoint", endpoint, "--service", "nf-one")
    assert {span.span_id for _, span in roots_of(receiver)} == before


def test_equal_packets_of_many_flows_are_found_one_by_one(
    nfprobe: Any, command: InProcess, start_testpmd: Callable[..., Testpmd], receiver: Receiver, tmp_path: Path
) -> None:
    """As generators send them: IP id 0 and the same payload. One content, 4,096 ids, none repeated."""
    flows = [(bytes([10, 0, 0, n // 64]), 1024 + n % 64) for n in range(FLOWS)]
    frames = [ethernet(ipv4(udp(bytes(18), port, 53), source=source, ip_id=0)) for source, port in flows]
    capture = tmp_path / "equal.pcap"
    write_pcap(capture, frames)
    testpmd = start_testpmd(f"net_pcap0,rx_pcap={capture},tx_pcap={tmp_path / 'out.pcap'}")
    options = ("--correlate-window", CENTURY, "--sample", "1", "--packets", "all", "--max-traces-per-second", "1000000")
    live = ("--endpoint", f"http://127.0.0.1:{receiver.port}", "--spool", "none")
    summary = forward(nfprobe, testpmd, FLOWS, *options, *live)
    assert (summary["ids"]["repeated"], summary["ids"]["unsure"]) == (0, 0)
    ids, roots = command.ids(capture), [span for _, span in roots_of(receiver)]
    assert len(set(ids)) == FLOWS
    found = {attribute(span, "nf.packet.id"): span for span in roots}
    assert len(roots) == len(found) == FLOWS
    for id, (source, port) in zip(ids, flows, strict=True):
        ends = attribute(found[id], "source.address"), attribute(found[id], "source.port")
        assert ends == (".".join(map(str, source)), port)
    assert {attribute(span, "nf.packet.content_id") for span in roots} == set(command.content_ids(capture))
    assert len({span.trace_id for span in roots}) == FLOWS
    assert sum(attribute(span, "nf.packet.ambiguous") is None for span in roots) == 1  # the first


def check_traces(roots: list[tuple[str, Span]], ids: list[str]) -> None:
    assert len(roots) == 2 * len(ids)
    assert len({span.span_id for _, span in roots}) == len(roots)
    traces: dict[bytes, list[tuple[str, str]]] = {}
    for service, span in roots:
        traces.setdefault(span.trace_id, []).append((service, attribute(span, "nf.packet.id")))
    both = {trace: sorted(seen) for trace, seen in traces.items() if len(seen) > 1}
    assert len(both) == COUNT
    for (one, first_id), (two, second_id) in both.values():
        assert (one, two, first_id) == ("nf-one", "nf-two", second_id)
    assert {seen[0][1] for seen in both.values()} == set(ids)
    alone = [span for _, span in roots if span.trace_id not in both]
    assert len(alone) == 2 * EQUAL
    for span in alone:
        assert attribute(span, "nf.packet.id") == ids[0]
        assert attribute(span, "nf.packet.ambiguous") is attribute(span, "nf.packet.repeated") is True


def test_packets_inside_tunnels(
    nfprobe: Any, command: InProcess, start_testpmd: Callable[..., Testpmd], tmp_path: Path
) -> None:
    """With --inner and a key of its own the probe writes what `ids` computes; a broken packet is counted."""
    key = "00112233445566778899aabbccddeeff"
    frames = [ethernet(ipv4(vxlan(ethernet(INNER, macs=bytes([n] * 12))), ip_id=n)) for n in range(1, 32)]
    frames.append(ethernet(b"\x41" + bytes(60)))
    capture = tmp_path / "tunnels.pcap"
    write_pcap(capture, frames)
    recording = tmp_path / "tunnels.nfp"
    testpmd = start_testpmd(f"net_pcap0,rx_pcap={capture},tx_pcap={tmp_path / 'out.pcap'}")
    options = ("--packets", "all", "--inner", "--key", key, "--record", recording)
    summary = forward(nfprobe, testpmd, len(frames), *options)
    assert summary["ids"] | {"repeated": 0} == {
        "repeated": 0,
        "unsure": 0,
        "fragments": 0,
        "truncated": 0,
        "malformed": 1,
        "inner": len(frames) - 1,
    }
    packets = recorded_packets(recording)
    assert hexadecimal(packets["id"]) == command.ids(capture, "--inner", "--key", key)
    assert hexadecimal(packets["digest"]) == command.content_ids(capture, "--inner", "--key", key)
    assert len(set(hexadecimal(packets["id"]))) == 2
    assert np.all(packets["source"][:-1, :4] == np.frombuffer(b"\xac\x10\0\1", np.uint8))
    assert key not in json.dumps(RecordingReader(recording).header.settings)


@pytest.fixture
def rewriting_switch(tmp_path: Path) -> Iterator[OvsDpdk]:
    """Open vSwitch that translates addresses and ports, and routes into a VLAN."""
    if not OvsDpdk.is_installed():
        pytest.skip("openvswitch-switch-dpdk is not installed: scripts/set-up test")
    write_pcap(tmp_path / "first.pcap", list(make_frames(7, seed=9)))
    switch = OvsDpdk(tmp_path, tmp_path / "first.pcap", tmp_path / "sent.pcap")
    try:
        assert wait_until(lambda: switch.polled() == 7, 60)
        for protocol, actions in REWRITES.items():
            switch.add_flow(f"priority=65535,in_port=1,{protocol},actions={actions},output:2")
        yield switch
    finally:
        switch.stop()


def polls_of(switch: OvsDpdk) -> int:
    return sum(map(int, re.findall(r"Iterations: +(\d+)", switch.ask("dpif-netdev/pmd-perf-show"))))


def test_through_a_switch_that_rewrites_headers(
    nfprobe: Any, command: InProcess, rewriting_switch: OvsDpdk, receiver: Receiver, tmp_path: Path
) -> None:
    """Addresses, ports, TTL, TOS, VLAN and MAC addresses change, content id and trace do not."""
    switch, capture, recording = rewriting_switch, tmp_path / "in.pcap", tmp_path / "ovs.nfp"
    write_pcap(capture, make_frames(COUNT))
    before = switch.counters()[1]
    monitor = attach(nfprobe, switch.pid, "--packets", "all", "--record", recording)
    switch.play(capture)
    assert wait_until(lambda: switch.counters()[1] == before + COUNT, 60), switch.ask("dpif-netdev/pmd-stats-show")
    done = polls_of(switch)
    assert wait_until(lambda: polls_of(switch) > done)  # the calls that sent the last ones have returned
    end(monitor)
    switch.stop()  # only then all of its file is written

    contents = command.content_ids(capture)
    received = dict(zip(contents, (frame for _, frame, _ in read_pcap(capture)), strict=True))
    sent = dict(zip(command.content_ids(switch.sent), (frame for _, frame, _ in read_pcap(switch.sent)), strict=True))
    for content_id, frame in received.items():  # it sends the packets of a burst flow by flow
        assert sent[content_id][12:16] == b"\x81\0\0\5"
        before_it, behind_it = describe(frame), describe(sent[content_id])
        assert before_it.source != behind_it.source
        assert before_it.destination != behind_it.destination
    packets = recorded_packets(recording)
    assert hexadecimal(packets["digest"]) == hexadecimal(packets["done_digest"]) == contents
    assert hexadecimal(packets["id"]) == command.ids(capture)
    assert not set(command.ids(capture)) & set(command.ids(switch.sent))

    endpoint = f"http://127.0.0.1:{receiver.port}"
    command.run("export", recording, "--correlate-window", CENTURY, "--endpoint", endpoint)
    # A century began in 1970: its number is 0.
    expected = {content_id: documented_trace_id(int(content_id, 16), 0, 1) for content_id in contents}
    assert {attribute(span, "nf.packet.content_id"): span.trace_id for _, span in roots_of(receiver)} == expected
