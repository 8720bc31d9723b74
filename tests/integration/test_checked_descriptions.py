# SPDX-License-Identifier: Apache-2.0
"""Descriptions that point to nowhere, on a real program: the probe finds out, says so, and the program works on."""

from __future__ import annotations

import copy
import errno
import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from otel_nfprobe.probes.preflight import check_target
from otel_nfprobe.target.target import Target
from tests.integration.test_testpmd import wait_until_armed
from tests.support.filters import answer, forbid_only
from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.rooms import Room

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PROCESS_VM_READV = 310


def test_the_program_works_on(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    firewall = start_firewall(50_000)
    description = copy.deepcopy(yaml.safe_load(DESCRIPTION.read_text()))
    description["receive"][0]["pointers"] = 0  # the port, not what it received
    description["transmit"][0]["pointers"] = 2  # a number
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(description))
    options = ("--adapter", path, "--packets", "all", "--functions", "fw_transmit")
    monitor: subprocess.Popen[str] = nfprobe.start("attach", firewall.pid, *options, "--json")
    wait_until_armed(nfprobe, firewall.pid, monitor)
    assert monitor.stderr is not None
    line = next(line for line in monitor.stderr if "switched off" in line)
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 1, errors
    summary = json.loads(output.splitlines()[-1])
    found = summary["functions"]["switched_off"]
    assert any(sentence in line for sentence in found.values())
    assert len(found) == 2
    assert all(re.search("can be read|cannot be read|have a length", sentence) for sentence in found.values())
    assert summary["packets"]["received"] == 0
    firewall.assert_restored()


def test_offsets_that_lead_nowhere(nfprobe: Any, start_firewall: Callable[..., Firewall], tmp_path: Path) -> None:
    """The pointer to a packet's bytes, or its length, is something else: one sentence, and nothing is counted."""
    firewall = start_firewall(50_000)
    for key, value in (("data", 32), ("length", {"offset": 0, "bytes": 4})):
        description = copy.deepcopy(yaml.safe_load(DESCRIPTION.read_text()))
        description["buffer"][key] = value
        path = tmp_path / f"{key}.yaml"
        path.write_text(yaml.safe_dump(description))
        monitor = nfprobe.start("attach", firewall.pid, "--adapter", path, "--functions", "fw_transmit", "--json")
        said = next(line for line in monitor.stderr if "switched off" in line)
        monitor.send_signal(signal.SIGINT)
        output, errors = monitor.communicate(timeout=120)
        assert monitor.returncode == 1, errors
        summary = json.loads(output.splitlines()[-1])
        assert (summary["packets"]["received"], summary["identified"]["packets"]) == (0, 0)
        assert re.search("what would be a packet, at 0x.*, cannot be read|a packet would have a length", said), said
    firewall.assert_restored()


def test_where_memory_cannot_be_checked(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    path = forbid_only(tmp_path / "filter", PROCESS_VM_READV, answer(errno.EPERM))
    target = Target(Room(spawn, [compile_target("where"), path]).pid)
    assert target.may_check_memory
    check_target(target)
    assert not target.may_check_memory
