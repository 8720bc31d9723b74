# SPDX-License-Identifier: Apache-2.0
"""Hostile targets, and the target of the tests that read counters; other files have a `talker` of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hostile import INCLUDES, Bait
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


@pytest.fixture
def bait() -> Iterator[Bait]:
    folder = Path(tempfile.mkdtemp(prefix="nfprobe-bait-"))
    folder.chmod(0o755)
    yield Bait(folder)
    shutil.rmtree(folder)


@pytest.fixture
def start_hostile(
    compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]], bait: Bait
) -> Callable[..., Talker]:
    """Starts a target that is hostile in a mode: start(mode, path=, turned=, name=)."""
    compiled = compile_target("hostile", *INCLUDES)

    def start_(mode: str, path: Path = bait.file, turned: bool = True, name: str = compiled.name) -> Talker:
        program = compiled.with_name(name)
        if not program.exists():
            shutil.copy(compiled, program)
        talker = Talker(spawn(program, mode, path, stdin=subprocess.PIPE))
        assert not turned or talker.ask("turn") == "right"
        return talker

    return start_
