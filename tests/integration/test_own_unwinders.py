# SPDX-License-Identifier: Apache-2.0
"""Programs whose unwinder is not libgcc_s: it learns of trampolines from the dynamic linker only."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from otel_nfprobe.elf.symbols import find_functions
from otel_nfprobe.probes.unwinders import has_unwinder
from tests.support.chain import LADDER, Start, probe, start_chain
from tests.support.probed import Probed, Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

LINKED_IN = ("-static-libgcc", "-static-libstdc++")


@pytest.fixture
def start(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> Start:
    return lambda *flags: start_chain(compile_target, spawn, flags)


@pytest.mark.parametrize("strategy", [LADDER, "in-stack", "relocated", "copied"])
def test_linked_into_the_program(start: Start, strategy: str) -> None:
    talker = start(*LINKED_IN)
    assert "libgcc_s" not in Path(f"/proc/{talker.pid}/maps").read_text()
    for _ in range(2):
        with probe(talker, strategy) as probed:
            assert talker.ask("throws 300") == "right"
            assert talker.ask("threads 100") == "right"
        assert probed.not_restored == []
        assert talker.ask("throws 20") == "right"


def test_every_function_of_a_stripped_program(start: Start) -> None:
    """The unwinder's own functions, which nothing names, among them."""
    talker = start(*LINKED_IN, "-s")
    with Probed(talker.pid, ["*"], ring_bytes=64 << 20) as probed:
        assert talker.ask("throws 300") == "right"
    assert len(probed.monitor.attachment.probes) > 3000
    assert probed.not_restored == []
    assert talker.ask("throws 20") == "right"


def test_one_that_walks_the_loaded_objects(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    """As LLVM's libunwind does."""
    talker = Talker(spawn(compile_target("finds", "-rdynamic"), stdin=subprocess.PIPE))
    assert talker.ask("find 3") == "right"
    with Probed(talker.pid, ["finds-*:find"], strategy="relocated") as probed:
        assert talker.ask("find 3") == "right"
    assert probed.counts.calls == 1
    assert talker.ask("find 3") == "right"


def test_others_are_left_alone(start: Start) -> None:
    """Programs that unwind by libgcc_s, and whoever asks the dynamic linker for other reasons."""
    talker = start()
    with probe(talker, LADDER) as probed:
        modules = probed.target.modules()
        assert talker.ask("throws 20") == "right"
    assert [module.name for module in modules if has_unwinder(module)] == []
    assert find_functions(probed.target, ["deep-*:deep_a"])
