# SPDX-License-Identifier: Apache-2.0
"""Counters on a real forwarder where no processor can count: the same probes as without.

That `--counters auto` says one sentence there is in test_software_counters.py; test_ovs_adapter.py measures Open
vSwitch with it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.cli.session_options import find_counters
from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.monitor.summary import summarise
from otel_nfprobe.probes.calibration import empty_function
from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.probes.probe_selection import Choice, choose
from otel_nfprobe.target.target import Target
from tests.support.testpmd import Testpmd

pytestmark = pytest.mark.integration


class Session:
    """A short session.

    Attributes:
        code: what was executable in the target meanwhile: its own code with the sites, and the trampolines.
    """

    def __init__(self, target: Target, choice: Choice, counters: tuple[Counter, ...]) -> None:
        self.said: list[str] = []
        monitor = Monitor(Attachment(target, choice, 1 << 20, self.said.append), NONE)
        monitor.counters = counters
        monitor.attachment.attach()
        monitor.start(Clock.start(), None, None)
        monitor.run(0.3, lambda: None)
        self.code = {
            f"{mapping.path}@{mapping.start:#x}": target.read(mapping.start, mapping.end - mapping.start)
            for mapping in target.maps()
            if "x" in mapping.permissions and not mapping.path.startswith("[")
        }
        monitor.detach()
        self.summary = summarise(monitor)
        monitor.attachment.close()


def test_auto_changes_nothing(start_testpmd: Callable[..., Testpmd], capsys: pytest.CaptureFixture[str]) -> None:
    if find_refusal(choose_counters("auto")) is None:
        pytest.skip("this machine can count")
    testpmd = start_testpmd("net_null0")
    testpmd.command("start")
    target = Target(testpmd.pid)
    check_target(target)
    chosen = choose(target, choose_adapter("dpdk", target), [], [])
    plain = Session(target, chosen, ())
    counters = find_counters(argparse.Namespace(counters="auto"))
    auto = Session(target, chosen, counters.hardware)
    assert capsys.readouterr().err.count("no performance counters, times only: ") == 1
    assert auto.said == plain.said
    assert auto.summary["counters"] == {}
    assert auto.summary["functions"]["probed"] > 0
    assert auto.code == plain.code
    # Counters of the kernel, which no processor counts: the code is the same.
    counted = Session(target, chosen, choose_counters("task-clock").counters)
    assert counted.summary["counters"]["names"] == ["task-clock"]
    # Behind them, where functions that do nothing are called to calibrate, something else was left.
    differing = [place for place, code in counted.code.items() if code != plain.code.get(place)]
    assert len(differing) <= 1
    for place in differing:
        room = plain.code[place].index(empty_function())
        assert counted.code[place][:room] == plain.code[place][:room]
