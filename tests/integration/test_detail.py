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
from test_arrival_bounds import DESCRIPTION

from otel_nfprobe.columns import BatchFlag, CallFlag, Columns, concatenate
from otel_nfprobe.detail import ONE_IN
from otel_nfprobe.pipeline import Pipeline
from otel_nfprobe.recording import RecordingReader
from otel_nfprobe.replay import RecordingFacts, read_facts, replay

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


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
def test_the_right_batches_are_detailed(
    compile_target: Callable[..., Path], nfprobe: Any, tmp_path: Path, strategy: str
) -> None:
    binary = compile_target("queues", "-rdynamic")
    (tmp_path / "queues.yaml").write_text(yaml.safe_dump(DESCRIPTION).replace("MODULE", binary.name))
    options = ("--adapter", tmp_path / "queues.yaml", "--record", tmp_path / "nfp", "--ring-size", "64MiB")
    options += ("--functions", "nf_work", "--functions", "nf_poll", "--detail", "auto", "--slower-than", "3ms")
    words = (binary, tmp_path / "log", tmp_path / "pcap", 6000, 50, 10)
    done = nfprobe.run("run", *options, "--strategy", strategy, "--json", "--", *words)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stderr.splitlines()[-1])
    assert summary["unpaired"] == {"entries": 0, "exits": 0}
    assert summary["ungated"] > 0  # nf_poll is around the receive call
    reader = RecordingReader(tmp_path / "nfp")
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(replay(reader, facts, pipeline))
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
