# SPDX-License-Identifier: Apache-2.0
"""A target that has ended is told from every other failure by the class of the error, whatever its words are."""

from __future__ import annotations

import itertools
import mmap
import os
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from otel_nfprobe._core import ffi
from otel_nfprobe.base.errors import EndedError, NfprobeError
from otel_nfprobe.linux.memory import Memory
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.target.liveness import Liveness, replaced
from otel_nfprobe.target.target import Target
from otel_nfprobe.target.turns import take_turn

PAGE = mmap.PAGESIZE


@pytest.fixture
def ended() -> tuple[Target, Memory]:
    """A process that ran when it was looked at, and its memory."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as process:
        target = Target(process.pid)
        target.modules()
    return target, target.memory


def test_what_is_asked_of_a_process_that_has_ended(ended: tuple[Target, Memory]) -> None:
    target, memory = ended

    def turn() -> None:
        with take_turn(target):
            pass

    asked: list[Callable[[], Any]] = [
        lambda: memory.read(PAGE, 8),
        lambda: memory.write(PAGE, b"x"),
        lambda: Memory(target.pid).read(PAGE, 8),
        lambda: Liveness(target),
        turn,
    ]
    for ask in asked:
        with pytest.raises(EndedError, match=f"Process {target.pid} has ended"):
            ask()


def test_memory_that_is_there_or_not() -> None:
    memory = Memory(os.getpid())
    with mmap.mmap(-1, 2 * PAGE) as mapping:
        address = int(ffi.cast("uintptr_t", ffi.from_buffer(mapping)))
        memory.write(address, b"content")
        assert memory.read(address, 7) == b"content"
    for ask in (
        lambda: memory.read(0, 8),
        lambda: memory.write(0, b"x"),
        lambda: memory.read(1 << 64, 8),
        lambda: memory.write(1 << 64, b"x"),
    ):
        with pytest.raises(NfprobeError, match=r"cannot be (read|written)") as caught:
            ask()
        assert not isinstance(caught.value, EndedError)


def test_less_than_was_asked_for() -> None:
    """Up to where something is mapped."""
    memory = Memory(os.getpid())
    last = Target(os.getpid()).maps()
    end = next(m.end for m, after in itertools.pairwise(last) if "r" in m.permissions and m.end < after.start)
    with pytest.raises(NfprobeError, match="only 4 of 8 bytes can be read"):
        memory.read(end - 4, 8)


@pytest.mark.parametrize(
    ("error", "awaited"),
    [
        (EndedError.of(7), 1),
        (EndedError("It is gone."), 1),
        (NfprobeError("The thread that has ended was one of its own."), 0),
        (OSError(3, "has ended"), 0),
    ],
)
def test_whether_another_program_was_started(error: Exception, awaited: int) -> None:
    waits: list[None] = []
    attachment: Any = Attachment.__new__(Attachment)
    attachment.target = SimpleNamespace(pid=7)
    attachment.liveness = SimpleNamespace(await_exec=lambda: waits.append(None), is_replaced=True)
    attachment.name_replaced(error)
    assert len(waits) == awaited
    if isinstance(error, NfprobeError):
        assert error.sentence == replaced(7)
