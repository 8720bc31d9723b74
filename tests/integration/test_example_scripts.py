# SPDX-License-Identifier: Apache-2.0
"""The example scripts, run as a person runs them; what they name is compared with what the programs know themselves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dpdk_examples import examples_are_installed

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SLOW_US = 300_000  # longer than anything that other work on the machine does to the firewall
FUNCTIONS = ("receive", "parse", "classify", "count", "transmit", "output", "drop")


def run_script(script: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / script), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def read_standstills(folder: Path) -> tuple[int, int]:
    """Ticks of the shortest fault, and the longest that anything else kept the firewall, by its own log."""
    rows = [line.split() for line in (folder / "faults.log").read_text().splitlines()]
    ticks = {kind: [int(row[2]) - int(row[1]) for row in rows if row[0] == kind] for kind, *_ in rows}
    return min(ticks["output"]), max(ticks.get("preempted", []) + ticks.get("unknown", []), default=0)


@pytest.mark.integration
def test_the_packet_before_is_found(tmp_path: Path) -> None:
    words = ["--packets", 12_000, "--rate", 20_000, "--slow-every", 190, "--slow-us", SLOW_US, "--folder", tmp_path]
    done = run_script("queue-propagation/queue_propagation.py", *words)
    # Batches are numbered from 0 by the firewall and from 1 by nfprobe.
    slow = {1 + int(line.split()[0]) for line in (tmp_path / "outputs.log").read_text().splitlines()}
    culprits = json.loads((tmp_path / "culprits.json").read_text())
    blamed = {(culprit["function"], culprit["batch"]) for culprit in culprits if culprit["excess_ns"] > 500 * SLOW_US}
    right = {culprit for culprit in blamed if culprit[0] == "fw_output" and culprit[1] in slow}
    fault, other = read_standstills(tmp_path)
    assert right or other > fault, (culprits[:5], slow, done.stdout + done.stderr)
    assert blamed == right or other > fault / 2, (blamed, slow)

    table = done.stdout.split("Figure 13")[0]
    rows = {line.split()[0]: line.split()[1:] for line in table.splitlines() if line.startswith("fw_")}
    assert set(rows) == {f"fw_{name}" for name in FUNCTIONS}
    assert rows["fw_parse"][0] == rows["fw_classify"][0] == rows["fw_count"][0]
    assert "12,000 packets in " in table
    if right and blamed == right:
        figure = done.stdout.split("Figure 13")[1]
        assert done.returncode == 0
        assert "packet 13:   fw_output" in figure
        assert f"{culprits[0]['batch']}, packet 13's, fw_output took " in figure
        assert (tmp_path / "firewall.html").stat().st_size > 1000


@pytest.mark.long
@pytest.mark.integration
def test_packets_of_a_flow_back_to_back_are_faster(tmp_path: Path) -> None:
    if not examples_are_installed():
        pytest.skip("dpdk-doc or pkg-config is not installed: scripts/set-up test")
    done = run_script("locality/locality.py", "--slf", 1, 64, "--rounds", 1, "--folder", tmp_path)
    assert done.returncode == 0, done.stderr
    apart, together = json.loads((tmp_path / "locality.json").read_text())
    for row in (apart, together):
        assert 0.95 * 3000 * 64 < row["packets"] <= 3000 * 64  # the last ones may still be in a buffer of libpcap
        assert row["lookup"].startswith("rte_acl_classify_")
    assert together["work_ns"] < apart["work_ns"]
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [words[0] for words in lines if words and words[0].isdigit()] == ["1", "64"]
