# SPDX-License-Identifier: Apache-2.0
"""Probes that cost more than they may are taken out, the others stay; the target is as it was."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.probes.patch import text_digests
from otel_nfprobe.target.target import Target
from tests.support.firewall import DESCRIPTION
from tests.support.probed import wait_until

pytestmark = pytest.mark.integration

# Calls one function of Debian's zlib as often as it can, another one fifty times a second.
PROGRAM = """
import time, zlib
due = 0.0
print("ready", flush=True)
while True:
    for _ in range(1000):
        zlib.crc32(b"")
    if time.monotonic() > due:
        due = time.monotonic() + 0.02
        time.sleep(0.0001)
        zlib.adler32(b"")
"""
FUNCTIONS = ("--functions", "libz.so*:crc32*", "--functions", "libz.so*:adler32*")


@pytest.fixture
def busy(spawn: Callable[..., subprocess.Popen[str]]) -> int:
    process = spawn("/usr/bin/python3", "-c", PROGRAM, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process.pid


def run_until_thinned(pid: int, *options: str) -> tuple[dict[str, Any], str]:
    """The summary of a session that is ended once it has said something of its budget, and what it said."""
    words = [
        sys.executable,
        "-m",
        "otel_nfprobe",
        "attach",
        str(pid),
        "--json",
        "--adapter",
        "none",
        *FUNCTIONS,
        *options,
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as session:
        try:
            assert session.stderr is not None
            said = next((line for line in session.stderr if "of a core, more than" in line), "")
            if "ends" not in said:
                assert wait_until(lambda: "no longer probed" in said, 60)
                session.terminate()
            return json.loads(session.communicate(timeout=120)[0].splitlines()[-1]), said
        finally:
            session.kill()


def test_what_costs_most_loses_its_probe(busy: int, nfprobe: Any) -> None:
    target = Target(busy)
    modules = target.modules()
    before = text_digests(target, modules)
    summary, said = run_until_thinned(busy, "--max-share-of-core", "0.1%")
    assert summary["budget"]["thinned"] >= 1
    assert summary["budget"]["exceeded"] is False
    assert "crc32" in said
    assert "adler32" not in said
    assert summary["not_restored"] == []
    assert text_digests(target, modules) == before
    again = nfprobe.json("attach", busy, "--adapter", "none", *FUNCTIONS, "--for", "0.2s")
    assert again["calls"] > 0


def test_a_session_whose_budget_cannot_be_kept_ends(
    nfprobe: Any, firewall_binary: Path, spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    firewall = spawn(firewall_binary, "--rate", "20000", stdout=subprocess.DEVNULL)
    options = ["--adapter", DESCRIPTION, "--trial", "0s", "--max-share-of-core", "0.0001%", "--for", "120s"]
    summary = nfprobe.json("attach", firewall.pid, *options)
    assert summary["budget"]["exceeded"] is True
    assert summary["seconds"] < 100
    assert summary["packets"]["received"] > 0
    assert summary["not_restored"] == []
    assert firewall.poll() is None
