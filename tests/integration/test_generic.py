# SPDX-License-Identifier: Apache-2.0
"""The generic adapter: turns of programs that nothing is known of, counted exactly and with their cause."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.adapters.described import DescribedAdapter
from otel_nfprobe.adapters.generic import GenericAdapter
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.columns import concatenate
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.linux.steal_time import StolenTime
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from otel_nfprobe.report.report import build_report
from otel_nfprobe.target.target import Target
from tests.support.firewall import fails
from tests.support.probed import Probed, Talker

pytestmark = [pytest.mark.integration, pytest.mark.target("turns"), pytest.mark.shared]

TURNS = 5_000
SLOW_TURNS = 50
THREAD_TURNS = 500

Start = Callable[..., subprocess.Popen[str]]


def write(folder: Path, text: str) -> Path:
    path = folder / "loop.yaml"
    path.write_text(text)
    return path


def test_turns_of_many_threads(compile_target: Callable[..., Path], spawn: Start, tmp_path: Path) -> None:
    """The program counts its own calls; of each thread's last turn nobody knows when it ended."""
    talker = Talker(spawn(compile_target("threads"), stdin=subprocess.PIPE))
    adapter = write(tmp_path, 'name: loop\nbatch: {function: "threads-*:two_steps"}\nfunctions: ["threads-*:step"]\n')
    with Probed(talker.pid, [], adapter, ring_bytes=1 << 20) as probed:
        assert talker.ask(f"many {THREAD_TURNS}") == "right"
    probed.assert_exact()
    own = int(talker.ask("calls"))
    assert own == 64 * THREAD_TURNS
    counts = probed.counts
    assert (counts.batches, counts.received, counts.transmitted, counts.unknown) == (own, own, own - 64, 64)
    assert probed.calls == {"two_steps": own, "step": 2 * own}


def test_a_slow_turn_has_its_cause(talker: Talker, nfprobe: Any, tmp_path: Path) -> None:
    recording, stolen = tmp_path / "turns.nfp", StolenTime()
    options = ["--batch-function", "turns-*:begin_turn", "--functions", "turns-*:quick", "--functions", "turns-*:slow"]
    monitor = nfprobe.start("attach", talker.pid, *options, "--record", recording, "--json")
    while "attached to" not in (line := monitor.stderr.readline()):
        assert line, "nfprobe has ended"
    assert talker.ask(f"run {TURNS}") == str(SLOW_TURNS)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert (summary["adapter"], summary["batches"]) == ("generic", TURNS + 1)
    assert 0 <= summary["stolen"]["ns"] <= stolen.describe()["ns"]
    assert summary["packets"] == {"received": TURNS + 1, "transmitted": TURNS, "dropped": 0, "unknown": 1}
    check_turns(recording)
    slowest = build_report(RecordingReader(str(recording)), SLOW_TURNS).document["packets"]["slowest"]
    causes = [(packet["cause"]["kind"], packet["cause"]["function"]) for packet in slowest]
    assert ("own", "slow") in causes, causes  # on a busy machine others are preempted for longer than slow takes
    assert ("own", "quick") not in causes, causes


def check_turns(recording: Path) -> None:
    """Turns follow each other without a gap, each with the calls that it made."""
    reader = RecordingReader(str(recording))
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(list(replay(reader, facts, pipeline)))
    batches = np.sort(columns.batches, order="start_ticks")
    assert (batches["start_ticks"][1:] == batches["end_ticks"][:-1]).all()
    slow = [i for i, name in enumerate(facts.function_names) if name == "slow"]
    with_slow = np.unique(columns.calls["batch"][columns.calls["function"] == slow[0]])
    assert len(with_slow) == SLOW_TURNS
    assert sorted(set(columns.batches["calls"].tolist())) == [1, 2, 3]


def test_wrong_use(talker: Talker, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    attach = "attach", talker.pid
    fails(capfd, 2, *attach, "--adapter", "generic", said="which function")
    fails(capfd, 2, *attach, "--adapter", "dpdk", "--batch-function", "turns-*:quick", said="--batch-function")
    fails(capfd, 2, *attach, "--adapter", "none", "--batch-function", "turns-*:quick", said="--batch-function")
    target = Target(talker.pid)
    with pytest.raises(UsageError, match="no_such_function"):
        GenericAdapter("turns-*:no_such_function").roles(target)
    with pytest.raises(UsageError, match="begins with the calls of one"):
        GenericAdapter("turns-*:*").roles(target)
    mixed = write(tmp_path, 'name: x\nbatch: {function: "a:b"}\nreceive: [{function: "a:c", pointers: 1}]\n')
    fails(capfd, 2, *attach, "--adapter", mixed, said="cannot stand beside batch.function")
    for text in ("batch: {function: 3}", "batch: {function: f, size: 1}", "batch: {function: ''}"):
        with pytest.raises(UsageError, match=r"batch"):
            DescribedAdapter.from_file(write(tmp_path, f"name: x\n{text}\n"))
    assert choose_adapter("auto", target) is None
