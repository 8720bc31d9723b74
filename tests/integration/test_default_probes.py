# SPDX-License-Identifier: Apache-2.0
"""Default probes: a trial finds the functions that work on packets, and leaves nothing behind in the session."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters.dpdk import DpdkAdapter
from otel_nfprobe.monitor import trial
from otel_nfprobe.monitor.probe_candidates import FOREIGN_LIBRARIES
from otel_nfprobe.monitor.trial import Trial
from otel_nfprobe.target.target import Target
from tests.support.dpdk_examples import Example, build_example, examples_are_installed, wait_until_said
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]

COUNT = 2_000  # the trial goes on for a second after the first of them
FLUSH = "rte_eth_tx_buffer_flush"  # of l2fwd: once for each full buffer, around the transmit call


@pytest.fixture(scope="module")
def l2fwd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_example(tmp_path_factory.mktemp("examples"), "l2fwd")


@pytest.fixture
def forwarder(l2fwd: Path, tmp_path: Path, capture: Callable[[int], Path]) -> Iterator[Example]:
    """l2fwd at full speed, without any name of its own."""
    stripped = tmp_path / "stripped"
    subprocess.run(["strip", "-o", stripped, l2fwd], check=True)
    example = Example(stripped, tmp_path, f"nft{os.getpid()}", ("-p", "3", "-q", "2", "-T", "0"), capture(1024))
    try:
        example.wait_until_it_forwards()
        yield example
    finally:
        example.stop()


def places(l2fwd: Path, name: str) -> set[int]:
    """Where nm says that functions of this name, or copies of it, are in the program before it was stripped."""
    text = subprocess.run(["nm", l2fwd], capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in text.splitlines()]
    return {int(words[0], 16) for words in lines if words[-1] == name or words[-1].startswith(f"{name}.")}


def try_it(pid: int, seconds: float = 1.0) -> trial.Found:
    return Trial(Target(pid), DpdkAdapter(), (), None, False, 16 << 20, threading.Event()).run(seconds)


def test_it_finds_what_runs_between_receive_and_transmit(forwarder: Example, l2fwd: Path) -> None:
    target = Target(forwarder.pid)
    code = [module for module in target.modules() if module.path == target.executable]
    before = [target.read(start, end - start) for module in code for start, end in module.executable_ranges]
    found = try_it(forwarder.pid)
    assert found.batches > 0
    chosen = {function.offset for function in found.chosen if function.module.name == "stripped"}
    assert chosen & places(l2fwd, FLUSH)
    assert not any(function.module.name.startswith(FOREIGN_LIBRARIES) for function in found.chosen)
    roles = {role.address for role in DpdkAdapter().roles(target)}
    assert not roles & {function.address for function in found.chosen}
    assert found.calls * found.batches > 0
    assert before == [target.read(start, end - start) for module in code for start, end in module.executable_ranges]


def test_without_the_kernels_help_a_small_program_is_tried_as_a_whole(
    forwarder: Example, l2fwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "see_running", lambda *_: None)
    found = try_it(forwarder.pid)
    assert {function.offset for function in found.chosen if function.module.name == "stripped"} & places(l2fwd, FLUSH)


def test_attach_with_nothing_else(nfprobe: Any, forwarder: Example, l2fwd: Path) -> None:
    done = nfprobe.run("attach", forwarder.pid, "--for", "0.5s", "--packets", "none", "--json")
    assert done.returncode == 0, done.stderr
    assert any(f"stripped+{place:#x}" in done.stderr for place in places(l2fwd, FLUSH)), done.stderr
    assert " ns a batch" in done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["functions"]["probed"] > 2
    assert summary["calls"] > 2 * summary["batches"] > 0
    assert summary["not_restored"] == []


def test_what_comes_during_the_trial_is_not_in_the_session(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    testpmd = start_testpmd(pcap_device(capture(COUNT)), mode="csum")
    words = ("attach", testpmd.pid, "--trial", "120s", "--ring-size", "64MiB", "--json")
    monitor = nfprobe.start(*words)
    wait_until_tried(nfprobe, testpmd.pid, monitor)
    assert nfprobe.run("status", testpmd.pid).returncode == 1  # not the session's probes
    testpmd.command("start")
    testpmd.wait_for_packets(COUNT)
    assert "batches of" in wait_until_said(monitor, "nfprobe: trial:")
    wait_until_said(monitor, "attached to")
    summary = nfprobe.end(monitor)
    assert summary["packets"] == {"received": 0, "transmitted": 0, "dropped": 0, "unknown": 0}
    assert summary["batches"] == summary["calls"] == 0
    assert summary["not_restored"] == []


def wait_until_tried(nfprobe: Any, pid: int, monitor: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while "trial" not in [state["state"] for state in json.loads(nfprobe.run("status", pid, "--json").stdout)]:
        assert monitor.poll() is None, monitor.communicate()
        assert time.monotonic() < deadline


def test_no_packets_no_choice(
    nfprobe: Any, capture: Callable[[int], Path], start_testpmd: Callable[..., Testpmd]
) -> None:
    pid = start_testpmd(pcap_device(capture(7))).pid
    done = nfprobe.run("attach", pid, "--trial", "0.2s", "--for", "0.1s")
    assert "trial: no packets arrived" in done.stderr
    assert "2 functions probed" in done.stderr
    for options in (("--trial", "0s"), ("--functions", "librte_net_pcap*:*")):
        done = nfprobe.run("attach", pid, "--for", "0.1s", *options)
        assert done.returncode == 0, done.stderr
        assert "trial" not in done.stderr
