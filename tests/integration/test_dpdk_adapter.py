# SPDX-License-Identifier: Apache-2.0
"""The DPDK adapter on a real, stripped testpmd: the live table, by its symbol and by its shape."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters import dpdk
from otel_nfprobe.adapters.base import FREE, RECEIVE, TRANSMIT, RoleFunction
from otel_nfprobe.adapters.installed import choose_adapter
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.base.strategies import IN_STACK_CALL
from otel_nfprobe.elf.elftables import Symbol
from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.probes.analysis import plan_functions
from otel_nfprobe.target.target import Target
from tests.support.dpdk_examples import wait_until_said
from tests.support.testpmd import Testpmd, pcap_device

pytestmark = pytest.mark.integration

Start = Callable[..., Testpmd]


@pytest.fixture
def testpmd(start_testpmd: Start, capture: Callable[[int], Path]) -> Testpmd:
    return start_testpmd(pcap_device(capture(7)))


def _symbol_address(target: Target) -> int:
    """Where nm says that the program's own copy of the table is."""
    program = target.modules()[0]
    text = subprocess.run(
        ["readelf", "--wide", "--dyn-syms", f"/proc/{target.pid}/exe"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line.split() for line in text.splitlines() if "rte_eth_fp_ops" in line)
    return program.base + int(line[1], 16)


def _ports(target: Target) -> list[RoleFunction]:
    return [role for role in dpdk.DpdkAdapter().roles(target) if role.role != FREE]


def test_the_live_table_is_the_programs_copy(testpmd: Testpmd) -> None:
    target = Target(testpmd.pid)
    table = dpdk.find_table(target)
    assert table.address == _symbol_address(target)
    assert len(table.receive) == 32
    assert table.started() == [0]


def test_roles(testpmd: Testpmd) -> None:
    target = Target(testpmd.pid)
    adapter = choose_adapter("auto", target)
    assert adapter is not None
    assert adapter.name == "dpdk"
    found = adapter.roles(target)
    roles = {role.role: role for role in found}
    assert [role.role for role in found][:2] == [RECEIVE, TRANSMIT]
    assert {role.role for role in found[2:]} == {FREE}
    assert roles[RECEIVE].label == "net_pcap receive, port 0"
    for role in (roles[RECEIVE], roles[TRANSMIT]):
        assert role.program["count_mask"] == 0xFFFF
        (function,) = find_functions(target, [role.name.replace("+", ":")])
        assert function.address == role.address
        assert plan_functions([function], target)[0].strategy == IN_STACK_CALL


def test_the_shape_finds_the_same_table_as_the_symbol(testpmd: Testpmd) -> None:
    target = Target(testpmd.pid)
    (found,) = dpdk._tables_by_shape(target, target.modules())
    assert replace(found, how="") == replace(dpdk.find_table(target), how="")


def test_stripped_of_its_symbol_the_table_is_found_by_shape(testpmd: Testpmd, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(testpmd.pid)
    expected = dpdk.find_table(target).address
    monkeypatch.setattr(dpdk, "_definitions", lambda modules, table, library: iter(()))
    table = dpdk.find_table(target)
    assert table.address == expected
    assert "shape" in table.how


def test_a_table_in_no_known_layout_is_refused(testpmd: Testpmd, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(testpmd.pid)
    program = target.modules()[0]
    elsewhere = _symbol_address(target) - program.base + 24
    moved = Symbol(elsewhere, 4096, dpdk.TABLE_SYMBOL, 1, 0, "dynsym")
    monkeypatch.setattr(dpdk, "_definitions", lambda modules, table, library: iter([(program, moved)]))
    with pytest.raises(RefusedError, match="not supported"):
        dpdk.find_table(target)


def test_a_stopped_port_is_no_port(testpmd: Testpmd) -> None:
    target = Target(testpmd.pid)
    testpmd.command("port stop 0", "Done")
    with pytest.raises(NfprobeError, match="No port") as error:
        dpdk.DpdkAdapter().roles(target)
    assert error.value.next_command == f"nfprobe attach {testpmd.pid}"
    testpmd.command("port start 0", "Done")
    assert len(_ports(target)) == 2


@pytest.mark.parametrize(("flags", "how"), [(("-rdynamic",), "symbol"), (("-s",), "shape")])
def test_the_layout_of_2111(
    flags: tuple[str, ...], how: str, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    process = spawn(compile_target("ethdev_table", *flags))
    assert process.stdout is not None
    address, receive, transmit = (int(word, 16) for word in process.stdout.readline().split())
    table = dpdk.find_table(Target(process.pid))
    assert table.address == address
    assert how in table.how
    assert table.started() == [3]
    assert (table.receive[3], table.transmit[3]) == (receive, transmit)


def test_a_port_that_is_started_while_it_is_measured(nfprobe: Any, testpmd: Testpmd) -> None:
    monitor = nfprobe.start("attach", testpmd.pid, "--trial", "0s", "--packets", "none", "--json")
    wait_until_said(monitor, "attached to")
    testpmd.command("port attach net_null0,no-rx=0", "Done")
    testpmd.command("port start 1", "Done")
    wait_until_said(monitor, "2 more functions receive or transmit now")
    testpmd.command("start")
    testpmd.wait_for_packets(7)
    testpmd.command("stop", "Done")
    monitor.send_signal(signal.SIGINT)
    output, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    summary = json.loads(output.splitlines()[-1])
    ports = [testpmd.telemetry(port) for port in (0, 1)]
    counters = [sum(numbers) for numbers in zip(*ports, strict=True)]
    assert counters[0] > 7
    assert [summary["packets"][word] for word in ("received", "transmitted")] == counters
    assert summary["not_restored"] == []


def test_other_drivers(start_testpmd: Start) -> None:
    target = Target(start_testpmd("net_null0").pid)
    labels = [role.label for role in _ports(target)]
    assert labels == ["net_null receive, port 0", "net_null transmit, port 0"]


def test_a_process_without_dpdk(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    process = spawn("sleep", "60")
    target = Target(process.pid)
    assert dpdk.DpdkAdapter().recognise(target) is None
    with pytest.raises(RefusedError, match="exports no rte_eth_fp_ops"):
        dpdk.find_table(target)
