# SPDX-License-Identifier: Apache-2.0
"""A real VPP that forwards for a long time while sessions come and go: nothing of it is lost, harmed or grows."""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.real_vpp import MISSING, PREFIX, ROUTED, TWO, WARM_UP, RealVpp, Stream

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not PREFIX, reason=MISSING)]

ATTACHED_S, APART_S = 5, 1.0
RATE = 100_000
MODES = (("--packets", "all"), ("--packets", "none"), ("--packets", "slow"), ("--packets", "slow", "--sample", "1"))
TURNS_BEFORE = 2 * len(MODES)  # rings and pages of trampolines are there then, and are used again
GROWTH_BYTES = 1 << 20  # of all turns after these: less than a kibibyte each
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def own_bytes(pid: int) -> int:
    """What the process has of memory that it shares with nobody and with no file."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    return (resident - shared) * PAGE_BYTES


def mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


def threads(pid: int) -> dict[int, str]:
    return {int(task.name): (task / "comm").read_text() for task in Path(f"/proc/{pid}/task").iterdir()}


def errors(vpp: RealVpp) -> set[str]:
    """What `show errors` has a line for, without the counts."""
    return set(re.findall(r"^ *\d+ +(\S.*?) *$", vpp.ask("show errors"), re.MULTILINE))


@pytest.fixture
def vpp(spawn: Callable[..., Any]) -> Iterator[RealVpp]:
    with tempfile.TemporaryDirectory(prefix="vpp") as folder:
        vpp = RealVpp(Path(folder), spawn, workers=int(len(os.sched_getaffinity(0)) > 1))
        vpp.configure(TWO)
        vpp.add_streams([Stream(ROUTED, rate=RATE), Stream(ROUTED, rate=RATE // 100, frame=1)])
        vpp.play(WARM_UP)
        yield vpp


@pytest.mark.parametrize("seconds", [30, pytest.param(1200, marks=pytest.mark.long)])
@pytest.mark.timeout(1800)
def test_sessions_that_come_and_go(vpp: RealVpp, seconds: int, nfprobe: Any, tmp_path: Path) -> None:
    before_threads = set(threads(vpp.pid).items())
    vpp.clear()
    vpp.keep_playing()
    time.sleep(ATTACHED_S)
    before_errors, end = errors(vpp), time.monotonic() + seconds
    kept: list[tuple[int, int]] = []
    while time.monotonic() < end or len(kept) < len(MODES):
        mode = MODES[len(kept) % len(MODES)]
        words = ("--for", f"{ATTACHED_S}s", "--record", tmp_path / "vpp.nfprobe", "--json")
        summary = nfprobe.json("attach", vpp.pid, *words, *mode)
        packets = summary["packets"]
        assert packets["received"] > 0
        assert packets["unknown"] == 0  # though it receives while probes are taken out
        assert summary["functions"]["refused"] == {}
        assert vpp.process.poll() is None
        assert set(threads(vpp.pid).items()) == before_threads
        kept.append((own_bytes(vpp.pid), mappings(vpp.pid)))
        time.sleep(APART_S)
    after_errors = errors(vpp)
    vpp.ask("packet-generator disable")
    vpp.settle()
    interfaces, vectors = vpp.interfaces(), vpp.vectors()
    print(len(kept), kept[:: max(1, len(kept) // 20)], interfaces, after_errors)
    # The interface's own count of what was received has packets that the generator keeps for its next calls.
    received = vectors["pg-input"][1]
    assert received == vectors["pg1-tx"][1] == interfaces["tx packets"] > RATE // 4 * seconds
    assert interfaces.get("drops", 0) == 0
    assert after_errors == before_errors
    assert nfprobe.run("detach", vpp.pid).returncode == 0
    settled = kept[TURNS_BEFORE:]
    if len(settled) > 1:
        assert settled[-1][0] - settled[0][0] <= GROWTH_BYTES
        assert settled[-1][1] <= settled[0][1]
