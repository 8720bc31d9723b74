# SPDX-License-Identifier: Apache-2.0
"""When packets can have arrived, as the polls bound it: compared with what the program wrote down itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from otel_nfprobe.base.columns import BatchFlag, Columns, concatenate, latency_ticks, life_start_ticks
from otel_nfprobe.causes.baseline import BatchSample
from otel_nfprobe.causes.latency_causes import CauseKind, find_causes
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import RecordingFacts, read_facts, replay

pytestmark = pytest.mark.integration

POLLS, FULL_POLLS, SATURATED_POLLS = 6000, 400, 256
SLOW_BATCHES, SLOW_TICKS, VICTIMS = 20, 20_000_000, 3
DESCRIPTION = {
    "name": "queues",
    "receive": [{"function": "MODULE:nf_receive", "pointers": 1, "requested": 2, "queue": 0}],
    "transmit": [{"function": "MODULE:nf_transmit", "pointers": 1, "requested": 2}],
    "buffer": {"data": 0, "length": {"offset": 8, "bytes": 4}},
}


class Poll(NamedTuple):
    queue: int
    before: int
    after: int
    returned: int
    asked: int
    arrival: int


class Measured(NamedTuple):
    polls: list[Poll]
    columns: Columns
    facts: RecordingFacts


@pytest.fixture(scope="module")
def measured(compile_target: Callable[..., Path], nfprobe: Any, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("queues")
    binary = compile_target("queues", "-rdynamic")
    description, log, recording = folder / "queues.yaml", folder / "log", folder / "queues.nfp"
    description.write_text(yaml.safe_dump(DESCRIPTION).replace("MODULE", binary.name))
    options = (
        "--packets",
        "all",
        "--adapter",
        description,
        "--record",
        recording,
        "--ring-size",
        "64MiB",
        "--functions",
        "nf_work",
    )
    done = nfprobe.run("run", *options, "--", binary, log, folder / "pcap", POLLS, FULL_POLLS, SLOW_BATCHES)
    assert done.returncode == 0, done.stderr
    polls = [Poll(*map(int, line.split())) for line in log.read_text().splitlines()]
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        return Measured(polls, concatenate(replay(reader, facts, pipeline)), facts)


def test_bounds_are_those_of_each_queue(measured: Measured) -> None:
    polls, columns, _ = measured
    batches = columns.batches[columns.batches["start_ticks"].argsort()]
    assert len(batches) == sum(poll.returned > 0 for poll in polls)
    emptied: dict[int, Poll] = {}
    full: dict[int, int] = {}
    saturated = 0
    rows = iter(batches)
    for poll in polls:
        short = poll.returned < poll.asked
        if poll.returned:
            batch = next(rows)
            assert poll.before <= batch["start_ticks"] <= poll.after
            earliest, bound = int(batch["earliest_ticks"]), emptied.get(poll.queue)
            is_saturated = bound is None or full.get(poll.queue, 0) >= SATURATED_POLLS
            assert bool(batch["flags"] & BatchFlag.SATURATED) == is_saturated
            if is_saturated:
                saturated += 1
                assert earliest == batch["start_ticks"]
            else:
                assert bound is not None
                assert bound.before <= earliest <= bound.after
                assert earliest < poll.arrival < batch["start_ticks"]
        full[poll.queue] = 0 if short else full.get(poll.queue, 0) + 1
        if short:
            emptied[poll.queue] = poll
    assert saturated > FULL_POLLS - SATURATED_POLLS
    assert len(set(batches["queue"])) == 3


def test_latency_counts_from_the_bound(measured: Measured) -> None:
    columns = measured.columns
    batches, packets = columns.batches[columns.packets["batch"]], columns.packets
    assert (life_start_ticks(columns) == batches["earliest_ticks"]).all()
    assert (latency_ticks(columns) == packets["done_ticks"] - batches["earliest_ticks"]).all()


def test_victims_of_a_slow_batch_are_seen(measured: Measured) -> None:
    columns = measured.columns
    last = columns.batches["start_ticks"].argsort()[-2 * SLOW_BATCHES :]  # slow, its victims, slow, ...
    victims = last[1::2]
    packets = np.flatnonzero(np.isin(columns.packets["batch"], victims))
    assert len(packets) == SLOW_BATCHES * VICTIMS
    assert (latency_ticks(columns)[packets] > SLOW_TICKS).all()
    sample = BatchSample()
    sample.add(columns)
    blamed = np.repeat(last[0::2], VICTIMS)
    packets = packets[np.argsort(columns.packets["receive_ticks"][packets], kind="stable")]
    causes = find_causes(columns, packets, sample.baseline())
    assert (causes["kind"] == CauseKind.QUEUE).all()
    assert (causes["batch"] == blamed).mean() > 0.9  # a busy machine can hold up another one for longer
    function = measured.facts.function_names.index("nf_work")
    assert (causes["function"] == function).mean() > 0.5
    told = find_causes(columns, packets, sample.baseline(), measured.facts.switches)
    assert set(told["kind"]) <= {CauseKind.QUEUE, CauseKind.PREEMPTION, CauseKind.UNKNOWN}
