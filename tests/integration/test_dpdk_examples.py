# SPDX-License-Identifier: Apache-2.0
"""DPDK's own examples, unmodified, with DPDK as libraries and linked in without a name: every packet is counted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters import dpdk
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.target.target import Target
from tests.support.dpdk_examples import BURST, Example, build_example, examples_are_installed, wait_until_said

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not examples_are_installed(), reason="DPDK's examples are not installed: scripts/set-up test"),
]

PACKETS = 5_000
HEADER_BYTES = 24  # of a capture file
L2FWD = ("-p", "3", "-q", "2", "-T", "0")
PIPELINE = """
mempool MEMPOOL0 buffer 2304 pool 8K cache 256 cpu 0
link LINK0 dev net_pcap0 rxq 1 128 MEMPOOL0 txq 1 512 promiscuous on
link LINK1 dev net_pcap1 rxq 1 128 MEMPOOL0 txq 1 512 promiscuous on
table action profile AP0 ipv4 offset 270 fwd
pipeline PIPELINE0 period 10 offset_port_id 0 cpu 0
pipeline PIPELINE0 port in bsz 32 link LINK0 rxq 0
pipeline PIPELINE0 port out bsz 32 link LINK1 txq 0
pipeline PIPELINE0 table match stub action AP0
pipeline PIPELINE0 port in 0 table 0
pipeline PIPELINE0 table 0 rule add match default action fwd port 0
thread 1 pipeline PIPELINE0 enable
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Example]]:
    started: list[Example] = []

    def run(program: Path, *options: str) -> Example:
        started.append(Example(program, tmp_path, f"nfe{os.getpid()}", options))
        return started[-1]

    yield run
    for example in started:
        example.stop()


def measure(
    nfprobe: Any, example: Example, capture: bytes, counters: tuple[int, int] = (PACKETS, PACKETS), *options: object
) -> dict[str, Any]:
    """Attaches to a program that waits for its first packet, and gives it all of them."""
    example.feed(capture[:HEADER_BYTES])
    example.wait_until_it_receives()
    monitor = nfprobe.start("attach", example.pid, "--trial", "0s", "--ring-size", "64MiB", *options, "--json")
    wait_until_said(monitor, "attached to")
    example.wait_until_open_calls_ended()
    example.feed(capture[HEADER_BYTES:])
    example.end_of_packets()
    example.wait_for_packets(*counters)
    summary: dict[str, Any] = nfprobe.end(monitor)
    return summary


def check(summary: dict[str, Any]) -> None:
    """Equal to the program's own counters; its first receive call began before there was a probe."""
    measured = PACKETS - BURST
    assert summary["packets"] == {"received": measured, "transmitted": PACKETS, "dropped": 0, "unknown": 0}
    assert summary["batches"] == -(-measured // BURST)
    assert not any(summary["records"]["lost"].values()), summary
    assert summary["not_restored"] == []


@pytest.mark.parametrize("name", ["l2fwd", "skeleton"])
def test_dpdk_as_libraries(
    name: str, nfprobe: Any, programs: Path, start: Callable[..., Example], capture: Callable[[int], Path]
) -> None:
    example = start(build_example(programs, name), *(L2FWD if name == "l2fwd" else ()))
    check(measure(nfprobe, example, capture(PACKETS).read_bytes()))


def test_a_pipeline_whose_functions_are_called_through_pointers(
    nfprobe: Any, programs: Path, start: Callable[..., Example], capture: Callable[[int], Path], tmp_path: Path
) -> None:
    script = tmp_path / "pipeline.cli"
    script.write_text(PIPELINE)
    example = start(build_example(programs, "ip_pipeline"), "-s", str(script), "-p", "0")
    check(measure(nfprobe, example, capture(PACKETS).read_bytes()))


def test_linked_in_and_stripped_without_an_exported_name(
    nfprobe: Any, programs: Path, start: Callable[..., Example], capture: Callable[[int], Path]
) -> None:
    named = build_example(programs, "l2fwd", static=True)
    stripped = programs / "stripped"
    subprocess.run(["strip", "-o", stripped, named], check=True)
    assert not [name for name in Module.from_file(stripped).image.exports if name.startswith("rte_")]
    example = start(stripped, *L2FWD)
    check(measure(nfprobe, example, capture(PACKETS).read_bytes()))
    target = Target(example.pid)
    table = dpdk.find_table(target)
    assert table.started() == [0, 1]
    assert "shape" in table.how
    assert table.address == target.modules()[0].base + _address_of(named, "rte_eth_fp_ops")


def _address_of(program: Path, name: str) -> int:
    text = subprocess.run(["nm", program], capture_output=True, text=True, check=True).stdout
    return next(int(line.split()[0], 16) for line in text.splitlines() if line.split()[-1] == name)
