# SPDX-License-Identifier: Apache-2.0
"""A chain of programs that nobody here wrote: dpdk-testpmd sends to Open vSwitch.

Faults are put into either and logged; the log is compared with what is said of late packets. What the machine does
besides is not judged.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.report.views.why_table import render_why
from otel_nfprobe.report.why import ChainAnalysis, WhyRequest, analyse_chain, build_why
from tests.support.ovs_dpdk import OvsDpdk
from tests.support.wired_chain import (
    FIRST,
    SECOND,
    ChainVerdict,
    Fault,
    OtherHost,
    WiredChain,
    judge,
    pause,
    take_cpu,
)

# On a busy machine attaching to both takes minutes, and few late packets are those of the faults.
pytestmark = [pytest.mark.integration, pytest.mark.long]

TESTPMD = shutil.which("dpdk-testpmd")
RIGHT_SHARE = 0.95
JUDGED_MIN = 50
JOINED_SHARE = 0.999
SKEW_NS = 3_000_000_000
Inject = Callable[[WiredChain, str, float, int], list[Fault]]


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[WiredChain]:
    if TESTPMD is None or not OvsDpdk.is_installed():
        pytest.skip("dpdk-testpmd or Open vSwitch with DPDK is not installed")
    running = WiredChain(TESTPMD, tmp_path)
    yield running
    running.stop()


def measure(chain: WiredChain, inject: Inject, nf: str, seconds: float) -> tuple[dict[str, Path], ChainVerdict]:
    chain.sender.start()
    paths = chain.attach()
    faults = inject(chain, nf, seconds, 1)
    chain.detach()
    return paths, judge(paths, faults, WhyRequest())


def check(verdict: ChainVerdict) -> None:
    print(verdict)
    assert verdict.covered >= JUDGED_MIN
    assert verdict.right >= RIGHT_SHARE * verdict.covered, verdict


def test_what_took_the_processor_of_the_first_is_found_through_the_second(chain: WiredChain) -> None:
    paths, verdict = measure(chain, take_cpu, FIRST, 10.0)
    readers = [RecordingReader(paths[nf]) for nf in (SECOND, FIRST)]
    check_joined(analyse_chain(readers, WhyRequest()))
    document = build_why(readers, WhyRequest())
    assert document["ways"][0]["way"] == [FIRST, SECOND]
    assert all(one["ambiguous"] == 0 for one in document["recordings"])
    assert document["joined"]["impossible"] == document["joined"]["inconsistent"] == 0
    assert all(clock["is_same"] for clock in document["clocks"])
    check(verdict)
    check_skewed(paths, document)


def check_joined(analysis: ChainAnalysis) -> None:
    """All that the second received came from the first, in the time that both recorded."""
    second, first = (recording.hops for recording in analysis.recordings)
    joined = np.zeros(len(second), bool)
    joined[analysis.ways.joined.row[analysis.ways.joined.recording == 0]] = True
    both = (second["begin_ns"] > first["done_ns"].min()) & (second["receive_ns"] < first["done_ns"].max())
    assert both.sum() > 1000
    assert joined[both].mean() > JOINED_SHARE


def check_skewed(paths: dict[str, Path], document: dict[str, Any]) -> None:
    """The second function's clock is wrong: that is found from the packets, and that they go one way only is said."""
    readers = [RecordingReader(paths[FIRST]), OtherHost(paths[SECOND], SKEW_NS)]
    skewed = build_why(readers, WhyRequest())
    assert skewed["ways"][0]["way"] == [FIRST, SECOND]
    assert skewed["joined"]["packets"] == document["joined"]["packets"]
    own, other = skewed["clocks"]
    assert own["is_same"]
    assert not other["is_same"]
    assert other["error_ns"] is None  # nothing came back
    # What the fastest packet took from one to the other counts as nothing.
    assert -document["ways"][0]["latency_ns"]["p50"] <= other["offset_ns"] + SKEW_NS <= 0
    assert "packets go only one way" in render_why(skewed)


@pytest.mark.parametrize("nf", [FIRST, SECOND])
@pytest.mark.parametrize("inject", [pause, take_cpu])
def test_faults_in_either_function(chain: WiredChain, inject: Inject, nf: str) -> None:
    _, verdict = measure(chain, inject, nf, 10.0)
    check(verdict)
