# SPDX-License-Identifier: Apache-2.0
"""All functions at once, of libraries and programs that nobody here wrote: they do what they did before.

`pytest -s` prints the coverage table of docs/strategies.md.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.probed import Talker
from tests.support.whole import EVERY_WAY, LADDER, assert_covered, probe_each_way

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PYTHON = "/usr/bin/python3"
WORK = Path(__file__).resolve().parent.parent / "targets" / "everyday.py"

Spawn = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def python(spawn: Spawn) -> Talker:
    """Debian's Python, which brings Debian's libraries."""
    if not Path(PYTHON).exists():
        pytest.skip(f"there is no {PYTHON}")
    return Talker(spawn(PYTHON, WORK, stdin=subprocess.PIPE))


@pytest.mark.parametrize(
    ("module", "work"), [("libz.so*", "compress"), ("libsqlite3.so*", "query"), ("libc.so*", "compress")]
)
def test_a_library(python: Talker, module: str, work: str) -> None:
    python.ask(work)  # what it imports is loaded
    rounds = probe_each_way(python.pid, [f"{module}:*"], lambda: python.ask(work))
    assert_covered(rounds)
    # Each call begins once, whichever way it is watched.
    by_way = {whole.strategy: whole.session.counts for whole in rounds}
    assert by_way["entry"].marked > 0
    assert by_way[LADDER].calls >= by_way["in-stack"].calls > 0


def test_libcrypto(python: Talker) -> None:
    """Digests and signatures are those that were published."""
    python.ask("digest")
    python.ask("sign")

    def work() -> str:
        return python.ask("digest") + python.ask("sign")

    assert_covered(probe_each_way(python.pid, ["libcrypto.so*:*"], work))


def test_python_and_its_own_tests(python: Talker) -> None:
    expected = python.ask("own_tests")
    if "Error" in expected:
        pytest.skip("Python's own tests are not installed: scripts/set-up test")
    assert expected.endswith("skipped")
    ways = ("in-stack", "relocated", LADDER)
    rounds = probe_each_way(python.pid, ["python3*:*"], lambda: python.ask("own_tests"), ways)
    assert_covered(rounds)


def test_libstdcxx_with_exceptions(compile_target: Callable[..., Path], spawn: Spawn) -> None:
    talker = Talker(spawn(compile_target("everyday", "-std=c++17"), stdin=subprocess.PIPE))
    globs = ["libstdc++.so*:*", "libgcc_s.so*:*", "everyday-*:*"]
    rounds = probe_each_way(talker.pid, globs, lambda: talker.ask("streams 20"), ends_calls=True)
    assert_covered(rounds)


def test_strategies_in_any_order(python: Talker) -> None:
    """What one round leaves does not matter to the next."""
    order = list(EVERY_WAY) * 2
    random.Random(4).shuffle(order)
    probe_each_way(python.pid, ["libz.so*:*"], lambda: python.ask("compress"), order)


def test_trampolines_where_free_memory_lies_in_pieces(compile_target: Callable[..., Path], spawn: Spawn) -> None:
    talker = Talker(spawn(compile_target("crowded"), stdin=subprocess.PIPE))
    whole, also_copied = probe_each_way(talker.pid, ["libc.so*:*"], lambda: talker.ask("sort 5"), (LADDER, "relocated"))
    assert_covered([whole])
    maps = Path(f"/proc/{talker.pid}/maps").read_text().splitlines()
    assert sum("nfprobe" in line and "r-xs" in line for line in maps) > 1
    # There is no room for all those copies, too: this is a reason to refuse a function, not the session.
    assert also_copied.refused["its trampoline could not be written"] > 100
    assert also_copied.probed
