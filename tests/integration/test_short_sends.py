# SPDX-License-Identifier: Apache-2.0
"""Packets that dpdk-testpmd could not send because the next network function, another testpmd behind a memif, stood
still: as many as it says itself, laid to the receiver at the times of the fault's own log."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.export.span_drops import SPAN_NAME
from otel_nfprobe.linux.namespaces import run_in_network
from tests.integration.test_queue_drops import WIRE, alone, events_near, report_of, wait_for_silence
from tests.integration.test_testpmd import wait_until_armed
from tests.support.flood import Flood, log_fault, stop_for
from tests.support.metrics_receiver import MetricsReceiver
from tests.support.span_expectation import attributes_of
from tests.support.testpmd import Testpmd
from tests.support.traffic import make_frames
from tests.unit.export.test_attributes import check_values

pytestmark = pytest.mark.integration

PER_STEP = 20  # packets in a millisecond
STALL_S = 0.15  # 3000 packets
RIGHT_SHARE = 0.95
RING = "rsize=9"  # 512 packets fit between the two


def test_what_the_next_function_has_no_room_for(
    nfprobe: Any, start_testpmd: Callable[..., Testpmd], metrics_receiver: MetricsReceiver, tmp_path: Path
) -> None:
    wire, recording = f"id=0,socket={tmp_path}/wire,socket-abstract=no,{RING}", tmp_path / "sends.nfprobe"
    following = start_testpmd(f"net_memif0,role=server,{wire}", mode="rxonly")
    devices = f"net_pcap0,rx_iface=nfpend net_memif1,role=client,{wire}"
    testpmd = start_testpmd(devices, mode="io", launcher=alone(WIRE), topology="paired")
    for one in (following, testpmd):
        one.command("start")
    options = ("--endpoint", f"http://127.0.0.1:{metrics_receiver.port}", "--slowest", "1%", "--packets", "all")
    monitor = nfprobe.start("attach", testpmd.pid, *options, "--record", recording, "--trial", "0", "--json")
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    outlet = run_in_network(testpmd.pid, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    outlet.bind(("nfpwire", 0))
    flood = Flood(outlet, PER_STEP, next(iter(make_frames(1))))
    flood.start()
    following.wait_for_received(300 * PER_STEP)
    faults = []
    for _ in range(2):
        faults.append(log_fault(lambda: stop_for(following.pid, STALL_S)))
        following.wait_for_received(following.telemetry()[0] + 300 * PER_STEP)
    flood.end()
    wait_for_silence(following)
    dropped = int(re.findall(r"TX-dropped: +(\d+)", testpmd.command("stop", "Done"))[-1])
    # On a busy machine it may miss some itself.
    (queue,) = [queue for queue in nfprobe.end(monitor)["queue_drops"] if queue["kind"] == "transmit"]
    assert queue["packets"] == dropped
    assert re.fullmatch(r"transmit eth_memif_tx\w*", queue["queue"])
    assert dropped > 200  # of 4,900, but the generator of a busy machine sends fewer
    document = report_of(nfprobe, recording)
    near = [event for times in faults for event in events_near(document, recording, times)]
    named = [event for event in near if event["kind"] == "transmit"]
    right = sum(event["packets"] for event in named if event["cause"]["kind"] == "receiver")
    assert right >= RIGHT_SHARE * sum(event["packets"] for event in named) > 0, json.dumps(
        [faults, document["queue_drops"]], indent=1
    )
    assert all(event["thread"]["name"].startswith("rte-worker") for event in named)
    check_export(metrics_receiver, queue)
    text = nfprobe.run("report", recording).stdout
    assert re.search(r"transmit eth_memif_tx.* receiver +the receiver took [\d,]+ packets", text), text


def check_export(receiver: MetricsReceiver, queue: dict[str, Any]) -> None:
    """The metric has all drops; spans stand below the batches that were being sent."""
    exports = [receiver.metrics(number) for number in range(len(receiver.exports))]
    points = [point for one in exports if "nf.queue.drops" in one for point in one["nf.queue.drops"].sum.data_points]
    of_queue = [point for point in points if attributes_of(point.attributes)["nf.queue.name"] == queue["queue"]]
    assert of_queue[-1].as_int == queue["packets"]
    batches = {(span.trace_id, span.span_id) for span in receiver.spans() if span.name == "batch"}
    found = [span for span in receiver.spans() if span.name == SPAN_NAME]
    sends = [span for span in found if attributes_of(span.attributes)["nf.drop.queue"] == queue["queue"]]
    assert "receiver" in {attributes_of(span.attributes)["nf.drop.cause"] for span in sends}
    for span in sends:
        assert (span.trace_id, span.parent_span_id) in batches
        check_values("span.nf.queue_drops", attributes_of(span.attributes))
