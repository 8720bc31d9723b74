# SPDX-License-Identifier: Apache-2.0
"""Reports: a simulated NF of known times is recorded, and the report must say what the simulation did."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.base.columns import HANDOVER, RECORD, HandoverFlag
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.cli.main import main
from otel_nfprobe.cli.report import render_json
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from otel_nfprobe.report.report import Report, SlowestPackets, Surroundings, build_report, find_packet
from otel_nfprobe.report.views.page import render_page
from otel_nfprobe.report.views.table import render_table
from tests.unit.causes.test_latency_causes import BASELINE, TX, Story

ANCHOR = np.dtype([("ticks", "<u8"), ("unix_ns", "<u8"), ("ns_per_tick_q32", "<u8")])
ENTRY, EXIT, POLL_ENTRY, POLL_EXIT, VALUE = range(5)
PACKET, PACKET_ID, PACKET_V4, PACKET_ARRIVAL = range(8, 12)
RECEIVE, CLASSIFY, OUTPUT, TRANSMIT, DROP = range(5)
NAMES = ("fw_receive", "fw_classify", "fw_output", "fw_transmit<a & b>", "fw_drop")
ROLES = (1, 0, 0, 2, 3)
BURST = 32
PER_PACKET = 1000  # ticks of classification
SLOW_TICKS = 1_500_000


class Simulation:
    """One thread, two ticks per ns, packets in bursts; every batch numbered in `slow` has a slow output."""

    def __init__(self, batches: int = 200, slow: tuple[int, ...] = (60, 150), thread: int = 0, seed: int = 1):
        self.rng = random.Random(seed)
        self.thread = thread
        self.records: list[tuple[int, int, int]] = []
        self.latencies: list[int] = []
        self.sizes: list[int] = []
        self.dropped = 0
        self.now = 1_000_000 + thread
        self.packets = 0
        self.waiting: list[tuple[int, int]] = []
        self.next_arrival = self.now
        for batch in range(batches):
            self.arrive()
            self.work(batch in slow)

    def emit(self, kind: int, function: int, word: int, rsp: int = 0x1000) -> None:
        self.records.append((word, kind << 24 | function, rsp))

    def arrive(self) -> None:
        while self.next_arrival <= self.now or not self.waiting:
            self.now = max(self.now, self.next_arrival)
            for _ in range(self.rng.randrange(1, 40)):
                self.waiting.append((self.packets, self.next_arrival))
                self.packets += 1
            self.next_arrival += self.rng.randrange(20_000, 100_000)

    def work(self, slow: bool) -> None:
        burst, self.waiting = self.waiting[:BURST], self.waiting[BURST:]
        kept = [packet for packet in burst if packet[0] % 10]
        refused = [packet for packet in burst if not packet[0] % 10]
        self.sizes.append(len(burst))
        self.emit(POLL_ENTRY, RECEIVE, self.now)
        self.now += 200
        self.emit(POLL_EXIT, RECEIVE, self.now, len(burst) | BURST << 16)
        for position, (number, arrival) in enumerate(burst):
            self.describe(RECEIVE, position, number, arrival)
        self.call(CLASSIFY, PER_PACKET * len(burst))
        if kept:
            self.hand_over(TRANSMIT, kept, SLOW_TICKS if slow else 500)
        if refused:
            self.dropped += len(refused)
            self.hand_over(DROP, refused, 0)

    def describe(self, function: int, position: int, number: int, arrival: int | None) -> None:
        buffer = 0x7000_0000 + self.thread * 0x1000_0000 + (number % 4096) * 2048
        self.emit(PACKET, function, buffer, 100 | position << 16)
        self.emit(PACKET_ID, function, 0xABC0_0000 + number, number & 0xFFFF | 17 << 16 | 4 << 24)
        self.emit(PACKET_V4, function, 0x0A000001 | 0x0A010002 << 32, 1000 | 53 << 16)
        if arrival is not None:
            self.emit(PACKET_ARRIVAL, function, arrival, 0)

    def hand_over(self, function: int, packets: list[tuple[int, int]], ticks: int) -> None:
        self.emit(ENTRY, function, self.now, 0x900)
        for position, (number, _) in enumerate(packets):
            self.describe(function, position, number, None)
        self.now += 100
        if ticks:
            self.call(OUTPUT, ticks, 0x800)
        self.now += 100
        self.emit(VALUE, function, len(packets) | len(packets) << 32, 0x900)
        self.emit(EXIT, function, self.now, 0x900)
        self.latencies += [self.now - arrival for _, arrival in packets]

    def call(self, function: int, ticks: int, rsp: int = 0x900) -> None:
        self.emit(ENTRY, function, self.now, rsp)
        self.now += ticks
        self.emit(EXIT, function, self.now, rsp)


def record(path: Path, *simulations: Simulation, chunk: int = 1000, finish: bool = True) -> Path:
    writer = RecordingWriter(path, RecordingHeader("0.1.0", "s", 42, "/opt/nf/firewall", "edge <1>", 10**18, 2e9))
    writer.functions(
        [
            FunctionInfo(id, role, "/opt/nf/firewall", 0x1000 + 64 * id, 64, name, "dynsym", "in-stack call")
            for id, (name, role) in enumerate(zip(NAMES, ROLES, strict=True))
        ]
    )
    writer.threads([ThreadInfo(item.thread, 100 + item.thread, "worker") for item in simulations])
    writer.clock(np.array([(0, 10**18, 1 << 31)], ANCHOR))
    arrays = [np.array(item.records, RECORD) for item in simulations]
    for start in range(0, max(map(len, arrays)), chunk):
        for item, array in zip(simulations, arrays, strict=True):
            if start < len(array):
                writer.records(item.thread, array[start : start + chunk])
    writer.finish({}) if finish else writer.close()
    return path


@pytest.fixture(scope="module")
def simulation() -> Simulation:
    return Simulation()


@pytest.fixture(scope="module")
def report(simulation: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Report:
    return build_report(RecordingReader(record(tmp_path_factory.mktemp("report") / "r.nfprobe", simulation)))


def test_counts_are_those_of_the_simulation(simulation: Simulation, report: Report) -> None:
    document = report.document
    assert document["packets"]["received"] == sum(simulation.sizes)
    assert document["packets"]["dropped"] == simulation.dropped
    assert document["packets"]["transmitted"] == sum(simulation.sizes) - simulation.dropped
    assert document["packets"]["unknown"] == 0
    assert document["batches"]["count"] == 200
    expected = {size: simulation.sizes.count(size) for size in set(simulation.sizes)}
    assert dict(document["batches"]["size_histogram"]) == expected
    assert document["lost"] == {"call": 0, "packet": 0, "poll": 0}
    assert document["unpaired"] == {"entries": 0, "exits": 0}


def test_functions_have_their_times(simulation: Simulation, report: Report) -> None:
    by_name = {function["name"]: function for function in report.document["functions"]}
    assert set(by_name) == set(NAMES)
    classify = by_name["fw_classify"]
    assert classify["calls"] == 200
    assert classify["total_ns"] == sum(simulation.sizes) * PER_PACKET // 2
    assert classify["self_ns"] == classify["total_ns"]
    assert (classify["min_ns"], classify["max_ns"]) == (
        min(simulation.sizes) * PER_PACKET // 2,
        max(simulation.sizes) * PER_PACKET // 2,
    )
    assert by_name["fw_output"]["max_ns"] == SLOW_TICKS // 2
    assert by_name["fw_transmit<a & b>"]["self_ns"] == 100 * by_name["fw_transmit<a & b>"]["calls"]


def test_the_slowest_packets_and_their_cause(simulation: Simulation, report: Report) -> None:
    slowest = report.document["packets"]["slowest"]
    assert len(slowest) == 5
    assert slowest[0]["latency_ns"] == max(simulation.latencies) // 2
    assert [item["latency_ns"] for item in slowest] == sorted((i["latency_ns"] for i in slowest), reverse=True)
    assert len({item["batch"] for item in slowest}) == 5
    for item in slowest:
        assert item["cause"]["function"] == "fw_output"
        assert item["cause"]["kind"] == "queue" if item["cause"]["batch"] != item["batch"] else "own"
        assert item["cause"]["excess_ns"] <= SLOW_TICKS // 2
        assert item["flow"] == "UDP 10.0.0.1:1000 > 10.1.0.2:53"
        assert item["tid"] == 100
    assert any(item["cause"]["kind"] == "queue" for item in slowest)


@pytest.mark.parametrize("again", [False, True])
def test_the_slowest_packet_went_to_another_thread(again: bool) -> None:
    """What it waited for there is among its surroundings, though its receiver never saw it."""
    story = Story()
    story.batch(2000, (100, 100, 100))
    story.batch(2400, (0, 0, 9000), thread=1)
    story.batch(11_500, (100, 100, 100), thread=1)
    columns = story.columns()
    columns.packets["done_ticks"][0] = 11_800
    columns.handovers = np.array([(0, 0 if again else 2, 0, HandoverFlag.AGAIN if again else 0)], HANDOVER)
    columns.reemitted_batches = columns.batches[2:3].copy()
    kept = SlowestPackets(1)
    kept.add(columns)
    (slow,) = kept.slowest()
    surroundings = Surroundings([slow])
    surroundings.add(columns)
    near = surroundings.columns()
    (cause,) = find_causes(near, np.array([find_packet(near, slow)]), BASELINE)
    assert (cause["kind"], cause["function"], cause["batch_id"]) == (CauseKind.QUEUE, TX, columns.batches["id"][1])


def test_timelines_hold_the_wait_and_the_culprit(report: Report) -> None:
    assert len(report.timelines) == 5
    for timeline, item in zip(report.timelines, report.document["packets"]["slowest"], strict=True):
        assert timeline.done_ns == pytest.approx(item["latency_ns"], abs=1)
        assert timeline.batch_start_ns == pytest.approx(item["queue_wait_ns"], abs=1)
        assert timeline.arrival_known
        (cause,) = [call for call in timeline.calls if call.is_cause]
        assert cause.name == "fw_output"
        assert cause.end_ns - cause.start_ns == SLOW_TICKS / 2
        assert cause.batch_id == item["cause"]["batch"]
        assert [batch.id for batch in timeline.batches if batch.is_own] == [item["batch"]]
        assert all(batch.end_ns > 0 for batch in timeline.batches)


def test_a_culprit_that_had_ended_before_the_packet_came_is_in_its_timeline(tmp_path: Path) -> None:
    path = record(tmp_path / "r", Simulation())
    more = build_report(RecordingReader(path), slowest=40)
    before = 0
    for timeline, item in zip(more.timelines, more.document["packets"]["slowest"], strict=True):
        if item["cause"]["kind"] not in ("own", "queue"):
            continue
        (cause,) = [call for call in timeline.calls if call.is_cause]
        assert cause.batch_id == item["cause"]["batch"]
        ids = [batch.id for batch in timeline.batches]
        assert ids == list(range(ids[0], ids[-1] + 1))
        before += cause.end_ns < 0
    assert before


def test_two_threads_do_not_mix(tmp_path: Path) -> None:
    first, second = Simulation(120, (50,)), Simulation(90, (), thread=3, seed=9)
    path = record(tmp_path / "r", first, second, chunk=300)
    document = build_report(RecordingReader(path)).document
    assert document["batches"]["count"] == 210
    assert document["packets"]["received"] == sum(first.sizes) + sum(second.sizes)
    assert document["packets"]["unknown"] == 0
    assert document["packets"]["slowest"][0]["tid"] == 100


def test_takes_in_between_change_nothing(
    report: Report, simulation: Simulation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_nfprobe.recording.replay.ROUND_RECORDS", 1)
    path = record(tmp_path / "r", simulation, chunk=777)
    other = build_report(RecordingReader(path))
    assert other.document == report.document
    assert other.timelines == report.timelines


def test_cut_recordings_are_shown_as_far_as_they_go(simulation: Simulation, tmp_path: Path) -> None:
    data = record(tmp_path / "r", simulation).read_bytes()
    cut = tmp_path / "cut"
    for length in range(1000, len(data), len(data) // 10):
        cut.write_bytes(data[:length])
        report = build_report(RecordingReader(cut))
        assert report.damage
        assert report.document["recording"]["complete"] is False
        render_page(report)
        assert report.damage in render_table(report)


def test_hostile_records_do_no_harm(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for attempt in range(30):
        simulation = Simulation(20, ())
        simulation.records = []
        path = tmp_path / str(attempt)
        array = np.frombuffer(rng.bytes(16 * 3000), RECORD).copy()
        if attempt % 2:  # kinds and functions that exist
            array["tag"] = (array["tag"] % 16) << 24 | array["sp"] % 6
        simulation.records = array.tolist()
        report = build_report(RecordingReader(record(path, simulation)))
        json.loads(render_json(report))
        render_table(report)
        render_page(report)


def test_a_recording_without_records(tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    writer.finish({})
    report = build_report(RecordingReader(tmp_path / "r"))
    assert report.document["batches"]["count"] == 0
    assert "No call was recorded." in render_table(report)
    assert "No call was recorded." in render_page(report)
    json.loads(render_json(report))


class Page(HTMLParser):
    """Collects tags and checks that they nest."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing(report: Report) -> None:
    text = render_page(report)
    page = Page()
    page.feed(text)
    assert page.open == []
    tags = {tag for tag, _ in page.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "base"}
    assert not any(name in ("src", "href") for _, attributes in page.seen for name in attributes)
    assert "url(" not in text
    assert "://" not in text
    assert sum(tag == "section" for tag, _ in page.seen) == 5
    assert sum(attributes.get("class") == "cause" for tag, attributes in page.seen if tag == "rect") >= 5


def test_names_of_the_target_are_escaped(report: Report) -> None:
    text = render_page(report)
    assert "fw_transmit&lt;a &amp; b&gt;" in text
    assert "fw_transmit<a" not in text
    assert "edge &lt;1&gt;" in text


def test_the_page_says_what_the_table_says_of_nodes_drops_and_the_version(report: Report) -> None:
    """All of it may be what a target has made up."""
    header = replace(report.header, resource={"service.version": "26.06<b>"})
    packets = report.document["packets"] | {"dropped": 9, "drop_reasons": [{"reason": "ip4 <deny>", "packets": 7}]}
    costs = {"calls": 3, "vectors": 6, "vectors_per_call": 2.0, "clocks_per_vector": 50.5, "ns_per_vector": None}
    document = report.document | {"packets": packets, "nodes": [{"name": "ip4<lookup", **costs}]}
    told = replace(report, header=header, document=document)
    page, table = render_page(told), render_table(told)
    for words in ("26.06<b>", "ip4 <deny>", "packets that were not identified", "ip4<lookup", "50.5"):
        assert escape(words) in page
        assert words in table
        assert words == escape(words) or words not in page
    assert "Graph nodes" in page
    assert "Graph nodes" not in render_page(report)


def test_the_table_names_the_call(report: Report) -> None:
    text = render_table(report)
    assert "fw_output took" in text
    assert report.document["packets"]["slowest"][0]["id"] in text
    assert "lost records: none" in text
    assert all(len(line) < 160 for line in text.splitlines())


def test_command_line(
    simulation: Simulation, report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(record(tmp_path / "r", simulation))
    assert main(["report", path, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == report.document
    assert main(["report", path, "--json", "--timelines"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [line["number"] for line in document["timelines"]] == list(range(len(document["packets"]["slowest"])))
    for line, slow in zip(document["timelines"], document["packets"]["slowest"], strict=True):
        assert (line["own_batch_id"], line["done_ns"]) == (slow["batch"], pytest.approx(slow["latency_ns"], abs=1))
        culprits = [call for call in line["calls"] if call["is_cause"]]
        assert [(call["name"], call["batch_id"]) for call in culprits] == [
            (slow["cause"]["function"], slow["cause"]["batch"])
        ]
    assert main(["report", path, "--timelines"]) == 2
    assert "--json" in capsys.readouterr().err
    assert main(["report", path]) == 0
    assert "slowest packets" in capsys.readouterr().out
    capsys.readouterr()
    assert main(["report", path, "-o", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"nfprobe: The report was written to {tmp_path / 'page.html'}.\n")
    assert (tmp_path / "page.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "page.html").stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().out == ""
    assert main(["report", path, "-o", str(tmp_path / "none" / "x")]) == 1
    assert main(["report", str(tmp_path / "none")]) == 2
    assert "nfprobe: Cannot" in capsys.readouterr().err


def test_cut_recording_on_the_command_line(
    simulation: Simulation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(record(tmp_path / "r", simulation, finish=False))
    assert main(["report", path, "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["recording"]["damage"]
    assert "is incomplete" in captured.err


def test_unix_ns_back_to_ticks(tmp_path: Path) -> None:
    anchors = np.array([(1000, 10**18, 1 << 31), (5_000_000, 10**18 + 2_499_500, (1 << 31) + 99)], ANCHOR)
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    writer.clock(anchors)
    writer.finish({})
    clock = read_facts(RecordingReader(tmp_path / "r")).make_clock()
    ticks = np.array([0, 1000, 1001, 4_999_999, 5_000_000, 10**9], np.uint64)
    found = clock.convert_back(clock.convert(ticks))
    assert np.max(np.abs(found.astype(np.int64) - ticks.astype(np.int64))) <= 2
