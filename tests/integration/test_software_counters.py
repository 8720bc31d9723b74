# SPDX-License-Identifier: Apache-2.0
"""Software counters of a target's threads, against what the kernel says of them in /proc."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.cli.doctor import describe_machine
from otel_nfprobe.counters.choice import choose_counters
from tests.integration.test_testpmd import wait_until_armed
from tests.support.probed import Probed, Talker, wait_until
from tests.support.testpmd import Testpmd

pytestmark = [pytest.mark.integration, pytest.mark.target("napping")]


def switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def test_switches_are_those_of_the_kernel(talker: Talker) -> None:
    before = switches(talker.pid)
    probed = Probed(talker.pid, ["napping*:nap"])
    probed.monitor.software_counters = choose_counters("context-switches,page-faults,task-clock").software
    with probed:
        talker.ask("naps 10")
        found = probed.monitor.software
        assert wait_until(lambda: any(total["tid"] == talker.pid for total in found.totals()))
        begun = switches(talker.pid)
        talker.ask("naps 500")
        ended = switches(talker.pid)
    (total,) = (total for total in found.totals() if total["tid"] == talker.pid)
    assert ended - begun >= 50
    assert ended - begun <= total["context-switches"] <= switches(talker.pid) - before
    assert total["task-clock"] > 0


def has_no_pmu() -> bool:
    return not list(Path("/sys/bus/event_source/devices").glob("cpu*"))


def test_testpmd_with_whatever_there_is(nfprobe: Any, start_testpmd: Callable[..., Testpmd]) -> None:
    """One sentence where there are no counters, software counters all the same, exit status 0."""
    testpmd = start_testpmd("net_null0")
    testpmd.command("start")
    words = ["--trial", "0", "--packets", "none", "--counters", "auto,task-clock", "--json"]
    monitor = nfprobe.start("attach", testpmd.pid, *words)
    wait_until_armed(nfprobe, testpmd.pid, monitor)
    before = testpmd.counters()[0]
    assert wait_until(lambda: testpmd.counters()[0] > before + 1000)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    assert summary["packets"]["received"] > 1000
    assert all(set(thread) == {"tid", "task-clock"} for thread in summary["counters"].get("threads", []))
    if has_no_pmu():
        assert errors.count("no performance counters, times only: there is no performance monitoring unit") == 1
        assert "names" not in summary["counters"]


def test_asked_for_by_name(nfprobe: Any, talker: Talker) -> None:
    """An error before the target is touched."""
    if not has_no_pmu():
        pytest.skip("this machine can count")
    maps = Path(f"/proc/{talker.pid}/maps").read_text()
    refused = nfprobe.run("attach", talker.pid, "--functions", "napping*:nap", "--counters", "cycles")
    assert refused.returncode == 1
    assert "no performance monitoring unit" in refused.stderr
    assert "next: nfprobe doctor" in refused.stderr
    assert Path(f"/proc/{talker.pid}/maps").read_text() == maps
    assert "no performance monitoring unit" in describe_machine()["performance counters"]["value"]
