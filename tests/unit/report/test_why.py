# SPDX-License-Identifier: Apache-2.0
"""Whose delay it was, of simulated chains: wherever the fault was, it is named there."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest

from otel_nfprobe.cli.main import main
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.report.views.why_table import explain_late, render_why
from otel_nfprobe.report.why import WhyRequest, build_why
from tests.support.simulated_chain import Nf, Packet, arrive, run, write

COUNT, EVERY_NS = 6_000, 1000
STALL = (2_000_000, 1_500_000)
ABOVE_NS = 300_000


def simulate(folder: Path, nfs: Sequence[Nf], packets: Sequence[Packet] | None = None) -> list[Path]:
    """Lets packets pass the functions, one after the other, and writes their recordings."""
    going = list(packets or arrive(COUNT, EVERY_NS))
    for nf in nfs:
        going = run(nf, going)
    return [write(nf, folder / f"{nf.name}.nfp") for nf in nfs]


def why(paths: Sequence[Path], **request: Any) -> dict[str, Any]:
    return build_why([RecordingReader(path) for path in paths], WhyRequest(**request))


def share_of(rows: list[dict[str, Any]], nf: str, kind: str, function: str | None = None) -> float:
    return sum(
        row["share"] for row in rows if row["nf"] == nf and row["kind"] == kind and function in (None, row["function"])
    )


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A function of fw stalls once; ovs takes twice as long for a packet."""
    return simulate(tmp_path_factory.mktemp("stalled"), [Nf("fw", 300, stalls=[STALL]), Nf("ovs", 800)])


@pytest.mark.thorough
def test_a_burst_is_followed_to_the_function_that_held_its_packets(stalled: list[Path]) -> None:
    document = why(stalled, above_ns=ABOVE_NS, slowest=500)
    assert [way["way"] for way in document["ways"]] == [["fw", "ovs"]]
    assert document["joined"]["packets"] == COUNT
    assert share_of(document["blame"], "fw", "own", "fw_work") + share_of(
        document["blame"], "fw", "queue", "fw_work"
    ) >= 0.95  # fmt: skip
    assert share_of(document["baseline"], "ovs", "burst") > 0.2
    followed = [packet for packet in document["packets"] if packet["late_in"] == "ovs"]
    through = [packet for packet in followed if packet["cause"]["nf"] == "fw" and packet["cause"]["kind"] != "burst"]
    assert len(through) >= 0.95 * len(followed) > 0
    for packet in through:
        assert packet["cause"]["released"]["by"] == "fw"
        assert packet["cause"]["held_ns"] == pytest.approx(STALL[1], rel=0.1)
        assert "that fw released at once after fw_work took 1.50 ms longer than usual" in explain_late(packet)


def test_the_order_of_the_arguments_does_not_matter(stalled: list[Path]) -> None:
    one, other = why(stalled), why(stalled[::-1])
    assert one["blame"] == other["blame"]
    assert one["ways"] == other["ways"]
    assert one["packets"] == other["packets"]


@pytest.mark.thorough
def test_what_ran_instead_is_named_through_the_chain(tmp_path: Path) -> None:
    document = why(simulate(tmp_path, [Nf("fw", 300, taken=[STALL]), Nf("ovs", 800)]), above_ns=ABOVE_NS)
    assert share_of(document["blame"], "fw", "preemption") >= 0.95
    assert share_of(document["baseline"], "ovs", "burst") > 0.2


def test_a_fault_in_the_last_function_stays_there(tmp_path: Path) -> None:
    document = why(simulate(tmp_path, [Nf("fw", 300), Nf("ovs", 600, stalls=[STALL])]))
    own = share_of(document["blame"], "ovs", "own", "ovs_work") + share_of(
        document["blame"], "ovs", "queue", "ovs_work"
    )
    assert own >= 0.95


def test_through_three_functions_and_address_translation(tmp_path: Path) -> None:
    nfs = [Nf("fw", 250, stalls=[STALL]), Nf("nat", 250, rewrites=True, loses=500), Nf("ovs", 600)]
    document = why(simulate(tmp_path, nfs))
    assert document["ways"][0]["way"] == ["fw", "nat", "ovs"]
    assert document["joined"]["by_content"] > COUNT * 0.9
    blame = document["blame"]
    assert share_of(blame, "fw", "own", "fw_work") + share_of(blame, "fw", "queue", "fw_work") >= 0.95
    lost = {(one["from"], one["to"]): one["lost"] for one in document["between"]}
    assert lost["nat", "ovs"] == COUNT // 500 - 1  # the first one before ovs received any
    assert lost["fw", "nat"] == 0


def test_a_burst_of_the_source_is_no_fault_of_a_function(tmp_path: Path) -> None:
    packets = arrive(COUNT, EVERY_NS)
    for packet in packets[2000:3000]:
        packet.at_ns = packets[2000].at_ns
    document = why(simulate(tmp_path, [Nf("fw", 300), Nf("ovs", 310)], packets))
    assert share_of(document["blame"], "fw", "burst") >= 0.95


def test_a_burst_that_meets_its_queue_later_on_is_still_the_sources(tmp_path: Path) -> None:
    packets = arrive(COUNT, EVERY_NS)
    for packet in packets[2000:3000]:
        packet.at_ns = packets[2000].at_ns
    document = why(simulate(tmp_path, [Nf("fw", 50), Nf("ovs", 800)], packets), above_ns=ABOVE_NS)
    assert share_of(document["blame"], "fw", "burst") >= 0.95
    assert share_of(document["baseline"], "ovs", "burst") >= 0.95
    assert "from fw on nothing held them: so the source sent them" in explain_late(document["packets"][0])


def test_a_recording_that_is_missing_in_the_middle_is_said(tmp_path: Path) -> None:
    nfs = [Nf("fw", 300), Nf("nat", 300, stalls=[STALL]), Nf("ovs", 310)]
    paths = simulate(tmp_path, nfs)
    document = why([paths[0], paths[2]], slowest=1)
    assert share_of(document["blame"], "ovs", "between") >= 0.95
    (packet,) = document["packets"]
    assert packet["is_between"]
    assert "between fw and ovs" in explain_late(packet)
    assert "no recording covers" in explain_late(packet)
    blame = why(paths)["blame"]
    assert share_of(blame, "nat", "own") + share_of(blame, "nat", "queue") >= 0.95


def test_repeated_ids_are_counted_and_not_joined(tmp_path: Path) -> None:
    packets = arrive(COUNT, EVERY_NS)
    for packet in packets[:300]:
        packet.content, packet.source = packets[0].content, packets[0].source
    document = why(simulate(tmp_path, [Nf("fw", 300, stalls=[STALL]), Nf("ovs", 600)], packets))
    assert document["joined"]["packets"] == COUNT - 300
    assert [one["ambiguous"] for one in document["recordings"]] == [300, 300]


def test_two_clocks_with_packets_both_ways(tmp_path: Path) -> None:
    there, back = arrive(COUNT, EVERY_NS), arrive(COUNT // 2, 2 * EVERY_NS, seed=2, first=COUNT)
    fw, ovs = Nf("fw", 200, stalls=[STALL]), Nf("ovs", 400, skew_ns=-3_000_000_000)
    # Both directions pass both functions; those that go back are simulated by what the other function does first.
    for nf in (fw, ovs):
        there = run(nf, there)
    fw_back, ovs_back = Nf("fw", 200), Nf("ovs", 400)
    for nf in (ovs_back, fw_back):
        back = run(nf, back)
    paths = []
    for nf, other in ((fw, fw_back), (ovs, ovs_back)):
        paths.append(write(nf, tmp_path / f"{nf.name}.nfp", more=other.rows))
    document = why(paths)
    clock = document["clocks"][1]
    assert clock["error_ns"] is not None
    assert abs(clock["offset_ns"] - 3_000_000_000) <= clock["error_ns"] < 10_000
    assert {tuple(way["way"]) for way in document["ways"]} == {("fw", "ovs"), ("ovs", "fw")}
    assert share_of(document["blame"], "fw", "own") + share_of(document["blame"], "fw", "queue") >= 0.95


def test_two_clocks_with_packets_one_way(tmp_path: Path) -> None:
    document = why(simulate(tmp_path, [Nf("fw", 300, stalls=[STALL]), Nf("ovs", 600, skew_ns=2_000_000)]))
    assert document["clocks"][1]["error_ns"] is None
    assert "packets go only one way" in render_why(document)
    assert share_of(document["blame"], "fw", "own") + share_of(document["blame"], "fw", "queue") >= 0.95


@pytest.mark.thorough
def test_json_is_one_object_and_a_packet_is_found_by_its_id(
    stalled: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", *map(str, stalled), "--json", "--slowest", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["packets"]) == 1
    id = document["packets"][0]["id"]
    assert main(["why", *map(str, stalled), "--json", "--packet", id, "--above", "1ms"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["late"]["over_ns"] == 1_000_000
    assert [packet["id"] for packet in again["packets"]] == [id]
    assert again["packets"][0]["way"] == document["packets"][0]["way"]
    assert again["packets"][0]["flow"].startswith("UDP 10.0.")
    hops = again["packets"][0]["way"]
    total = sum(hop["queue_ns"] + hop["batch_ns"] + (hop["between_ns"] or 0) for hop in hops)
    assert total == again["packets"][0]["latency_ns"]


def test_a_recording_that_was_cut_is_joined_up_to_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fw, ovs = Nf("fw", 300), Nf("ovs", 600)
    run(ovs, run(fw, arrive(1000, EVERY_NS)))
    paths = [write(fw, tmp_path / "fw.nfp", finish=False), write(ovs, tmp_path / "ovs.nfp")]
    assert main(["why", *map(str, paths)]) == 0
    captured = capsys.readouterr()
    assert "1,000 packets seen in more than one recording" in captured.out
    assert "fw.nfp" in captured.err


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("one", "is one recording; a chain has one of each network function"),
        ("same", "are of one session, not of two network functions"),
        ("empty", "has no identified packets"),
        ("other", "No packet was seen in more than one of these recordings"),
        ("far", "was recorded on another host or after another boot"),
        ("unknown", "No packet with the id 0000000000000001 was joined"),
    ],
)
def test_bad_input_is_a_sentence(
    case: str, said: str, stalled: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(stalled[0])]
    if case == "same":
        words *= 2
    elif case == "empty":
        words.append(str(write(Nf("empty"), tmp_path / "empty.nfp")))
    elif case in ("other", "far"):
        nf = Nf("other", skew_ns=0 if case == "far" else None)
        run(nf, arrive(100, EVERY_NS, first=10 * COUNT))
        words.append(str(write(nf, tmp_path / "other.nfp")))
    elif case == "unknown":
        words += [str(stalled[1]), "--packet", "1"]
    assert main(["why", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert "next: nfprobe" in captured.err


def test_the_statement_of_the_page_joins_tables_as_well(stalled: list[Path], tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "chains.md"
    (statement,) = re.findall(r"^```sql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert main(["tables", *map(str, stalled), "-o", str(tmp_path)]) == 0
    connection = duckdb.connect()
    connection.read_parquet(str(tmp_path / "packets" / "*.parquet")).create_view("packets")
    ((previous, service, packets, mean_ns, _),) = connection.execute(statement).fetchall()
    assert (previous, service, packets) == ("fw", "ovs", COUNT)
    (between,) = why(stalled)["between"]
    assert between["at_least_ns"]["p50"] <= mean_ns
