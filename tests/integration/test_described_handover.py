# SPDX-License-Identifier: Apache-2.0
"""A description says where a thread takes packets over: each packet has two batches, and the wait between them."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from otel_nfprobe.base.columns import TRANSMITTED, BatchFlag, Columns, concatenate, with_again
from otel_nfprobe.pipeline.pipeline import Pipeline, PipelineCounts
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import ROUND_RECORDS, RecordingFacts, read_facts, replay_steps
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PACKETS = 20_000
DESCRIPTION = {
    "name": "relay",
    "receive": [{"function": "relay:relay_receive", "pointers": 1, "requested": 2}],
    "take_over": [{"function": "relay:relay_take", "pointers": 1, "requested": 2, "queue": 0}],
    "transmit": [{"function": "relay:relay_transmit", "pointers": 1, "requested": 2}],
    "buffer": {"data": 0, "length": {"offset": 8, "bytes": 4}, "segment_length": {"offset": 12, "bytes": 2}},
    "functions": ["relay:relay_work"],
}


def start_relay(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], folder: Path
) -> Talker:
    """The program under the name that the description has."""
    shutil.copy(compile_target("relay"), folder / "relay")
    return Talker(spawn(folder / "relay", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def follow(recording: Path, round_records: int = ROUND_RECORDS) -> tuple[Columns, PipelineCounts, RecordingFacts]:
    """What became of each packet; columns of `round_records` are taken together, 0: as the session took them."""
    reader = RecordingReader(recording)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        steps = replay_steps(reader, facts, pipeline, round_records=round_records)
        columns = concatenate([step for step in steps if isinstance(step, Columns)])
        return columns, pipeline.counts(), facts


def test_each_packet_has_both_batches(
    nfprobe: Any, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    description, recording = tmp_path / "relay.yaml", tmp_path / "relay.nfprobe"
    description.write_text(yaml.safe_dump(DESCRIPTION))
    relay = start_relay(compile_target, spawn, tmp_path)
    words = ("--adapter", description, "--packets", "all", "--ring-size", "64MiB", "--record", recording, "--json")
    monitor = nfprobe.start("attach", relay.pid, *words)
    wait_until_armed(nfprobe, relay.pid, monitor)
    assert relay.ask(str(PACKETS)) == str(PACKETS)
    monitor.send_signal(signal.SIGINT)
    _, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors

    for round_records in (0, ROUND_RECORDS):
        check_handovers(*follow(recording, round_records))


def check_handovers(columns: Columns, counts: PipelineCounts, facts: RecordingFacts) -> None:
    assert counts.taken_over == PACKETS
    packets, batches, handovers = columns.packets, columns.batches, columns.handovers
    assert len(packets) == np.count_nonzero(packets["disposition"] == TRANSMITTED) == PACKETS
    assert np.array_equal(handovers["packet"], np.arange(PACKETS))
    is_taken = (batches["flags"] & BatchFlag.TAKEN_OVER) != 0
    assert [int(batches["size"][chosen].sum()) for chosen in (~is_taken, is_taken)] == [PACKETS, PACKETS]
    # The batch of a packet whose neighbours went with an earlier take stands among those that are given again.
    every = with_again(columns)
    taken = every.batches[every.handovers["batch"]]
    assert ((taken["flags"] & BatchFlag.TAKEN_OVER) != 0).all()
    assert (taken["start_ticks"] < packets["done_ticks"]).all()
    assert (packets["done_ticks"] <= taken["end_ticks"]).all()
    assert not set(batches["thread"][is_taken].tolist()) & set(batches["thread"][~is_taken].tolist())
    names = np.array([facts.functions[int(item)].name for item in columns.calls["function"]])
    worked = columns.calls[names == "relay_work"]
    assert np.array_equal(np.bincount(worked["batch"], minlength=len(batches)), np.where(is_taken, batches["size"], 0))
