# SPDX-License-Identifier: Apache-2.0
"""What a user of VPP knows: its graph nodes in numbers that can be laid beside `show runtime`."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters.vpp import VppAdapter
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.otlp_receiver import Receiver
from tests.support.probed import Talker
from tests.support.vpp_double import build_double

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COUNT = 20_000
Counts = dict[str, tuple[int, int]]  # calls and vectors of each node


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_double(tmp_path_factory.mktemp("vpp"), 2606)


@pytest.fixture
def double(program: Path, spawn: Callable[..., Any]) -> Talker:
    double = Talker(spawn(program, stdin=subprocess.PIPE))
    double.ask("1000")
    return double


def own_counts(double: Talker) -> Counts:
    lines = [line.split() for line in double.ask("counters").split(";") if line]
    return {name: (int(calls), int(vectors)) for name, calls, vectors in lines}


def measure(nfprobe: Any, double: Talker, recording: Path, *options: str) -> tuple[dict[str, Any], Counts]:
    """The summary, and what the double has counted meanwhile."""
    monitor = nfprobe.start("attach", double.pid, "--record", str(recording), "--json", *options)
    wait_until_armed(nfprobe, double.pid, monitor)
    before = own_counts(double)
    double.ask(str(COUNT))
    after = own_counts(double)
    grown = {name: (calls - before[name][0], vectors - before[name][1]) for name, (calls, vectors) in after.items()}
    return nfprobe.end(monitor), grown


@pytest.mark.parametrize("packets", ["all", "none"])
def test_nodes_as_show_runtime_has_them(double: Talker, packets: str, nfprobe: Any, tmp_path: Path) -> None:
    recording = tmp_path / "vpp.nfprobe"
    summary, own = measure(nfprobe, double, recording, "--packets", packets, "--ring-size", "64MiB")
    del own["unix-epoll-input"]
    polls = sum(thread["empty_polls"] for thread in summary["threads"])
    own["pg-input"] = own["pg-input"][0] - polls, own["pg-input"][1]
    assert {node["name"]: (node["calls"], node["vectors"]) for node in summary["nodes"]} == own
    assert {"tap0-tx", "tap1-tx", "ip4-drop", "ip6-drop"} <= own.keys()
    report = json.loads(nfprobe.run("report", recording, "--format", "json").stdout)
    assert sorted(report["nodes"], key=str) == sorted(summary["nodes"], key=str)
    assert report["recording"]["version"] == summary["version"] == "26.06-release"
    for node in report["nodes"]:
        calls, vectors = own[node["name"]]
        assert node["vectors_per_call"] == round(vectors / calls, 2)
        assert node["clocks_per_vector"] > 0 < node["ns_per_vector"]
    words = nfprobe.run("report", recording).stdout.split("\n\n")
    assert words[0].startswith(f"vpp 26.06-release, pid {double.pid} on ")
    (table,) = [part.splitlines() for part in words if part.startswith("graph node")]
    assert table[0].split() == ["graph", "node", "calls", "vectors", "vectors/call", "clocks/vector", "ns/vector"]
    assert len(table) == 2 + len(own)


def exported_packets(nfprobe: Any, recording: Path) -> list[dict[str, Any]]:
    """Attributes of the spans of packets."""
    receiver = Receiver()
    endpoint = f"http://127.0.0.1:{receiver.port}"
    done = nfprobe.run("export", recording, "--endpoint", endpoint, "--sample", "1")
    spans = receiver.spans()
    receiver.stop()
    assert done.returncode == 0, done.stderr
    found = [{item.key: getattr(item.value, item.value.WhichOneof("value")) for item in s.attributes} for s in spans]
    return [attributes for attributes in found if "nf.packet.disposition" in attributes]


@pytest.mark.parametrize("options", [("--packets", "all"), ("--packets", "slow", "--slower-than", "0us")])
def test_interfaces_and_reasons(double: Talker, options: tuple[str, ...], nfprobe: Any, tmp_path: Path) -> None:
    recording = tmp_path / "vpp.nfprobe"
    summary, _ = measure(nfprobe, double, recording, "--ring-size", "64MiB", *options)
    packets = exported_packets(nfprobe, recording)
    where = Counter(
        (
            packet.get("nf.interface.name"),
            packet.get("nf.interface.transmit.name"),
            packet.get("nf.packet.drop_reason"),
        )
        for packet in packets
    )
    assert where == {
        ("tap0.100", "tap0", None): COUNT // 2,
        ("tap0.100", "tap1", None): COUNT // 2 - 2 * COUNT // 32,
        ("tap0.100", None, "ip4-input: ip4 ttl <= 1"): COUNT // 32,
        ("tap0.100", None, "ip6-drop: ACL deny packets"): COUNT // 32,
    }
    assert {packet["nf.packet.disposition"] for packet in packets if "nf.packet.drop_reason" in packet} == {"dropped"}
    reasons = [
        {"reason": text, "packets": COUNT // 32} for text in ("ip4-input: ip4 ttl <= 1", "ip6-drop: ACL deny packets")
    ]
    assert summary["drop_reasons"] == reasons
    assert json.loads(nfprobe.run("report", recording, "--format", "json").stdout)["packets"]["drop_reasons"] == reasons
    assert f"ip6-drop: ACL deny packets  {COUNT // 32:>7,}\n" in nfprobe.run("report", recording).stdout
    sql = "SELECT drop_reason, interface, transmit_interface, count(*) AS n FROM packets GROUP BY ALL"
    rows = json.loads(nfprobe.run("query", sql, recording, "--json").stdout.splitlines()[-1])
    assert {(row["interface"], row["transmit_interface"], row["drop_reason"]): row["n"] for row in rows} == where


def test_drops_of_packets_that_were_not_identified_are_counted_as_such(
    double: Talker, nfprobe: Any, tmp_path: Path
) -> None:
    recording = tmp_path / "vpp.nfprobe"
    options = ("--packets", "slow", "--slower-than", "1h", "--sample", "0.1")
    summary, _ = measure(nfprobe, double, recording, "--ring-size", "64MiB", *options)
    counted = sum(reason["packets"] for reason in summary["drop_reasons"])
    dropped = summary["packets"]["dropped"]
    assert 0 < counted < dropped == COUNT // 16
    table = nfprobe.run("report", recording).stdout
    assert any(
        line.startswith("packets that were not identified") and line.endswith(f" {dropped - counted:,}")
        for line in table.splitlines()
    )


def test_an_interface_that_is_made_later(double: Talker) -> None:
    target, adapter = Target(double.pid), VppAdapter()
    adapter.roles(target)
    before = adapter.names()
    assert before.interfaces == {0: "local0", 1: "tap0", 2: "tap0.100", 3: "tap1"}
    adapter.later_roles(target)
    assert adapter.names() is before
    double.ask("interface")
    adapter.later_roles(target)
    assert adapter.names().interfaces == {**before.interfaces, 4: "memif0/0"}
    assert adapter.names().reasons == before.reasons


@pytest.mark.parametrize("what", ["errors", "texts", "hardware", "software"])
def test_a_layout_that_is_not_known_gives_no_names(double: Talker, what: str) -> None:
    double.ask(f"spoil {what}")
    target, adapter = Target(double.pid), VppAdapter()
    assert adapter.roles(target)
    names = adapter.names()
    assert not (names.reasons if what in ("errors", "texts") else names.interfaces)
    assert names.interfaces if what in ("errors", "texts") else names.reasons
