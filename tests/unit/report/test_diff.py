# SPDX-License-Identifier: Apache-2.0
"""What `nfprobe diff` says of recordings whose times were drawn here: what stands out, and that chance does not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.base.columns import COST, Columns
from otel_nfprobe.cli.main import main
from otel_nfprobe.pipeline.absences import AbsenceFlag
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.recording.sessionfacts import FunctionInfo, ThreadInfo
from otel_nfprobe.report.diff import SLICES_MAX, TimeSlices, build_diff
from tests.support.absences import make_switches
from tests.support.marks import in_parts
from tests.support.synthetic_records import RECEIVE, TRANSMIT, Row, entry, leave, poll, records

RX, OUTER, INNER, TX, EXTRA = range(5)
NAMES = ("nf_rx", "nf_outer", "nf_inner", "nf_tx", "nf_extra")
ROLES = (RECEIVE, 0, 0, TRANSMIT, 0)
SIZE, BATCHES = 8, 1000
GAP_TICKS = 40_000


class Nf:
    """A made-up NF: batches of SIZE packets, nf_inner inside nf_outer; two ticks are a ns.

    Args:
        inner: usual ticks of nf_inner.
        slow: every how many batches nf_inner takes 50 times as long; 0: never.
        away: every how many batches the scheduler takes the thread away inside nf_inner; 0: never.
        receives: whether nf_rx is known to receive.
    """

    def __init__(
        self, seed: int, inner: int = 2000, slow: int = 0, away: int = 0, extra: bool = False, receives: bool = True
    ) -> None:
        self.rows: list[Row] = []
        self.absences: list[tuple[int, int, int, int]] = []
        self.own = 0
        self._receives = receives
        rng, at = random.Random(seed), 1_000_000
        for number in range(BATCHES):
            work = round(rng.gauss(inner, inner / 10)) * (50 if slow and number % slow == slow - 1 else 1)
            self.own += work
            if away and number % away == away - 1:
                self.absences.append((at + 700, at + 700 + GAP_TICKS, 0, AbsenceFlag.PREEMPTED))
                work += GAP_TICKS
            self.rows += self._batch(at, work, extra)
            at += work + GAP_TICKS

    def _batch(self, at: int, work: int, extra: bool) -> list[Row]:
        rows = poll(RX, at, at + 400, 0x900, SIZE) if self._receives else []
        rows += [entry(OUTER, at + 500, 0x800), entry(INNER, at + 600, 0x700)]
        rows += [leave(INNER, at + 600 + work, 0x700), leave(OUTER, at + 900 + work, 0x800)]
        if extra:
            rows += [entry(EXTRA, at + 910 + work, 0x800), leave(EXTRA, at + 950 + work, 0x800)]
        return [*rows, entry(TX, at + 1000 + work, 0x800), leave(TX, at + 1300 + work, 0x800)]

    def write(self, path: Path, names: Sequence[str] = NAMES) -> str:
        writer = RecordingWriter(path, RecordingHeader("0.1.0", "0" * 16, 42, "/bin/nf", "here", 0, 2e9, {}, {}))
        roles = ROLES if self._receives else (0,) * len(ROLES)
        writer.functions(
            [
                FunctionInfo(id, roles[id], "/bin/nf", 64 * id, 64, names[id], "symbol", "in-stack")
                for id in range(len(names))
            ]
        )
        writer.threads([ThreadInfo(0, 4711, "worker")])
        writer.clock(np.array([(0, 10**18, (1 << 32) // 2)], dtype=ANCHOR))
        for part in range(4):
            writer.records(0, records(self.rows[len(self.rows) * part // 4 : len(self.rows) * (part + 1) // 4]))
        writer.absences(make_switches(self.absences))
        writer.finish({})
        return str(path)


def compare(folder: Path, a: Nf, b: Nf, **options: Any) -> dict[str, Any]:
    return build_diff(a.write(folder / "a.nfprobe"), b.write(folder / "b.nfprobe"), **options)


def stand_out(diff: dict[str, Any]) -> list[tuple[str, str]]:
    return [(function["name"], function["stands_out"]) for function in diff["functions"] if function["stands_out"]]


@in_parts(5)
def test_chance_does_not_stand_out(tmp_path: Path, part: int) -> None:
    for seed in (4 * part, 4 * part + 2):
        assert stand_out(compare(tmp_path, Nf(seed), Nf(seed + 1))) == []


def test_a_rare_slow_call_is_chance_when_both_have_it(tmp_path: Path) -> None:
    assert stand_out(compare(tmp_path, Nf(1, slow=90), Nf(2, slow=90))) == []


@pytest.mark.parametrize("inner", [1500, 2500])
def test_a_usual_change_is_found_and_said(tmp_path: Path, inner: int, capsys: pytest.CaptureFixture[str]) -> None:
    diff = compare(tmp_path, Nf(1), Nf(2, inner))
    assert stand_out(diff) == [("nf_inner", "usual")]
    first = diff["functions"][0]
    assert first["usual_change_ns"] == pytest.approx((inner - 2000) / 2 / SIZE, rel=0.1)
    assert first["a"]["self_ns_per_unit"] == pytest.approx(Nf(1).own / 2 / SIZE / BATCHES, rel=0.01)
    assert first["a"]["calls"] == BATCHES
    assert stand_out(compare(tmp_path, Nf(1), Nf(2, inner), at_least=0.4)) == []
    assert main(["diff", str(tmp_path / "a.nfprobe"), str(tmp_path / "b.nfprobe")]) == 0
    said = capsys.readouterr().out
    assert "nf_inner usually takes 3" in said
    assert ("more per packet" if inner > 2000 else "less per packet") in said


def test_few_calls_that_are_far_slower_are_found(tmp_path: Path) -> None:
    diff = compare(tmp_path, Nf(1), Nf(2, slow=40))
    assert stand_out(diff) == [("nf_inner", "mean")]
    assert diff["functions"][0]["change_ns"] == pytest.approx(2000 * 49 / 40 / 2 / SIZE, rel=0.2)


def test_the_scheduler_is_not_blamed_on_a_function(tmp_path: Path) -> None:
    assert stand_out(compare(tmp_path, Nf(1), Nf(2, away=3))) == []


def test_functions_in_one_recording_only(tmp_path: Path) -> None:
    diff = compare(tmp_path, Nf(1, extra=True), Nf(2))
    assert [function["name"] for function in diff["only_a"]] == ["nf_extra"]
    assert diff["only_b"] == []
    assert {function["name"] for function in diff["functions"]} == set(NAMES[:4])


def test_functions_are_known_by_their_names_and_not_by_their_ids(tmp_path: Path) -> None:
    a, b = Nf(1), Nf(2)
    moved = {INNER: EXTRA, EXTRA: INNER}
    b.rows = [(word, tag & ~0xFF | moved.get(tag & 0xFF, tag & 0xFF), rsp) for word, tag, rsp in b.rows]
    names = [NAMES[moved.get(id, id)] for id in range(len(NAMES))]
    diff = build_diff(a.write(tmp_path / "a.nfprobe"), b.write(tmp_path / "b.nfprobe", names))
    assert {function["name"] for function in diff["functions"]} == set(NAMES[:4])
    assert stand_out(diff) == []


def test_without_packets_time_is_the_unit(tmp_path: Path) -> None:
    diff = compare(tmp_path, Nf(1, receives=False), Nf(2, 3000, receives=False))
    assert diff["unit"] == "ms"
    assert stand_out(diff)[0] == ("nf_inner", "usual")


def test_slices_hold_all_of_it_however_long(tmp_path: Path) -> None:
    nf = Nf(3, slow=40)
    reader = RecordingReader(nf.write(tmp_path / "a.nfprobe"))
    facts = read_facts(reader)
    slices = TimeSlices(np.zeros(len(NAMES), COST), facts.absences)
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            for begin in range(0, len(columns.batches), 100):  # as many takes
                batches = columns.batches[begin : begin + 100]
                calls = columns.calls[np.isin(columns.calls["batch"], np.arange(begin, begin + 100))].copy()
                calls["parent"] -= np.where(calls["parent"] < 1 << 31, columns.batches["first_call"][begin], 0)
                slices.add(Columns(calls, batches))
    assert slices.own_ticks[INNER].sum() == nf.own
    assert slices.packets.sum() == SIZE * BATCHES
    assert slices.calls[INNER].sum() == slices.calls[OUTER].sum() == BATCHES
    assert slices.own_ticks[OUTER].sum() == 400 * BATCHES
    assert SLICES_MAX / 2 <= slices.used() <= SLICES_MAX


def test_probe_costs_are_taken_off(tmp_path: Path) -> None:
    nf = Nf(3)
    reader = RecordingReader(nf.write(tmp_path / "a.nfprobe"))
    facts = read_facts(reader)
    slices = TimeSlices(np.array([(10, 30)] * len(NAMES), COST), facts.absences)
    with Pipeline(facts.roles) as pipeline:
        for columns in replay(reader, facts, pipeline):
            slices.add(columns)
    assert slices.own_ticks[INNER].sum() == nf.own - 10 * BATCHES
    assert slices.own_ticks[OUTER].sum() == (400 - 10 - 20) * BATCHES


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    diff = compare(tmp_path, Nf(1), Nf(2))
    for words in (["--json"], ["--format", "json"]):
        assert main(["diff", str(tmp_path / "a.nfprobe"), str(tmp_path / "b.nfprobe"), *words]) == 0
        assert json.loads(capsys.readouterr().out) == diff


def test_what_is_no_recording_or_empty_or_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = Nf(1).write(tmp_path / "good.nfprobe")
    (tmp_path / "text").write_text("no recording\n" * 20)
    empty = Nf(1)
    empty.rows = []
    for bad, word in (("missing", "missing"), ("text", "text"), (empty.write(tmp_path / "empty"), "no calls")):
        assert main(["diff", good, str(tmp_path / bad)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert word in captured.err
        assert "next: " in captured.err
    content = Path(good).read_bytes()
    (tmp_path / "cut").write_bytes(content[:-40])
    assert main(["diff", good, str(tmp_path / "cut")]) == 0
    captured = capsys.readouterr()
    assert "nf_inner" in captured.out
    assert captured.err.startswith("nfprobe: The recording ")
