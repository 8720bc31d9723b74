# SPDX-License-Identifier: Apache-2.0
"""Packets that full sockets dropped: counted as the kernel counts them, and laid to the stall that filled the queue.

The socket's own SO_MEMINFO, read by the target, is the oracle of how many; faults log their own times."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.causes.drop_causes import DropCauseKind
from otel_nfprobe.export.span_drops import SPAN_NAME
from otel_nfprobe.linux.namespaces import run_in_network
from otel_nfprobe.linux.queue_counters import QueueCounters, QueueKind
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts
from tests.integration.test_testpmd import wait_until_armed
from tests.support.flood import Flood, log_fault, stop_for
from tests.support.metrics_receiver import MetricsReceiver
from tests.support.probed import Talker, wait_until
from tests.support.span_expectation import attributes_of
from tests.support.testpmd import Testpmd
from tests.support.traffic import make_frames
from tests.unit.export.test_attributes import check_values

pytestmark = pytest.mark.integration  # alone: beside other tests no trace tells of each stall who had the processor

DESCRIPTION = Path(__file__).resolve().parents[1] / "targets" / "listener.yaml"
PER_STEP = 20  # packets in a millisecond: the queue holds some 80
STALL_MS = 100
DROPPED_MIN = 100  # by each stall, of some 2000
QUIET_S = 0.5
RIGHT_SHARE = 0.95
TAP_FRAMES = 1000  # a tap's queue holds so many


class Session:
    """A listener that is flooded while it is measured.

    Args:
        threads: of the listener, each with a socket of its own; the first one's is flooded.
    """

    def __init__(self, nfprobe: Any, talker: Talker, recording: Path, *options: object) -> None:
        self.talker, self.recording, self._nfprobe = talker, recording, nfprobe
        words = ("--adapter", DESCRIPTION, "--packets", "all", "--record", recording, "--trial", "0", *options)
        self.monitor: subprocess.Popen[str] = nfprobe.start("attach", talker.pid, *words, "--json")
        assert self.monitor.stderr is not None
        said = next(line for line in self.monitor.stderr if "attached to" in line)
        assert "3 functions probed" in said
        self.flood = Flood.to_port(int(talker.ask("port 0")), PER_STEP)
        self.flood.start()
        self.wait_for_batches(300)  # what is usual must be known
        self.faults: list[tuple[str, int, tuple[int, int]]] = []

    def dropped(self, index: int = 0) -> int:
        return int(self.talker.ask(f"dropped {index}"))

    def received(self) -> int:
        return int(self.talker.ask("received"))

    def wait_for_batches(self, count: int) -> None:
        wanted = self.received() + count * PER_STEP
        assert wait_until(lambda: self.received() >= wanted)

    def fault(self, name: str, act: Callable[[], None]) -> None:
        """Lets something happen that makes the socket drop packets, and logs how many.

        Again, where the generator had no processor meanwhile, and the queue did not fill.
        """
        before = self.dropped()

        def has_dropped() -> bool:
            act()
            return self.dropped() - before > DROPPED_MIN

        def act_until_dropped() -> None:
            assert wait_until(has_dropped)

        times = log_fault(act_until_dropped)
        self.faults.append((name, self.dropped() - before, times))
        self.wait_for_batches(100)

    def slow(self) -> None:
        """Returns when a slow batch is over."""
        assert self.talker.ask(f"slow {STALL_MS}") == "right"
        # At most one burst is on its way that is not slow.
        before = self.received()
        assert wait_until(lambda: self.received() > before + 3 * PER_STEP)

    def end(self) -> tuple[int, dict[str, Any]]:
        """Returns how many packets the flooded socket has dropped, and the summary."""
        self.flood.end()
        wait_until_same(lambda: (self.received(), self.dropped()))
        dropped = self.dropped()
        return dropped, self._nfprobe.end(self.monitor)


def wait_until_same(look: Callable[[], object]) -> None:
    """Until it is the same for half a second: whoever has packets left gets a processor before."""
    seen, since = look(), time.monotonic()
    while time.monotonic() < since + QUIET_S:
        time.sleep(0.05)
        if (now := look()) != seen:
            seen, since = now, time.monotonic()


@pytest.fixture
def listener(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Callable[..., Talker]:
    binary = compile_target("listener", "-rdynamic")
    return lambda threads=1: Talker(spawn(binary, threads, stdin=subprocess.PIPE))


def report_of(nfprobe: Any, recording: Path) -> dict[str, Any]:
    done = nfprobe.run("report", recording, "--format", "json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def events_near(document: dict[str, Any], recording: Path, times: tuple[int, int]) -> Iterator[dict[str, Any]]:
    """The events whose bounds overlap with a fault."""
    begin, end = read_facts(RecordingReader(recording)).make_clock().convert(np.array(times, np.uint64)).tolist()
    for event in document["queue_drops"]["events"]:
        if event["until_unix_ns"] > begin and event["since_unix_ns"] < end:
            yield event


def test_drops_are_counted_and_laid_to_their_stalls(
    nfprobe: Any, listener: Callable[..., Talker], tmp_path: Path
) -> None:
    session = Session(nfprobe, listener(), tmp_path / "drops.nfprobe")
    for _ in range(2):
        session.fault("process", session.slow)
        session.fault("absent", lambda: stop_for(session.talker.pid, STALL_MS / 1000))
    dropped, summary = session.end()
    port = session.talker.ask("port 0")
    assert summary["queue_drops"] == [{"queue": f"udp 127.0.0.1:{port}", "kind": "udp", "packets": dropped}]
    document = report_of(nfprobe, session.recording)
    assert document["queue_drops"]["queues"] == summary["queue_drops"]
    assert sum(event["packets"] for event in document["queue_drops"]["events"]) == dropped
    right = covered = total = 0
    near: list[dict[str, Any]] = []
    for name, count, times in session.faults:
        assert count > DROPPED_MIN, session.faults
        total += count
        for event in events_near(document, session.recording, times):
            near.append(event)
            assert event["thread"]["name"].startswith("listener")
            cause = event["cause"]
            # Other programs, or the host, may have had the processor for longer than the fault: that is no mistake.
            is_true = cause["function"] == name or cause["kind"] in (name, "preemption", "host")
            covered += event["packets"]
            right += event["packets"] if is_true else 0
    assert covered >= total, "some of the drops are missing"
    assert right >= RIGHT_SHARE * covered, json.dumps([session.faults, document["queue_drops"]], indent=1)
    for event in document["queue_drops"]["events"]:
        assert event in near or event["cause"]["function"] != "process", "drops at another time"
    check_table(nfprobe, session.recording)


def check_table(nfprobe: Any, recording: Path) -> None:
    text = nfprobe.run("report", recording).stdout
    assert "what dropped packets" in text
    assert any(f" {name} " in text for name in ("process", "preemption", "host"))


def test_spans_and_the_metric_lead_to_the_stall(
    nfprobe: Any,
    listener: Callable[..., Talker],
    metrics_receiver: MetricsReceiver,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
    options = ("--endpoint", f"http://127.0.0.1:{metrics_receiver.port}", "--slowest", "1%")
    session = Session(nfprobe, listener(), tmp_path / "spans.nfprobe", *options)
    for _ in range(2):
        session.fault("process", session.slow)
    dropped, summary = session.end()
    assert [entry["packets"] for entry in summary["queue_drops"]] == [dropped]
    spans = list(metrics_receiver.spans())
    batches = {(span.trace_id, span.span_id) for span in spans if span.name == "batch"}
    found = [span for span in spans if span.name == SPAN_NAME]
    assert found
    for span in found:
        assert (span.trace_id, span.parent_span_id) in batches
        assert span.start_time_unix_nano < span.end_time_unix_nano
        check_values("span.nf.queue_drops", attributes_of(span.attributes))
    causes = {attributes_of(span.attributes).get("nf.drop.function", "") for span in found}
    kinds = {attributes_of(span.attributes)["nf.drop.cause"] for span in found}
    assert "process" in causes or kinds & {"preemption", "host"}
    assert sum(attributes_of(span.attributes)["nf.drop.packets"] for span in found) <= dropped
    check_metric(metrics_receiver, dropped, {span.trace_id for span in found})
    metrics_receiver.requests.clear()
    done = nfprobe.run("export", session.recording, *options)
    assert done.returncode == 0, done.stderr
    again = [span for span in metrics_receiver.spans() if span.name == SPAN_NAME]
    assert sorted(map(bytes_of, again)) == sorted(map(bytes_of, found))


def bytes_of(span: Span) -> bytes:
    return bytes(span.SerializeToString())


def check_metric(receiver: MetricsReceiver, dropped: int, traces: set[bytes]) -> None:
    exports = [receiver.metrics(number) for number in range(len(receiver.exports))]
    points = [point for one in exports if "nf.queue.drops" in one for point in one["nf.queue.drops"].sum.data_points]
    assert points[-1].as_int == dropped
    assert {entry.key for entry in points[-1].attributes} == {"nf.queue.name", "nf.queue.kind"}
    assert {exemplar.trace_id for point in points for exemplar in point.exemplars} & traces


def test_a_queue_that_never_fills_is_not_mentioned(
    nfprobe: Any, listener: Callable[..., Talker], tmp_path: Path
) -> None:
    session = Session(nfprobe, listener(2), tmp_path / "two.nfprobe")
    session.flood.end()
    wait_until_same(lambda: (session.received(), session.dropped()))
    before = session.dropped(1), session.dropped()
    summary = nfprobe.end(session.monitor)
    found = {entry["queue"]: entry["packets"] for entry in summary.get("queue_drops", [])}
    assert sum(found.values()) == before[1]
    assert before[0] == 0
    assert f"udp 127.0.0.1:{session.talker.ask('port 1')}" not in found


def test_the_thread_that_reads_it_is_the_one(nfprobe: Any, listener: Callable[..., Talker], tmp_path: Path) -> None:
    """Two threads receive packets, each from its own socket; one of them stalls."""
    session = Session(nfprobe, listener(2), tmp_path / "readers.nfprobe")
    other = Flood.to_port(int(session.talker.ask("port 1")), 2)
    other.start()
    # Each thread is seen asleep in poll(), which names its socket.
    session.wait_for_batches(200)
    session.fault("absent", lambda: stop_for(session.talker.pid, STALL_MS / 1000))
    other.end()
    session.end()
    facts = read_facts(RecordingReader(session.recording))
    name = f"udp 127.0.0.1:{session.talker.ask('port 0')}".encode()
    ((_, _, times),) = session.faults
    rows = facts.queue_drops[facts.queue_drops["name"] == name]
    # A busy machine may have let the queue fill before any thread was seen to read it.
    rows = rows[(rows["until_ticks"] > times[0]) & (rows["since_ticks"] < times[1])]
    receivers = {thread["tid"] for thread in report_of(nfprobe, session.recording)["threads"] if thread.get("packets")}
    assert len(receivers) == 2
    (reader,) = np.unique(rows["thread"]).tolist()
    assert facts.threads[reader].tid in receivers
    # Others may have taken the processor at other times, without any of it being half of a period.
    document = report_of(nfprobe, session.recording)
    near = [event for event in events_near(document, session.recording, times) if event["queue"] == name.decode()]
    kinds = {DropCauseKind.ABSENT.name.lower(), "preemption", "function"}
    right = sum(event["packets"] for event in near if event["cause"]["kind"] in kinds)
    assert right >= RIGHT_SHARE * sum(event["packets"] for event in near) > 0, json.dumps(
        document["queue_drops"], indent=1
    )


def wait_for_silence(testpmd: Testpmd) -> None:
    """Until nothing comes any more."""
    wait_until_same(lambda: testpmd.telemetry()[0])


# Without IPv6, of which the kernel itself would send something.
SILENT = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"
WIRE = "ip link add nfpwire type veth peer name nfpend && ip link set nfpwire up && ip link set nfpend up"


def alone(*commands: str) -> tuple[str, ...]:
    """Words before a command that is to run in a network namespace of its own."""
    return ("unshare", "--net", "sh", "-c", " && ".join((SILENT, *commands, 'exec "$@"')), "sh")


@pytest.mark.parametrize(
    ("device", "launcher", "interface", "queue", "kind"),
    [
        ("net_tap0,iface=nfptap", alone(), "nfptap", "tap nfptap", "tap"),
        ("net_pcap0,rx_iface=nfpend", alone(WIRE), "nfpwire", "port 0 net_pcap0", "port"),
    ],
    ids=["tap", "port"],
)
def test_a_stopped_testpmd_drops(
    nfprobe: Any,
    start_testpmd: Callable[..., Testpmd],
    tmp_path: Path,
    device: str,
    launcher: tuple[str, ...],
    interface: str,
    queue: str,
    kind: str,
) -> None:
    """What was sent and did not come is the oracle: testpmd's own counter, and the generator's."""
    recording = tmp_path / "tap.nfprobe"
    testpmd = start_testpmd(device, mode="rxonly" if kind == "port" else "macswap", launcher=launcher)
    testpmd.command("start")
    monitor = nfprobe.start("attach", testpmd.pid, "--record", recording, "--trial", "0", "--json")
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    outlet = run_in_network(testpmd.pid, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    outlet.bind((interface, 0))
    flood = Flood(outlet, PER_STEP, next(iter(make_frames(1))))
    before = testpmd.telemetry()[0]
    flood.start()
    testpmd.wait_for_received(before + 200 * PER_STEP)
    faults = []

    def stop() -> None:
        wanted = flood.sent + 2 * TAP_FRAMES
        stop_for(testpmd.pid, 0.0, lambda: flood.sent >= wanted)

    for _ in range(2):
        faults.append(log_fault(stop))
        testpmd.wait_for_received(testpmd.telemetry()[0] + 200 * PER_STEP)
    flood.end()
    wait_for_silence(testpmd)
    dropped = flood.sent - (testpmd.telemetry()[0] - before)
    summary = nfprobe.end(monitor)
    assert summary["queue_drops"] == [{"queue": queue, "kind": kind, "packets": dropped}]
    assert dropped > TAP_FRAMES / 2
    document = report_of(nfprobe, recording)
    named = [event for times in faults for event in events_near(document, recording, times)]
    right = sum(event["packets"] for event in named if event["cause"]["kind"] in ("absent", "function", "preemption"))
    assert right >= RIGHT_SHARE * sum(event["packets"] for event in named) > 0, json.dumps(
        document["queue_drops"], indent=1
    )
    assert all(event["thread"] for event in named)  # one thread only receives packets


PACKET_SOCKETS = """
import socket, struct, subprocess, sys, time
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
plain, ring = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2))
ring.setsockopt(263, 5, struct.pack("4I", 4096, 4, 2048, 8))  # SOL_PACKET, PACKET_RX_RING
for one in (plain, ring):
    one.bind(("lo", 3))
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(200):
        out.sendto(bytes(100), ("127.0.0.1", 9))
    seen, now = None, 0
    while now != seen:  # on a busy machine the kernel hands some on after they were sent
        seen = now
        time.sleep(0.1)
        now = struct.unpack_from("9I", plain.getsockopt(socket.SOL_SOCKET, 55, 36))[8]  # SO_MEMINFO
    print(now, flush=True)
    sys.stdin.readline()
    print(struct.unpack("2I", ring.getsockopt(263, 6, 8))[1], flush=True)  # PACKET_STATISTICS, which clears it
"""


def test_packet_sockets_of_another_network_namespace(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    """Its own SO_MEMINFO is the oracle; a ring's count could only be read by clearing it: it stays the process's."""
    process = spawn("unshare", "--net", sys.executable, "-c", PACKET_SOCKETS, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    counters = QueueCounters(process.pid)
    counters.look()
    for _ in range(2):
        process.stdin.write("send\n")
        process.stdin.flush()
        dropped = int(process.stdout.readline())
        assert dropped > 100
        found = {(queue.kind, queue.name): drops for queue, drops in counters.read().items()}
        assert found[QueueKind.PACKET, "packet socket on lo"] == dropped
        assert len([key for key in found if key[0] == QueueKind.PACKET]) == 1
        assert counters.uncounted == 1
        process.stdin.write("what the ring has dropped\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) > 100
    counters.close()
