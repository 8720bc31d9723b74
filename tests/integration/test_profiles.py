# SPDX-License-Identifier: Apache-2.0
"""perf sees the true stack through every strategy's trampolines, by name: by unwind rows and by frame pointers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.chain import CHAIN, LADDER, OF_ALL, probe, start_chain

pytestmark = [pytest.mark.integration, pytest.mark.shared]

FLAGS = {"dwarf": "-fomit-frame-pointer", "fp": "-fno-omit-frame-pointer"}
LOOKS_MAX = 20


def profiled_stack(pid: int, mode: str, folder: Path) -> list[str]:
    """Function names from work_spin on of the most frequent stack that perf sees, innermost first."""
    data = str(folder / "perf.data")
    record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "199", "--call-graph", mode, "-o", data, "-p", str(pid)]
    # A loaded machine may give the target no time at all while perf looks: it looks again.
    for _ in range(LOOKS_MAX):
        subprocess.run([*record, "--", "sleep", "0.2"], timeout=240, check=True, capture_output=True)
        words = ["perf", "script", "-i", data, "-F", "ip,sym"]
        output = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True).stdout
        stacks = [re.findall(r"^[ \t]*[0-9a-f]+ (\S+)", block, re.MULTILINE) for block in re.split(r"\n\s*\n", output)]
        found = Counter(tuple(stack[stack.index("work_spin") :]) for stack in stacks if "work_spin" in stack)
        if found:
            return list(found.most_common(1)[0][0])
    raise AssertionError("perf saw nothing of a busy process")


# By frame pointers only what lies on the stack makes a difference.
@pytest.mark.parametrize(
    ("strategy", "mode"), [*((strategy, "dwarf") for strategy in OF_ALL), (LADDER, "fp"), ("relocated", "fp")]
)
def test_perf(
    compile_target: Callable[..., Path],
    spawn: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    strategy: str,
    mode: str,
) -> None:
    """Without our own frames the stack is the one that perf sees without probes."""
    if shutil.which("perf") is None:
        pytest.skip("perf is not installed: scripts/set-up test")
    talker = start_chain(compile_target, spawn, (FLAGS[mode],), (FLAGS[mode],))
    assert talker.ask("spin") == "inside"
    before = profiled_stack(talker.pid, mode, tmp_path)
    assert before[:4] == ["work_spin", *CHAIN]
    assert talker.ask("stop") == "right"
    with probe(talker, strategy):
        assert talker.ask("spin") == "inside"
        during = profiled_stack(talker.pid, mode, tmp_path)
        assert talker.ask("stop") == "right"
    assert [name for name in during if not name.endswith(".nfprobe")] == before
