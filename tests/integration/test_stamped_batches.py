# SPDX-License-Identifier: Apache-2.0
"""`--packets slow` on a busy network function that stamps arrivals: a batch is as old as its first packet's stamp says.

Its queue is seldom seen empty, so the polls alone would say that nearly everything waited for long.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.base.columns import life_start_ticks
from otel_nfprobe.pipeline.sampling import find_population
from tests.support.culprit import Found, Truth

pytestmark = pytest.mark.integration

DESCRIPTION = Path(__file__).resolve().parents[2] / "examples" / "firewall" / "firewall.yaml"
SLOWER_THAN_NS = 1_000_000
STALL_US = 3000


@pytest.fixture
def busy(firewall_binary: Path, tmp_path: Path) -> Any:
    """A firewall whose worker is busy for a third of its time, and stalls now and then."""
    words = [firewall_binary, "--rate", "100000", "--slow-us", STALL_US, "--slow-every", "500"]
    words += ["--faults", tmp_path / "faults"]
    process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    yield process
    process.terminate()
    process.wait(timeout=60)


def measure(nfprobe: Any, busy: subprocess.Popen[bytes], folder: Path, *options: object) -> Found:
    recording = folder / "busy.nfprobe"
    words = ("attach", busy.pid, "--adapter", DESCRIPTION, "--for", "3s", "--record", recording, *options)
    done = nfprobe.run(*words)
    assert done.returncode == 0, done.stderr
    busy.terminate()
    busy.wait(timeout=60)
    return Found(recording, Truth.read(folder / "faults", None))


def test_what_is_identified_is_what_was_old(nfprobe: Any, busy: subprocess.Popen[bytes], tmp_path: Path) -> None:
    found = measure(nfprobe, busy, tmp_path, "--slower-than", f"{SLOWER_THAN_NS}ns")
    columns, clock = found.columns, found.facts.make_clock()
    stamped = columns.batches["arrival_ticks"] != 0
    assert stamped.mean() > 0.5  # the rest arrived while the call that received them was running
    assert (columns.batches["arrival_ticks"] <= columns.batches["start_ticks"]).all()

    # By the calls that handed packets on, and by what was read of the packets.
    population = find_population(columns)
    assert population is not None
    oldest = np.zeros(len(columns.batches), np.int64)
    np.maximum.at(oldest, population.batch, population.latency_ticks)
    slower_than_ticks = clock.find_ticks(SLOWER_THAN_NS)
    identified = np.bincount(columns.packets["batch"], minlength=len(oldest)) > 0
    assert (oldest > slower_than_ticks).sum() > 20
    # What identifying other packets took is not their age (native/probe/late.c).
    assert identified[oldest > 1.1 * slower_than_ticks].mean() > 0.95
    assert not identified[(oldest < 0.99 * slower_than_ticks) & (oldest > 0)].any()
    starts = life_start_ticks(columns)
    first = (columns.packets["index"] == 0) & stamped[columns.packets["batch"]]
    assert first.any()
    assert (starts[first] == columns.batches["arrival_ticks"][columns.packets["batch"][first]]).all()

    # The firewall's own log: of every stall during the session packets are identified.
    done = columns.packets["done_ticks"].astype(np.int64)
    end = int(columns.batches["end_ticks"].max())
    stalls = [stall for stall in found.truth.faults["output"] if stall[0] > found.begin and stall[1] < end]
    assert len(stalls) > 3
    for start, stop in stalls:
        late = (
            (starts.astype(np.int64) < stop) & (done > stop) & (done - starts.astype(np.int64) > 0.5 * (stop - start))
        )
        assert late.any(), f"no packet of the stall at {start}"


def test_latencies_of_all_count_from_stamps(nfprobe: Any, busy: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """With no option, too."""
    found = measure(nfprobe, busy, tmp_path)
    report = json.loads(nfprobe.run("report", tmp_path / "busy.nfprobe", "--format", "json").stdout)
    packets, batches = report["packets"], found.columns.batches
    stamped = batches["arrival_ticks"] != 0
    assert packets["latency_from"]["stamp"] > 0.8 * packets["received"]
    assert batches["size"][stamped].sum() >= packets["latency_from"]["stamp"]
    assert packets["latency_from"]["capture"] == 0
