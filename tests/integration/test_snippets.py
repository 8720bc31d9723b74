# SPDX-License-Identifier: Apache-2.0
"""Snippets in running targets: exact values, every register as it was, nothing run where nothing is recorded."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_nfprobe.arch.snippet import read_capture
from otel_nfprobe.base.clock import Clock
from otel_nfprobe.base.columns import CallFlag, Columns, concatenate
from otel_nfprobe.base.errors import UsageError
from otel_nfprobe.base.strategies import GOT_SLOT, IN_STACK_CALL, RELOCATED_BODY
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.pipeline.pipeline import Pipeline
from otel_nfprobe.probes.probe_selection import NO_CAPTURE, choose
from otel_nfprobe.recording.recording import RecordingReader
from otel_nfprobe.recording.replay import read_facts, replay
from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.otlp_receiver import Receiver
from tests.support.probed import Probed, Talker, keep_calls

pytestmark = [pytest.mark.integration, pytest.mark.target("captured", "-fno-builtin"), pytest.mark.shared]

TARGETS = Path(__file__).resolve().parent.parent / "targets"
MASK = (1 << 64) - 1
STRATEGIES = {"in-stack": IN_STACK_CALL, "relocated": RELOCATED_BODY}
# Uses every register that a snippet may, and leaves each of them, and the flags, different.
BUSY = (
    "mov r11, rdi; xor r11, rsi; lea rcx, [rdx+r8*4-5]; mov edx, r9d; rol rdx, 11; xor eax, eax; cmp r11, rcx; "
    "sete al; add rax, r11; imul rax, rax, 3; xchg rcx, rdx; not rcx; sub rdx, r10; mov rax, rbx"
)


class Captured(Probed):
    """As Probed, with snippets, and keeps every call."""

    def __init__(
        self,
        pid: int,
        captures: Sequence[str],
        strategy: str | None = None,
        adapter: Path | None = None,
        ring_bytes: int = 4 << 20,
        drained: bool = True,
    ) -> None:
        read = [read_capture(text) for text in captures]
        super().__init__(pid, [capture.glob for capture in read], adapter, strategy, ring_bytes, drained)
        self.choice = choose(self.target, self.choice.adapter, [], [], strategy, captures=read)
        self.monitor = Monitor(Attachment(self.target, self.choice, ring_bytes, self.said.append), "all")
        self.kept: list[Columns] = []

    def __enter__(self) -> Captured:
        self.monitor.attachment.attach()
        self.monitor.start(Clock.start(), None, None)
        self.kept = keep_calls(self.monitor)
        self._thread = threading.Thread(target=self.monitor.run, args=(None, lambda: None))
        if self.drained:
            self._thread.start()
        return self

    @property
    def strategies(self) -> dict[str, str | None]:
        """By function."""
        return {plan.name: plan.strategy for plan in self.choice.plans}

    def values(self, name: str) -> list[int]:
        """What the calls of a function captured, in their order; each of them must have captured something."""
        names = self.monitor.attachment.names_by_id()
        calls = concatenate(self.kept).calls
        calls = calls[[names[function] == name for function in calls["function"]]]
        assert ((calls["flags"] & CallFlag.VALUE) != 0).all()
        return [int(value) for value in calls["value"][np.argsort(calls["start_ticks"], kind="stable")]]


@pytest.fixture
def registers(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Talker:
    return Talker(spawn(compile_target("registers"), stdin=subprocess.PIPE))


# ---- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
@pytest.mark.parametrize(
    ("snippet", "expected"),
    [
        ("mov rax, [rdi+8]", lambda i: i * 0x9E3779B97F4A7C15 & MASK),
        ("movsxd rax, dword ptr [rdi+16]", lambda i: -i & MASK),
        ("movzx eax, byte ptr [rdi+22]; shl rax, 40; or rax, 5", lambda i: (i & 255) << 40 | 5),
        ("mov rcx, [rdi]; xor eax, eax; cmp rcx, 100; setb al; cmovae rax, rcx", lambda i: 1 if i < 100 else i),
    ],
)
def test_memory(talker: Talker, strategy: str, snippet: str, expected: Callable[[int], int]) -> None:
    without = talker.ask("items 300")
    with Captured(talker.pid, [f"captured*:weigh: {snippet}"], strategy) as captured:
        assert talker.ask("items 300") == without
    captured.assert_exact()
    assert captured.strategies == {"weigh": STRATEGIES[strategy]}
    assert captured.values("weigh") == [expected(i) for i in range(300)]


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
def test_arguments(talker: Talker, strategy: str) -> None:
    without = talker.ask("numbers 300")
    snippet = "lea rax, [r8+r9*4-3]; imul rdx, rcx; add rax, rdx; add rax, rdi; sub rax, rsi"
    with Captured(talker.pid, [f"captured*:sum_six: {snippet}"], strategy) as captured:
        assert talker.ask("numbers 300") == without
    captured.assert_exact()
    expected = [i * 4 + (100 - i) * 4 - 3 + (i + 2) * (i + 3) - 1 for i in range(300)]
    assert captured.values("sum_six") == [value & MASK for value in expected]


def test_stack_argument_of_relocated_body(talker: Talker) -> None:
    """By default: such a function cannot be called from the trampoline."""
    without = talker.ask("numbers 300")
    with Captured(talker.pid, ["captured*:sum_seven: mov rax, [rsp+8]", "captured*:sum_six: mov rax, rsi"]) as captured:
        assert talker.ask("numbers 300") == without
    captured.assert_exact()
    assert captured.strategies == {"sum_seven": RELOCATED_BODY, "sum_six": IN_STACK_CALL}
    assert captured.values("sum_seven") == [i * i for i in range(300)]
    assert captured.values("sum_six") == [i + 1 for i in range(300)]


def test_got_slot(talker: Talker) -> None:
    without = talker.ask("library 300")
    with Captured(talker.pid, ["libc.so*:labs: mov rax, rdi"], "got") as captured:
        assert talker.ask("library 300") == without
    captured.assert_exact()
    assert set(captured.strategies.values()) == {GOT_SLOT}
    assert captured.values("labs") == [(i * 1000003 - 5000000) & MASK for i in range(300)]


def test_another_snippet_at_the_next_attach(talker: Talker) -> None:
    """Trampolines stay in the target: they are taken again for the same snippet only."""
    counts = []
    for register, offset in (("rdi", 0), ("rsi", 1), ("rdi", 0), ("rsi", 1)):
        with Captured(talker.pid, [f"captured*:sum_six: mov rax, {register}"]) as captured:
            talker.ask("numbers 50")
            counts.append(captured.monitor.attachment.session.probe_count)
        assert captured.values("sum_six") == [i + offset for i in range(50)]
    with Probed(talker.pid, ["captured*:sum_six"], ring_bytes=4 << 20) as probed:
        talker.ask("numbers 50")
        counts.append(probed.monitor.attachment.session.probe_count)
    assert counts == [1, 2, 2, 2, 3]


# ---- what a probe leaves alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
@pytest.mark.parametrize("where", ["main 2000", "threads 50", "signals 500"])
def test_registers_are_preserved(registers: Talker, strategy: str, where: str) -> None:
    captures = [f"registers*:{name}: {BUSY}" for name in ("touch_nothing", "use_red_zone")]
    with Captured(registers.pid, captures, strategy) as captured:
        assert registers.ask(where) == "equal"
    assert captured.lost == captured.unregistered == (0, 0, 0)
    assert captured.counts.invalid == captured.torn == 0
    assert captured.strategies == dict.fromkeys(("touch_nothing", "use_red_zone"), STRATEGIES[strategy])
    assert len(set(captured.values("touch_nothing"))) > 1


@pytest.mark.parametrize("strategy", ["in-stack", "relocated"])
def test_full_ring(registers: Talker, strategy: str) -> None:
    """The slow path, for entry, value and exit; every call that was not recorded whole is counted."""
    captures = [f"registers*:{name}: {BUSY}" for name in ("touch_nothing", "use_red_zone")]
    with Captured(registers.pid, captures, strategy, ring_bytes=64 << 10, drained=False) as captured:
        assert registers.ask("main 2000") == "equal"
        assert registers.ask("signals 1000") == "equal"
    assert captured.not_restored == []
    assert captured.lost[0] > 0


def test_lost_values_are_lost_calls(talker: Talker) -> None:
    """A call whose entry found the ring full captures nothing, and loses its exit, too."""
    with Captured(talker.pid, ["captured*:weigh: mov rax, [rdi+8]"], ring_bytes=64 << 10, drained=False) as captured:
        without = talker.ask("items 3000")
        # The ring is full now: the snippet, which would crash the target, does not run.
        assert talker.ask("nothing 5") == "35"
    assert talker.ask("items 3000") == without
    values = captured.values("weigh")
    assert values == [i * 0x9E3779B97F4A7C15 & MASK for i in range(len(values))]
    assert 1000 < len(values) == captured.calls["weigh"] < 3000
    assert captured.lost[0] == 2 * (3005 - len(values))


def test_closed_gate(talker: Talker) -> None:
    """The snippet does not run: it would crash the target."""
    for strategy in ("in-stack", "relocated"):
        captured = Captured(talker.pid, ["captured*:weigh: mov rax, [rdi+8]"], strategy)
        captured.monitor.attachment.attach()
        try:
            assert talker.ask("nothing 10") == "70"
        finally:
            captured.monitor.attachment.abandon()
    assert talker.ask("nothing 10") == "70"


# ---- refusals --------------------------------------------------------------------------------------------------


def test_function_of_the_adapter(registers: Talker) -> None:
    captured = Captured(registers.pid, ["registers*:touch_nothing: mov rax, rdi"], adapter=TARGETS / "registers.yaml")
    capture = [read_capture("registers*:tx_burst: mov rax, rdi")]
    with pytest.raises(UsageError, match=r"tx_burst is the adapter's.*cannot have a snippet") as refused:
        choose(captured.target, captured.choice.adapter, [], [], captures=capture)
    assert refused.value.next_command == f"nfprobe functions {registers.pid}"


def test_two_snippets(talker: Talker) -> None:
    with pytest.raises(UsageError, match="weigh has two snippets"):
        Captured(talker.pid, ["captured*:weigh: mov rax, rdi", "captured*:we*: mov rax, rsi"])


def test_strategies_without_snippet(talker: Talker) -> None:
    for strategy in ("copied", "entry"):
        captures = [read_capture("captured*:sum_se*: mov rax, rdi"), read_capture("captured*:weigh: mov rax, rdi")]
        target = Captured(talker.pid, ["captured*:weigh: mov rax, rdi"]).target
        choice = choose(target, None, ["captured*:sum_six"], [], strategy, captures=captures)
        with_snippet = [plan for plan in choice.plans if plan.name != "sum_six"]
        assert {plan.strategy for plan in with_snippet} == {None}
        assert NO_CAPTURE in {plan.reason for plan in with_snippet}
        assert [plan.strategy is None for plan in choice.plans if plan.name == "sum_six"] == [strategy == "copied"]


# ---- where values are seen ---------------------------------------------------------------------------------------


def test_report_and_recording(talker: Talker, nfprobe: Any, tmp_path: Path) -> None:
    file = tmp_path / "values.nfp"
    words = ["--capture", "captured*:sum_six: mov rax, rcx", "--functions", "captured*:weigh", "--record", file]
    attached = nfprobe.start("attach", talker.pid, *words, "--json")
    assert any("attached to" in line for line in iter(attached.stderr.readline, ""))
    talker.ask("numbers 500")
    talker.ask("items 10")
    attached.send_signal(2)
    out, error = attached.communicate(timeout=120)
    assert attached.returncode == 0, error
    assert json.loads(out.splitlines()[-1])["calls"] == 510
    functions = {entry["name"]: entry for entry in nfprobe.json("report", file, "--format", "json")["functions"]}
    assert functions["sum_six"]["values"] == {"count": 500, "min": 3, "max": 502}
    assert "values" not in functions["weigh"]


def test_run(compile_target: Callable[..., Path], nfprobe: Any, tmp_path: Path) -> None:
    file = tmp_path / "values.nfp"
    program = compile_target("captured", "-fno-builtin")
    words = ["--capture", "captured*:sum_seven: mov rax, [rsp+8]", "--record", file]
    done = nfprobe.run("run", *words, "--", program, input="numbers 100\n")
    assert done.returncode == 0, done.stderr
    functions = nfprobe.json("report", file, "--format", "json")["functions"]
    assert [entry["values"] for entry in functions] == [{"count": 100, "min": 0, "max": 99 * 99}]


def test_batch_sizes_of_the_firewall(start_firewall: Callable[..., Firewall], nfprobe: Any, tmp_path: Path) -> None:
    """The number of packets that fw_classify is given is that of its batch, in the recording and in spans."""
    firewall = start_firewall(20_000)
    file, receiver = tmp_path / "firewall.nfp", Receiver()
    words = ["--adapter", DESCRIPTION, "--capture", "firewall:fw_classify: mov eax, edx", "--record", file]
    words += ["--endpoint", f"http://127.0.0.1:{receiver.port}", "--sample", "0.05", "--for", "1s"]
    try:
        done = nfprobe.run("attach", firewall.pid, *words)
    finally:
        receiver.stop()
    assert done.returncode == 0, done.stderr
    reader = RecordingReader(file)
    facts = read_facts(reader)
    with Pipeline(facts.roles) as pipeline:
        columns = concatenate(list(replay(reader, facts, pipeline)))
    names = {id: function.name for id, function in facts.functions.items()}
    classify = columns.calls[[names[function] == "fw_classify" for function in columns.calls["function"]]]
    classify = classify[classify["batch"] < len(columns.batches)]
    assert len(classify) > 10
    assert (classify["value"] == columns.batches["size"][classify["batch"]]).all()
    captured = span_values(receiver.requests)["fw_classify"]
    assert captured
    assert set(captured) <= set(classify["value"].tolist())
    firewall.assert_restored()


def span_values(requests: Sequence[bytes]) -> dict[str, list[int]]:
    """The captured values by the span's name."""
    found: dict[str, list[int]] = {}
    for request in requests:
        for resource in ExportTraceServiceRequest.FromString(request).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    values = [item.value.int_value for item in span.attributes if item.key == "nf.call.value"]
                    if values:
                        found.setdefault(span.name, []).extend(values)
    return found
