# SPDX-License-Identifier: Apache-2.0
"""`nfprobe stats` on a function that sleeps for a known time, and what it answers where it cannot measure."""

from __future__ import annotations

import argparse
import re
from typing import Any

import pytest

from otel_nfprobe.base.errors import NfprobeError, RefusedError, UsageError
from otel_nfprobe.cli.stats import StatsCommand, choose_one
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.target("napping")]


def test_calls_of_a_known_length(nfprobe: Any, talker: Talker) -> None:
    monitor = nfprobe.start("stats", talker.pid, "nap", "--for", "300s", "--json")
    wait_until_armed(nfprobe, talker.pid, monitor)
    assert talker.ask("naps 1000") == str(100 * 2000)
    found = nfprobe.end(monitor)
    assert (found["count"], found["warm_up"]) == (1000 - 64, 64)
    assert sum(count for _, count in found["histogram"]) == found["count"]
    assert found["histogram"][-1][0] >= found["max_ns"]
    assert (
        found["min_ns"] <= found["p50_ns"] <= found["p90_ns"] <= found["p95_ns"] <= found["p99_ns"] <= found["max_ns"]
    )
    assert found["p50_ns"] < 2e6 <= found["p95_ns"]  # one of ten calls naps; kernels never wake too early
    naps = sum(count for upper, count in found["histogram"] if upper >= 2e6)
    assert naps >= 94  # six of them lie in the warm-up
    assert found["mean_ns"] >= 2e6 * 94 / 936
    assert found["mad_ns"] < 1e6
    assert 0 < found["resolution_ns"] < 1000
    assert found["counters"] == {}
    assert not any(found["lost"].values())
    assert talker.ask("naps 10") == "2000"


def test_text_for_people(nfprobe: Any, talker: Talker) -> None:
    answer = nfprobe.run("stats", talker.pid, "napping*:nap", "--for", "0.2s", "--counters", "auto")
    assert answer.returncode == 0, answer.stderr
    assert ":nap: 0 calls in" in answer.stdout
    told = [line for line in answer.stderr.splitlines() if "no performance counters, times only" in line]
    assert len(told) == 1 or "counters" in answer.stdout


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (["napping*:*"], UsageError, "functions: napping"),
        (["napping*:nap", "--strategy", "entry"], RefusedError, "only its entry can be probed"),
    ],
)
def test_what_cannot_be_measured(talker: Talker, words: list[str], kind: type[NfprobeError], sentence: str) -> None:
    parser = argparse.ArgumentParser()
    StatsCommand().prepare_parser(parser)
    arguments = parser.parse_args([str(talker.pid), *words])
    with pytest.raises(kind, match=re.escape(sentence)) as refused:
        choose_one(arguments, Target(talker.pid))
    assert refused.value.next_command
