# SPDX-License-Identifier: Apache-2.0
"""The target of the tests that read counters; files with another target have a `talker` of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from probed import Talker

pytest.register_assert_rewrite("counted", "changing")  # they say what was wrong, as in a test


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    """Where the target writes what it counted itself (counted.read_truth)."""
    return tmp_path / "truth"


@pytest.fixture
def talker(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    truth: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Talker:
    """tests/targets/counted.c, a processor made of a signal handler."""
    monkeypatch.setenv("TRUTH", str(truth))
    return Talker(spawn(compile_target("counted"), stdin=subprocess.PIPE))
