# SPDX-License-Identifier: Apache-2.0
"""--detail auto: which batches' inner functions are timed, compared with the rule applied to the same recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from otel_nfprobe.base.columns import BatchFlag, CallFlag, Columns, concatenate
from otel_nfprobe.monitor.detail import ONE_IN
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay
from tests.integration.test_arrival_bounds import DESCRIPTION

pytestmark = pytest.mark.integration

AFTER_SLOW, SLOW_NS = 16, 3_000_000


def expected(columns: Columns, facts: RecordingFacts) -> list[bool]:
    """Whether each batch is to be detailed, in the order of time."""
    slow_ticks = facts.make_clock().find_ticks(SLOW_NS)
    ends = np.zeros(len(columns.batches), np.uint64)
    handed = columns.calls[(columns.calls["flags"] & CallFlag.TRANSMIT) != 0]
    np.maximum.at(ends, handed["batch"], handed["end_ticks"])
    order = columns.batches["start_ticks"].argsort()
    found, left, turn, age = [], 0, 0, 0
    for row in order:
        batch = columns.batches[row]
        wanted = bool(batch["flags"] & BatchFlag.FULL)
        left = AFTER_SLOW if age > slow_ticks else left
        wanted, left = wanted or left > 0, max(left - 1, 0)
        turn += 1
        if turn == ONE_IN:
            wanted, turn = True, 0
        found.append(wanted)
        age = int(ends[row]) - int(batch["earliest_ticks"])
    return found


def measure(
    nfprobe: Any, binary: Path, folder: Path, *more: str, polls: int = 6000
) -> tuple[dict[str, Any], Columns, RecordingFacts]:
    """A run of tests/targets/queues.c with `--detail auto`: its summary, and what was recorded."""
    (folder / "queues.yaml").write_text(yaml.safe_dump(DESCRIPTION).replace("MODULE", binary.name))
    options = ("--adapter", folder / "queues.yaml", "--record", folder / "nfp", "--ring-size", "64MiB")
    options += ("--functions", "nf_work", "--functions", "nf_poll", "--detail", "auto", *more)
    done = nfprobe.run("run", *options, "--json", "--", binary, folder / "log", folder / "pcap", polls, 50, 10)
    assert done.returncode == 0, done.stderr
    reader = RecordingReader(folder / "nfp")
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return json.loads(done.stderr.splitlines()[-1]), concatenate(replay(reader, facts, pipeline)), facts


def test_after_the_slowest(compile_target: Callable[..., Path], nfprobe: Any, tmp_path: Path) -> None:
    """The age that the monitor tells moves, so what is asked is that the batches behind the slowest are detailed, and
    that those behind quick ones are not. Batches that are detailed in any case, as their poll came back full, say
    nothing of that. The run is many times as long as the monitor takes to tell the first age."""
    binary = compile_target("queues", "-rdynamic")
    _, columns, _ = measure(nfprobe, binary, tmp_path, "--slowest", "1%", polls=60_000)
    order = columns.batches["start_ticks"].argsort()
    batches, ends = columns.batches[order], np.zeros(len(order), np.uint64)
    handed = columns.calls[(columns.calls["flags"] & CallFlag.TRANSMIT) != 0]
    np.maximum.at(ends, handed["batch"], handed["end_ticks"])
    ages = (ends[order].astype(np.int64) - batches["earliest_ticks"].astype(np.int64))[:-1]
    detailed = (batches["flags"] & BatchFlag.UNDETAILED) == 0
    asked = (batches["flags"][1:] & BatchFlag.FULL) == 0
    asked[: len(asked) // 2] = False
    slowest = asked & (ages >= np.quantile(ages[asked], 0.99))
    quick = asked & (ages < np.median(ages[asked]))
    assert detailed[1:][slowest].mean() > 0.5 > detailed[1:][quick].mean()


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
def test_the_right_batches_are_detailed(
    compile_target: Callable[..., Path], nfprobe: Any, tmp_path: Path, strategy: str
) -> None:
    binary = compile_target("queues", "-rdynamic")
    summary, columns, facts = measure(nfprobe, binary, tmp_path, "--slower-than", "3ms", "--strategy", strategy)
    assert summary["unpaired"] == {"entries": 0, "exits": 0}
    assert summary["ungated"] > 0  # nf_poll is around the receive call
    detailed = (columns.batches["flags"] & BatchFlag.UNDETAILED) == 0
    order = columns.batches["start_ticks"].argsort()
    assert detailed[order].tolist() == expected(columns, facts)
    assert 0.02 < detailed.mean() < 0.9
    work = columns.calls["function"] == facts.function_names.index("nf_work")
    timed = np.zeros(len(columns.batches), np.int64)
    np.add.at(timed, columns.calls["batch"][work], 1)
    assert (timed == detailed).all()
    assert summary["packets"]["received"] == columns.batches["size"].sum()
    document = json.loads(nfprobe.run("report", tmp_path / "nfp", "--json").stdout)
    assert document["batches"]["undetailed"] == np.count_nonzero(~detailed)
    (function,) = [row for row in document["functions"] if row["name"] == "nf_work"]
    assert function["calls"] == np.count_nonzero(detailed)
    assert function["min_ns"] > 0
