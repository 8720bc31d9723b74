# SPDX-License-Identifier: Apache-2.0
"""A session's memory that its target has written into: what is read of it is well-formed or refused with a sentence.

NFPROBE_FUZZ_SECONDS=600 pytest tests/fuzz/test_fuzz_session.py reads more, NFPROBE_FUZZ_SEED=1000000 other damage.
A failure names the seed: SharedMemory.mutate(Random(seed)) of mutate_session.py is the damage; of a helper thread that
says anything on its boot page it is Helper(seed, bait) of boot_child.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_nfprobe.target.leftover import session_descriptors
from tests.fuzz.seeds import FIRST, SECONDS
from tests.integration.test_damaged_table import GLOBS, killed
from tests.support.probed import Talker

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
EVERYDAY, EVERYDAY_SECONDS = 150, 30
PATIENCE_S = 300


def run(child: str, *words: object) -> list[str]:
    """Findings of a child, and the case at which it died, if it did."""
    command = [sys.executable, "-m", f"tests.fuzz.{child}", *words]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, capture_output=True, text=True, timeout=SECONDS + PATIENCE_S, check=False
    )
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith("finding")]
    if done.returncode or not lines:
        found.append(f"status {done.returncode} at {lines[-1] if lines else 'the beginning'}: {done.stderr[-2000:]}")
    return found


def test_helper_threads_that_say_anything() -> None:
    assert run("boot_child", 0, EVERYDAY, EVERYDAY_SECONDS) == []
    if SECONDS:
        assert run("boot_child", max(FIRST, EVERYDAY), 1 << 60, SECONDS) == []


def test_damaged_memory_of_a_session(
    nfprobe: Any, compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]
) -> None:
    talker = Talker(spawn(compile_target("processes"), stdin=subprocess.PIPE))
    with killed(nfprobe, talker.pid, GLOBS, "--ring-size", "64KiB") as table:
        probes = len(table.armed())
    words = "session_child", talker.pid, session_descriptors(talker.pid)[-1]
    assert run(*words, 0, EVERYDAY, EVERYDAY_SECONDS) == []
    if SECONDS:
        assert run(*words, max(FIRST, EVERYDAY), 1 << 60, SECONDS) == []
    assert nfprobe.json("detach", talker.pid)["restored"] == probes
    assert talker.ask("steps 10") == "right"
