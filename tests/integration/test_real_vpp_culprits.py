# SPDX-License-Identifier: Apache-2.0
"""What made packets of a real VPP late, with a worker: a command that stops it, rules that one flow has to walk
through, a program on its processor; in the spans that were sent meanwhile, and in the report.

Other work on the machine makes packets late, too: shares are of those that are in question."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_testpmd import wait_until_armed
from tests.support.culprit import start_hog
from tests.support.otlp_receiver import Receiver
from tests.support.real_vpp import MISSING, PREFIX, ROUTED, TWO, WARM_UP, RealVpp, Stream, packet
from tests.support.span_expectation import attributes_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not PREFIX, reason=MISSING),
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a worker needs a processor beside the main thread's"),
]

MOST = 0.8
USUAL_S, HOG_S = 1.0, 4.0
RULES = 20_000
ROUTES = "ip route add count 100000 10.64.0.0/32 via 10.1.0.2 pg1"
SLOW_FLOW, SLOW_RATE, RATE = "10.0.0.9", 200, 10_000
ACL_NODE = "acl-plugin-in-ip4-fa"
FROM_OUTSIDE = ("preemption", "interrupt", "host", "unknown")  # the kernel did it, or the machine stood still
BY_FLOW = f"""
    SELECT p.source AS source, count(*) AS late, if(p.source = '{SLOW_FLOW}', {SLOW_RATE}, {RATE}) AS packets
    FROM causes c JOIN packets p USING (session, batch, packet_index)
    WHERE c.function = '{ACL_NODE}' GROUP BY p.source
"""


class Measured:
    """A VPP whose worker forwards, a session on it, and what it says."""

    def __init__(self, vpp: RealVpp, nfprobe: Any) -> None:
        self.vpp, self._nfprobe = vpp, nfprobe
        self._receiver = Receiver()
        self._recording = vpp.folder / "vpp.nfprobe"
        self._monitor: subprocess.Popen[str] | None = None

    def begin(self, *options: str) -> None:
        self.vpp.keep_playing()
        words = ("--record", self._recording, "--endpoint", f"http://127.0.0.1:{self._receiver.port}", "--json")
        self._monitor = self._nfprobe.start("attach", self.vpp.pid, *words, *options)
        wait_until_armed(self._nfprobe, self.vpp.pid, self._monitor)
        time.sleep(USUAL_S)  # what is usual is learned

    def end(self) -> None:
        self._nfprobe.end(self._monitor)
        self._receiver.stop()
        self.vpp.ask("packet-generator disable")

    def late(self, begin_ns: int = 0, end_ns: int = 1 << 63) -> list[tuple[str, dict[str, Any]]]:
        """Names and attributes of the late packets' spans that begin or end in this time."""
        return [
            (span.name, attributes_of(span.attributes))
            for span in self._receiver.spans()
            if span.name.startswith("late packet")
            and span.end_time_unix_nano >= begin_ns
            and span.start_time_unix_nano <= end_ns
        ]

    def report(self) -> tuple[str, dict[str, Any]]:
        """The text and the document."""
        document = json.loads(self._nfprobe.run("report", self._recording, "--format", "json").stdout)
        return self._nfprobe.run("report", self._recording).stdout, document["packets"]

    def query(self, statement: str) -> Any:
        return self._nfprobe.json("query", "--slower-than", "20us", statement, self._recording)


@pytest.fixture
def start(spawn: Callable[..., Any], nfprobe: Any) -> Iterator[Callable[..., Measured]]:
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:

        def start_(setup: str, *streams: Stream) -> Measured:
            vpp = RealVpp(Path(folder), spawn, workers=1)
            vpp.configure(TWO)
            vpp.configure(setup)
            vpp.add_streams(streams)
            vpp.play(WARM_UP)
            return Measured(vpp, nfprobe)

        yield start_


def share(of: int, all_: int) -> float:
    return of / max(1, all_)


def test_a_command_that_holds_the_worker(start: Callable[..., Measured]) -> None:
    """What has to be done while no worker looks is done in it some ten times: for more memory of tables."""
    measured = start("", Stream(ROUTED, rate=RATE))
    measured.begin("--slowest", "1%")
    begin_ns = time.time_ns()
    assert "routes/sec" in measured.vpp.ask(ROUTES)
    end_ns = time.time_ns()
    measured.end()
    late = measured.late(begin_ns, end_ns)
    held = [attributes for name, attributes in late if name == "late packet: barrier"]
    print(Counter(name for name, _ in late), Counter(attributes["nf.tail.command"] for attributes in held))
    assert len(held) > 0
    assert all(attributes["nf.tail.cause"] == "barrier" for attributes in held)
    assert share(sum(attributes["nf.tail.command"] == ROUTES for attributes in held), len(held)) >= MOST
    text, packets = measured.report()
    assert "barrier" in {row["kind"] for row in packets["causes"]}
    assert f"in `{ROUTES}`" in text


def test_rules_that_one_flow_walks_through(start: Callable[..., Measured]) -> None:
    """Its packets are slow in the node that walks, and so are those of others in the same frames, or behind these."""
    measured = start(
        "",
        Stream(packet("10.1.0.2"), rate=RATE, frame=1),
        Stream(packet("10.1.0.2", source=SLOW_FLOW), rate=SLOW_RATE, frame=1),
    )
    rules = ", ".join(f"deny src 192.0.2.{i % 256}/32 dst 10.1.0.2/32 proto 17 dport {i}" for i in range(1, RULES))
    file = measured.vpp.folder / "rules"
    quick, all_ = (f"permit src {source} dst 0.0.0.0/0" for source in ("10.0.0.2/32", "0.0.0.0/0"))
    file.write_text(f"set acl-plugin acl {quick}, {rules}, {all_}\n")
    measured.vpp.configure(f"""
        set acl-plugin use-hash-acl-matching 0
        exec {file}
        set acl-plugin interface pg0 input acl 0
    """)
    measured.vpp.play(WARM_UP)
    measured.begin("--slower-than", "20us")
    time.sleep(USUAL_S)
    measured.end()
    late = [attributes for _, attributes in measured.late() if attributes["nf.tail.cause"] not in FROM_OUTSIDE]
    print(Counter((each["source.address"], each["nf.tail.cause"], each.get("nf.tail.function")) for each in late))
    slow = [attributes for attributes in late if attributes["source.address"] == SLOW_FLOW]
    assert len(slow) >= 10
    assert share(sum(each["nf.tail.cause"] == "own" for each in slow), len(slow)) >= MOST
    for found in (slow, late):
        assert share(sum(each.get("nf.tail.function") == ACL_NODE for each in found), len(found)) >= MOST
    by_flow = {row["source"]: row["late"] / row["packets"] for row in measured.query(BY_FLOW)}
    print(by_flow)
    assert by_flow[SLOW_FLOW] >= 10 * by_flow["10.0.0.2"]


def test_a_program_on_the_worker_s_processor(start: Callable[..., Measured]) -> None:
    measured = start("", Stream(ROUTED, rate=RATE))
    measured.begin("--slower-than", "5ms")
    begin_ns = time.time_ns()
    hog = start_hog(sorted(os.sched_getaffinity(0))[1], 0.02, 0.05)
    time.sleep(HOG_S)
    hog.kill()
    hog.wait()
    end_ns = time.time_ns()
    measured.end()
    late = measured.late(begin_ns, end_ns)
    names = Counter(name for name, _ in late)
    print(names)
    assert names["late packet: preemption"] > 0
    assert share(names["late packet: preemption"], len(late)) >= MOST
    text, packets = measured.report()
    assert packets["causes"][0]["kind"] == "preemption"
    assert "the scheduler ran " in text
