# SPDX-License-Identifier: Apache-2.0
"""What a person is told who may not count: by nfprobe itself, under a real filter and without real capabilities."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.filters import answer, forbid_only, install
from tests.support.probed import Talker

pytestmark = [pytest.mark.integration, pytest.mark.shared]

PERF_EVENT_OPEN = 298
PR_CAPBSET_DROP, CAP_SYS_ADMIN, CAP_PERFMON = 24, 21, 38
PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


def drop_rights() -> None:
    """Root without the capabilities that counting in the kernel's mode takes, from the next program on."""
    libc = ctypes.CDLL(None)
    for capability in (CAP_SYS_ADMIN, CAP_PERFMON):
        assert libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def count(pid: int, names: str, before: Callable[[], None]) -> tuple[int, list[str]]:
    """Exit status, and what is said of counters."""
    command = [sys.executable, "-m", "otel_nfprobe", "stats", str(pid), "counted*:work", "--for", "0.1s"]
    done = subprocess.run(
        [*command, "--counters", names], preexec_fn=before, capture_output=True, text=True, timeout=180
    )
    return done.returncode, [line for line in done.stderr.splitlines() if "ounte" in line or line.startswith("next")]


@pytest.fixture
def pid(compile_target: Callable[..., Path], spawn: Callable[..., subprocess.Popen[str]]) -> int:
    return Talker(spawn(compile_target("counted"), stdin=subprocess.PIPE)).pid


def test_under_a_filter_as_of_containers(pid: int, tmp_path: Path) -> None:
    path = forbid_only(tmp_path / "filter", PERF_EVENT_OPEN, answer(errno.EPERM))

    def filtered() -> None:
        install(path)

    said = "a seccomp filter around nfprobe forbids perf_event_open, as containers do"
    assert count(pid, "cycles,page-faults", filtered) == (
        1,
        [
            f"nfprobe: Counters are not available: {said}.",
            "next: run nfprobe outside the container, or with a profile that permits perf_event_open",
        ],
    )
    assert count(pid, "auto,page-faults", filtered) == (
        0,
        [
            f"nfprobe: no performance counters, times only: {said}.",
            f"nfprobe: no software counters: page-faults: {said}.",
        ],
    )


def test_without_the_right_to_count_in_the_kernel(pid: int) -> None:
    """Switches happen in the kernel: who may not look there is told so, and is not shown 0."""
    paranoid = PARANOID.read_text().strip()
    if int(paranoid) < 2 or os.geteuid() != 0:
        pytest.skip(f"everybody may count here (kernel.perf_event_paranoid is {paranoid})")
    reason = f"context-switches: this user may not count (kernel.perf_event_paranoid is {paranoid})"
    assert count(pid, "context-switches", drop_rights) == (
        1,
        [f"nfprobe: Counters are not available: {reason}.", "next: sysctl kernel.perf_event_paranoid=1"],
    )
