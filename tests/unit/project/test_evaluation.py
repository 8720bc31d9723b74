# SPDX-License-Identifier: Apache-2.0
"""The page of the evaluation is made from samples alone, and says what is missing; each of its tables is measured."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.rounds import NO_FIGURE
from tests.evaluation import __main__ as command
from tests.evaluation import (
    broker,
    coverage,
    culprit,
    document,
    firewall_rate,
    forwarders,
    latency,
    launched,
    peers,
    plots,
)
from tests.evaluation.samples import Rows, Sample, missing, read, write

ROOT = Path(__file__).resolve().parents[3]
BOTH = "function, entry and exit"


def make_calls() -> list[Sample]:
    samples = [Sample("unprobed call", "plain program", "ns a call", number, 4.0) for number in range(3)]
    floor, ours = "by hand in the source: the floor", "nfprobe, in-stack call"
    samples += [Sample(BOTH, floor, "ns a call", number, 20.0) for number in range(3)]
    samples += [Sample(BOTH, ours, "ns a call", number, value) for number, value in enumerate((22.0, NO_FIGURE, 24.0))]
    samples += [Sample(BOTH, ours, "process", 0, NO_FIGURE, "running")]
    return [*samples, missing(BOTH, "XRay, basic", "ns a call", "clang is not installed")]


def test_samples_are_read_as_they_were_written(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", make_calls(), {"machine": "a small one"})
    rows, machine = read(tmp_path / "t.parquet")
    assert machine == {"machine": "a small one"}
    assert rows.values(BOTH, "nfprobe, in-stack call", "ns a call") == [22.0, 24.0]
    assert list(map(repr, rows.samples)) == list(map(repr, make_calls()))  # not numbers are not equal


def test_a_table_has_medians_ratios_losses_and_reasons() -> None:
    table = document.calls(Rows(make_calls()))
    assert "Without probes a call takes 4.0 ns (4.0 .. 4.0)." in table
    assert "| nfprobe, in-stack call | running |  | 23.0 (22.5 .. 23.5; 1 of 3 dropped) | 1.1 |" in table
    assert "| XRay, basic |  |  | clang is not installed |  |" in table


def test_throughput_is_of_what_a_batch_takes_with_the_probes() -> None:
    name = forwarders.NAMES["macswap"]
    samples = [Sample(name, forwarders.NOTHING, forwarders.BATCH_NS, 0, 1600.0)]
    samples += [Sample(f"{name}, 1", forwarders.OURS, forwarders.ADDED_NS, 0, 400.0)]
    samples += [Sample(name, "1", forwarders.FUNCTIONS, 0, 1), Sample(name, "1", forwarders.CALLS, 0, 1.0)]
    samples += [Sample(name, "5", forwarders.FUNCTIONS, 0, 5), Sample(name, "5", forwarders.CALLS, 0, 5.5)]
    samples += [Sample(f"{name}, 5", forwarders.OURS, forwarders.ADDED_NS, 0, NO_FIGURE, "records were lost")]
    table = document.throughput(Rows(samples))
    assert "without probes 20.00 million packets a second" in table
    assert "| 1 | 1.0 | 16.00, -20.0%, +400 (+400 .. +400) |" in table
    assert "| 5 | 5.5 | records were lost | - |" in table
    assert "| 10 |" not in table
    assert "Open vSwitch: not measured." in table


def test_what_the_firewall_says_of_itself_gives_a_batch() -> None:
    said = '{"received": 64000, "seconds": 2.0, "busy_share": 0.5, "batch_sizes": {"32": 2000}}'
    assert firewall_rate.find_batch_ns(said) == 500_000.0


def test_latencies_are_of_the_packets_that_arrived() -> None:
    found = latency.summarise(np.array([0.0, 1000.0, 2000.0, 3000.0]))
    assert found == {latency.ARRIVED: 0.75, "us, p50": 2.0, "us, p90": 2.8, "us, p99": 2.98}
    assert latency.summarise(np.zeros(4))[latency.ARRIVED] == 0.0
    samples = [Sample("a, b", latency.NOTHING, figure, 0, value) for figure, value in found.items()]
    samples += [Sample("a, b", latency.OURS, figure, 0, value + 1) for figure, value in found.items()]
    assert "| nfprobe attach | 3.0 (3.0 .. 3.0) | 3.8 (3.8 .. 3.8) | 4.0 (4.0 .. 4.0) | +1.0" in document.latencies(
        Rows(samples)
    )


def test_a_density_that_adds_no_function_is_left_out() -> None:
    called = [forwarders.Called(str(number), Path("f"), 0, 1.0) for number in range(7)]
    assert {name: len(found) for name, found in forwarders.choose_by_density(called).items()} == {
        forwarders.ONE: 1,
        forwarders.FIVE: 5,
        forwarders.ALL: 7,
    }


def test_functions_that_run_once_a_batch_come_first() -> None:
    called = [forwarders.Called(str(calls), Path("f"), 0, calls) for calls in (32.0, 0.001, 1.1, 0.9, 2.0, 0.5)]
    assert [one.per_batch for one in forwarders.rank(called)] == [1.1, 0.9, 2.0, 0.5, 32.0]


def test_programs_that_do_not_work_as_before_are_named() -> None:
    before = coverage.Did(b"out", 0)
    outcomes = [
        coverage.find_outcome(before, after)
        for after in (
            coverage.Did(b"out", 0, 9),
            coverage.Did(b"out", None, 9),
            coverage.Did(b"tou", 0, 9),
            coverage.Did(b"out", 1, 9),
            coverage.Did(b"out", -11, 9),
            coverage.Did(b"", None, 0, "no function"),
        )
    ]
    names = ["", "", "other output", "exit status 1 instead of 0", "killed by signal 11", "no function"]
    assert outcomes == names
    samples = [
        Sample("sort", coverage.EVERY, coverage.FUNCTIONS, 0, 300),
        Sample("sort", "Frida", "functions probed", 0, 6),
    ]
    samples += [Sample("sort", "Frida", coverage.OUTCOME, 0, 0.0, "other output")]
    table = document.programs(Rows(samples))
    assert "| sort | 300 |  |  |  | 6, other output |" in table
    assert "| all | 300 | - | - | - | 6; 0 of 1 work |" in table


UFTRACE_REPORT = """   Self time       Calls  Function
  ==========  ==========  ====================
   11.460  s        3479  linux:schedule
    5.007  s        4869  linux:schedule (pre-empted)
  495.297 ms        9919  fw_classify
  197.408 ms           2  work
"""
PERF_REPORT = """# Samples: 2K of event 'cpu-clock'
    58.32%  [.] work                                -      -
     1.45%  [k] irqentry_exit_to_user_mode          -      -
    26.49%  [.] fw_classify                         -      -
"""


def test_what_tools_show_first_is_read_from_their_reports() -> None:
    assert culprit.read_uftrace(UFTRACE_REPORT) == ["fw_classify"]
    assert culprit.read_perf(PERF_REPORT) == ["work", "fw_classify"]
    causes = [
        {"kind": "burst", "function": None, "packets": 10},
        {"kind": "queue", "function": "fw_output", "packets": 990},
    ]
    assert culprit.read_causes({"causes": causes}) == ["fw_output", "burst"]


def test_a_culprit_that_is_not_first_has_its_place() -> None:
    names = ["work", "fw_classify", "fw_output"]
    assert culprit.describe_seen("work", "fw_output", names) == "work; fw_output is number 3"
    assert culprit.describe_seen("work", "work", names) == "work"
    assert culprit.describe_seen("work", "burst", names) == "work"
    fault = culprit.FAULTS[0]
    samples = [Sample(fault.name, culprit.PERF, culprit.FIGURE, number, 0.0, "work") for number in range(2)]
    assert f"{fault.name}: fw_output" in document.culprits(Rows(samples))
    assert "work (0 of 2)" in document.culprits(Rows(samples))


def test_calls_that_uftrace_kept_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "       Calls  Function\n  ==========  ====\n        8040  leaf10\n        4020  slot9\n           1  main\n"
    done = subprocess.CompletedProcess([], 0, said, "")
    monkeypatch.setattr(launched.subprocess, "run", lambda *words, **options: done)
    assert launched.count_uftrace(Path("data")) == 12060


def test_what_a_method_adds_to_a_message_is_of_rounds_beside_each_other() -> None:
    figure = "ns, p50"
    samples = [Sample(broker.CASE, broker.NONE, figure, number, value) for number, value in enumerate((10.0, 100.0))]
    samples += [Sample(broker.CASE, broker.FILE, figure, number, value) for number, value in enumerate((17.0, 107.0))]
    table = document.messages(Rows(samples))
    assert f"| {broker.FILE} | 62 (40 .. 84) | - | +7 (+7 .. +7) | +568 |" in table


def test_a_page_keeps_its_words_and_gets_the_tables_of_this_run() -> None:
    page = "words\n<!-- evaluation: calls -->\nold\n<!-- end of evaluation -->\nmore\n"
    filled = document.fill(page, {"call_cost": Rows(make_calls())}, {})
    assert filled.startswith("words\n<!-- evaluation: calls -->\nWithout probes")
    assert filled.endswith("<!-- end of evaluation -->\nmore\n")
    assert "old" not in filled
    assert document.NOT_MEASURED in document.fill(filled, {}, {})


def test_each_block_of_the_page_is_made_and_each_table_is_measured() -> None:
    blocks = set(document.BLOCK.findall((ROOT / "docs" / "evaluation.md").read_text()))
    assert blocks == {*document.TABLES, *document.FACTS}
    assert {source for source, _ in document.TABLES.values()} == set(command.TABLES)
    assert set(plots.DRAWN) == set(document.PICTURES)


def test_what_is_measured_with_is_installed_by_the_set_up() -> None:
    listed = re.search(r"evaluate_needs=\((.*?)\n\)", (ROOT / "scripts" / "set-up").read_text(), re.DOTALL)
    assert listed is not None
    packages = {line.split()[0] for line in re.findall(r'"([^"]+)"', listed[1])}
    assert {peer.package for peer in peers.PEERS if peer.package} <= packages | {"gcc"}


def test_a_peer_that_is_missing_says_so() -> None:
    absent = peers.Peer("a tool", "no-such-program-here", "no-such-package", ("no-such-program-here",))
    assert absent.find_missing() == "no-such-program-here is not installed: scripts/set-up evaluate"


def test_make_runs_it() -> None:
    said = subprocess.run(
        ["make", "-n", "-o", "evaluate-set-up", "evaluate", "evaluate-short"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "-m tests.evaluation --write" in said
    assert "-m tests.evaluation --short --output build/evaluation-short" in said
    assert "stage make evaluate-short\n" in (ROOT / ".ci" / "run").read_text()
