# SPDX-License-Identifier: Apache-2.0
"""A double of VPP, stripped, in two layouts: every call and every vector of its graph nodes, against its own counts."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.adapters.base import CALL, COMMAND, DEQUEUE, DROP, HAND_OVER, HOLD, RECEIVE, TRANSMIT
from otel_nfprobe.adapters.vpp import VppAdapter
from otel_nfprobe.adapters.vpp_graph import INPUT, INTERNAL, read_graph
from otel_nfprobe.base.columns import concatenate
from otel_nfprobe.base.errors import NfprobeError, RefusedError
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import function_at
from otel_nfprobe.probes.analysis import FunctionPlan, _Ladder
from otel_nfprobe.probes.follow import Follower
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.recording.nodes import NUMBER_SHIFT
from otel_nfprobe.target.target import Target
from tests.support.probed import Probed, Talker, keep_calls, wait_until
from tests.support.vpp_double import RELEASES

pytestmark = [pytest.mark.integration, pytest.mark.shared]

COUNT = 20_000
ROLES = {"receive": RECEIVE, "transmit": TRANSMIT, "drop": DROP, "node": CALL}
Counts = dict[str, tuple[int, int]]  # calls and vectors of each node


@pytest.fixture
def start_double(doubles: dict[int, Path], spawn: Callable[..., Any]) -> Callable[[int], Talker]:
    return lambda release: Talker(spawn(doubles[release], stdin=subprocess.PIPE))


def own_counts(double: Talker) -> Counts:
    lines = [line.split() for line in double.ask("counters").split(";") if line]
    return {name: (int(calls), int(vectors)) for name, calls, vectors in lines}


def grown(double: Talker, before: Counts) -> Counts:
    return {
        name: (calls - before[name][0], vectors - before[name][1])
        for name, (calls, vectors) in own_counts(double).items()
    }


def addresses_of(double: Talker) -> dict[str, int]:
    """The function that runs for each node that was called."""
    pairs = [line.split() for line in double.ask("addresses").split(";") if line]
    return {name: int(address) for name, address in pairs}


def code_of(pid: int) -> tuple[Module, int, bytes]:
    """The program's module, and where its code is in memory, and the code."""
    target = Target(pid)
    program = target.modules()[0]
    ((low, high),) = program.executable_ranges
    return program, low, target.read(low, high - low)


def changed_functions(pid: int, code: bytes) -> set[int]:
    """Addresses of the program's functions whose code is not as it was; padding between them is none."""
    program, low, changed = code_of(pid)
    places = [low + place for place, (one, other) in enumerate(zip(code, changed, strict=True)) if one != other]
    functions = [function_at(program, place - program.base) for place in places]
    return {function.address for function in functions if function is not None}


class Kept(Probed):
    """As Probed, and keeps calls and vectors of each function, and of each node of functions that nodes share."""

    def __enter__(self) -> Kept:
        super().__enter__()
        self.kept = keep_calls(self.monitor)
        return self

    def node_counts(self) -> Counts:
        nodes = {node.index: node.name for node in read_graph(self.target).nodes}
        names, roles = self.monitor.attachment.names_by_id(), self.monitor.attachment.roles_by_id()
        calls: Counter[str] = Counter()
        vectors: Counter[str] = Counter()
        for row in concatenate(self.kept).calls:
            number, value = int(row["function"]), int(row["value"])
            node = value >> NUMBER_SHIFT if roles[number] != RECEIVE else 0
            name = nodes[node] if node else names[number]
            calls[name] += 1
            vectors[name] += value & 0xFFFF
        calls["pg-input"] += sum(thread.empty_polls for thread in self.threads)
        return {name: (calls[name], vectors[name]) for name in calls}


@pytest.mark.parametrize("release", RELEASES)
def test_every_call_and_vector(release: int, start_double: Callable[[int], Talker]) -> None:
    double = start_double(release)
    assert double.ask("1000") == "1000 received 936 transmitted 64 dropped"
    before, code = own_counts(double), code_of(double.pid)[2]
    running = addresses_of(double)
    assert len(running) == len(before) == (13 if release == 2606 else 12)
    with Kept(double.pid, [], Path("vpp"), ring_bytes=16 << 20) as probed:
        # Processes, pre-input nodes and all others are as they were.
        assert changed_functions(double.pid, code) == {running[name] for name in running if name != "unix-epoll-input"}
        transmitted, dropped = (int(word) for word in double.ask(str(COUNT)).split()[2::2])
    probed.assert_exact()
    (thread,) = [thread for thread in probed.threads if thread.received]
    assert thread.received == probed.counts.received == COUNT
    assert (thread.transmitted, thread.dropped) == (transmitted - 936, dropped - 64)
    assert thread.transmitted + thread.dropped == COUNT
    assert code_of(double.pid)[2] == code
    own = grown(double, before)
    del own["unix-epoll-input"]
    if release != 2606:
        pairs = own.pop("tap0-tx"), own.pop("tap1-tx")
        own["tap0-tx/tap1-tx"] = pairs[0][0] + pairs[1][0], pairs[0][1] + pairs[1][1]
    assert probed.node_counts() == own


def test_auto_says_what_it_is(nfprobe: Any, start_double: Callable[[int], Talker]) -> None:
    double = start_double(2606)
    double.ask("1000")
    said = nfprobe.run("doctor", double.pid).stdout
    assert "adapter: vpp\n" in said
    assert "adapter vpp: libvlib.so exports vlib_global_main, which leads to VPP's graph nodes\n" in said
    assert "pg-input receive" in said


@pytest.mark.parametrize("release", RELEASES)
def test_what_each_node_is(release: int, start_double: Callable[[int], Talker]) -> None:
    double = start_double(release)
    target, adapter = Target(double.pid), VppAdapter()
    with pytest.raises(NfprobeError, match=r"No input node .* has been called yet"):
        adapter.roles(target)
    double.ask("1000")
    found = {role.label: role for role in adapter.roles(target)}
    drops = ["drop drop", "error-drop node"] if release == 2606 else ["error-drop drop"]
    expected = ["pg-input receive", "tap0-tx/tap1-tx transmit", "ip4-drop/ip6-drop node", "ip4-lookup node", *drops]
    assert set(expected) <= found.keys()
    between_threads = {"frame queues hand over", "frame queues take over"} if release == 2606 else set()
    between_threads |= {"barrier sync", "barrier release", "command line"}
    assert between_threads <= found.keys()
    found = {label: role for label, role in found.items() if label not in between_threads}
    assert len(found) == (10 if release == 2606 else 9)
    assert all(role.role == ROLES[label.split()[-1]] for label, role in found.items())
    assert all(bool(role.snippet) == (role.role == CALL) for role in found.values())
    assert found["ip4-lookup node"].address == addresses_of(double)["ip4-lookup"]  # a variant, not what was registered
    assert any("never probed: startup-config-process, dhcp-client-process" in note for note in adapter.notes(target))


@pytest.mark.parametrize("release", RELEASES)
def test_nodes_that_were_called_before_vpp_summed_its_counts_up_are_known(
    release: int, start_double: Callable[[int], Talker]
) -> None:
    double = start_double(release)
    target = Target(double.pid)
    double.ask("1000")
    counted = {node.name: (node.calls, node.vectors) for node in read_graph(target).nodes}
    expected = [role.label for role in VppAdapter().roles(target)]
    assert double.ask("sum") == "summed up"
    assert own_counts(double) == {}
    assert {node.name: (node.calls, node.vectors) for node in read_graph(target).nodes} == counted
    assert [role.label for role in VppAdapter().roles(target)] == expected


def test_nodes_that_read_no_packets_need_no_capture_program(
    start_double: Callable[[int], Talker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otel_nfprobe.probes.probe_selection.PROGRAM_COUNT", 7)
    double = start_double(2606)
    double.ask("1000")
    choice = choose(Target(double.pid), VppAdapter(), [], [])
    assert (len(choice.roles), len(choice.plans)) == (15, 15)
    assert {role.role for role in choice.readers()} == {RECEIVE, TRANSMIT, DROP, HOLD, COMMAND, HAND_OVER, DEQUEUE}
    assert sum(bool(request.snippet) for request in choice.requests()) == 7


@pytest.mark.parametrize("what", ["names", "functions", "indexes", "runtimes"])
def test_an_implausible_layout_is_refused(what: str, start_double: Callable[[int], Talker]) -> None:
    double = start_double(2606)
    double.ask("1000")
    assert double.ask(f"spoil {what}") == "spoiled"
    with pytest.raises(
        RefusedError, match=r"vlib_global_main of process \d+ \(vpp\) leads to .*; its layout is not known"
    ):
        VppAdapter().roles(Target(double.pid))
    double.ask(f"spoil {what}")
    assert VppAdapter().roles(Target(double.pid))


def test_new_nodes_are_looked_for_with_nearly_each_look_at_the_target(
    start_double: Callable[[int], Talker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cheap: a node that runs for the first time should not wait for half a second."""
    double = start_double(2606)
    double.ask("1000")
    done = Counter[str]()
    for owner, name in ((Follower, "look"), (VppAdapter, "later_roles")):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *words, n=name, f=plain: done.update([n]) or f(*words))
    with Kept(double.pid, [], Path("vpp"), ring_bytes=4 << 20):
        assert wait_until(lambda: done["look"] >= 12)
    assert done["later_roles"] >= done["look"] // 2


def test_what_nodes_run_is_judged_before_they_do(
    start_double: Callable[[int], Talker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that runs for the first time does not wait until all code of its module was looked at."""
    double = start_double(2606)
    double.ask("1000")
    graph = read_graph(Target(double.pid))
    judged = set[int]()
    plan = _Ladder.plan

    def record(ladder: _Ladder, strategy: str | None) -> FunctionPlan:
        judged.add(ladder.function.address)
        return plan(ladder, strategy)

    monkeypatch.setattr(_Ladder, "plan", record)
    (late,) = [node for node in graph.nodes if node.name == "late-node"]
    unfit = {address for node in graph.nodes if node.type not in (INTERNAL, INPUT) for address in node.functions}
    with Kept(double.pid, [], Path("vpp"), ring_bytes=4 << 20) as probed:
        probed_before = len(probed.monitor.attachment.probes)
        assert wait_until(lambda: set(late.functions) <= judged)
        assert len(probed.monitor.attachment.probes) == probed_before
    assert unfit
    assert not unfit & judged


def test_a_node_that_is_called_later(start_double: Callable[[int], Talker]) -> None:
    double = start_double(2606)
    double.ask("1000")
    with Kept(double.pid, [], Path("vpp"), ring_bytes=4 << 20) as probed:
        double.ask("late")
        double.ask("1")  # its one call is over when its probe is made
        assert wait_until(lambda: any("late-node" in text for text in probed.said))
        before = own_counts(double)
        double.ask("1000")
        counts = grown(double, before)["late-node"]
    probed.assert_exact()
    assert probed.node_counts()["late-node"] == counts > (0, 0)
