# SPDX-License-Identifier: Apache-2.0
"""Jumps between functions, judged for all at once: random graphs against a walk, a real library one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from otel_nfprobe.arch.branches import ModuleScan, scan_module
from otel_nfprobe.arch.jumpgraph import circling, reaching
from otel_nfprobe.arch.tailcalls import TailCalls, comes_back
from otel_nfprobe.elf.modules import Module

LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libcrypto.so.3")


def walk(start: int, edges: list[tuple[int, int]]) -> set[int]:
    """What is reached from a function by one jump or more."""
    found: set[int] = set()
    waiting = [start]
    while waiting:
        here = waiting.pop()
        more = {target for source, target in edges if source == here} - found
        found |= more
        waiting += more
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 40)
    edges = [(chance.randrange(count), chance.randrange(count)) for _ in range(chance.randint(0, 2 * count))]
    marked = np.array([chance.random() < 0.1 for _ in range(count)])
    sources, targets = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    reached = {index: walk(index, edges) for index in range(count)}
    assert reaching(marked, sources, targets).tolist() == [
        bool(marked[index] or any(marked[other] for other in reached[index])) for index in range(count)
    ]
    on_circle = [index for index in range(count) if index in reached[index]]
    between = circling(count, sources, targets)
    assert all(between[index] for index in on_circle)
    for index in np.flatnonzero(between).tolist():
        assert any(index in reached[other] for other in on_circle) or index in on_circle
        assert any(other in reached[index] for other in on_circle)


@pytest.mark.skipif(not LIBRARY.exists(), reason="libcrypto is not installed")
def test_a_library_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module.from_file(LIBRARY)
    scan = scan_module(module.image)
    harmless = [index for index in range(len(scan.starts)) if scan.is_harmless(index) and scan.at(index).jumps]
    straight = [index for index in range(len(scan.starts)) if not scan.may_circle(index)]
    assert len(harmless) > 500
    assert len(straight) < len(scan.starts)
    monkeypatch.setattr(ModuleScan, "is_harmless", lambda self, index: False)
    monkeypatch.setattr(ModuleScan, "may_circle", lambda self, index: True)
    closer = TailCalls(None)
    assert not [index for index in harmless if closer.trouble(module, index)]
    # What begins right behind a function of fewer bytes than an endbr64 is not that function's start.
    circles = [index for index in straight if scan.frames[index].size > 4 and comes_back(scan, index)]
    assert not circles
