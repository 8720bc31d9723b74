# SPDX-License-Identifier: Apache-2.0
"""Unwind rows of trampolines against the truth: at every instruction of every shape, single-stepped by gdb."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe._core import lib
from otel_nfprobe.base.processors import X86_64
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.elf.ehframe import Frame, FrameTable, parse_frames
from otel_nfprobe.probes.template import template_bytes
from otel_nfprobe.shm.session import Session
from tests.support.probed import Probed, Talker, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.shared]

HERE = Path(__file__).resolve().parent
ADAPTER = HERE.parent / "targets" / "registers.yaml"
GLOBS = ["registers-*:touch_nothing", "registers-*:use_red_zone"]
ROWS_BYTES = 16384


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses of the rows that were given to the unwinder."""
    addresses: list[int] = []
    ask = Session.ask

    def ask_and_note(session: Session, command: int, *arguments: int) -> int:
        result = ask(session, command, *arguments)
        if command == lib.NFP_COMMAND_REGISTER_FRAMES:
            assert result == 0
            addresses.append(arguments[0])
        return result

    monkeypatch.setattr(Session, "ask", ask_and_note)
    return addresses


def frame_address(table: FrameTable, pc: int, rsp: int, rbp: int) -> int | None:
    """The canonical frame address that the rows give; None where they know nothing of the pc."""
    frame = table.find(pc)
    if frame is None:
        return None
    row = [row for row in frame.rules().rows if row.address <= pc][-1]
    return (rsp if row.register == X86_64.stack_pointer else rbp) + row.offset


def unwind(table: FrameTable, step: dict[str, Any]) -> int | None:
    """As an unwinder: from the displaced instructions through the template to the caller."""
    cfa = frame_address(table, step["pc"], step["rsp"], step["rbp"])
    if cfa is None or cfa == step["cfa"]:
        return cfa
    return_address = step["words"][(cfa - 8 - step["rsp"]) // 8]
    return frame_address(table, return_address - 1, cfa, step["rbp"])


def test_rows_at_every_instruction(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    registered: list[int],
) -> None:
    talker = Talker(spawn(compile_target("registers"), stdin=subprocess.PIPE))
    with Probed(talker.pid, GLOBS, ADAPTER) as probed:
        table, described = step(talker, spawn, probed, registered)
    shapes = shapes_of(table, described)
    assert len(shapes) == 2 * 4, "a template and its displaced part, for call, receive, transmit and drop"
    assert len(described) > 150
    probed.assert_exact()


def test_rows_of_a_counted_thread(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    registered: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Receive functions have another way for it. By pages of the kernel: all but rdpmc itself runs."""
    talker = Talker(spawn(compile_target("registers"), stdin=subprocess.PIPE))
    maps = Path(f"/proc/{talker.pid}/maps")
    monkeypatch.setenv("STEP_ONLY", "rx_burst")
    probed = Probed(talker.pid, [], ADAPTER)
    probed.monitor.counters = choose_counters("task-clock").counters
    with probed:
        talker.ask("main 2")  # a thread has an entry in the table once it has written a record
        assert wait_until(lambda: "[perf_event]" in maps.read_text())
        table, described = step(talker, spawn, probed, registered)
    shapes = shapes_of(table, described)
    assert len(shapes) == 2
    (receive,) = [frame for frame in shapes if frame.size == template_bytes(lib.NFP_SHAPE_RECEIVE)]
    assert not [pc for pc in described if receive.start + 32 < pc < receive.start + 200], "the way of other threads"
    assert len(described) > 60
    probed.assert_exact()


def step(
    talker: Talker, spawn: Callable[..., subprocess.Popen[str]], probed: Probed, registered: list[int]
) -> tuple[FrameTable, set[int]]:
    """Steps through two rounds of calls. Returns the rows, and where they were asked, and right."""
    words = ["gdb", "-nx", "-batch", "-p", str(talker.pid), "-x", str(HERE / "step_probes.py")]
    debugger = spawn(*words, stderr=subprocess.STDOUT)
    assert debugger.stdout is not None
    for line in debugger.stdout:
        if line.startswith("stepping"):
            break
    talker.say("main 4")
    output = debugger.stdout.read()
    assert debugger.wait() == 0, output
    assert talker.hear() == "equal"
    rows = probed.target.read(registered[0], ROWS_BYTES)
    table = parse_frames(rows[: end_of_rows(rows)], registered[0], X86_64)
    steps = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    wrong = [hex(step["pc"]) for step in steps if unwind(table, step) not in (None, step["cfa"])]
    assert wrong == []
    return table, {step["pc"] for step in steps if table.find(step["pc"])}


def shapes_of(table: FrameTable, described: set[int]) -> list[Frame]:
    return [frame for frame in table.frames if any(frame.start <= pc < frame.start + frame.size for pc in described)]


def end_of_rows(rows: bytes) -> int:
    """Offset of the end mark, a length of 0."""
    position = 0
    while size := int.from_bytes(rows[position : position + 4], "little"):
        position += 4 + size
    return position
