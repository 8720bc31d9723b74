# SPDX-License-Identifier: Apache-2.0
"""The script for people with a performance monitoring unit, as far as it goes without one."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from tests.benchmarks.pmu_agreement import PerfStat, _agrees, count_by_kernel

pytestmark = pytest.mark.integration

PAGES = 500
ROOT = Path(__file__).resolve().parents[2]
# Answers as perf does, and prints what FAKE_COUNT holds.
FAKE = f"""#!{sys.executable}
import os, signal, sys
hear, say = (int(number) for number in sys.argv[-1].removeprefix("fd:").split(","))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
for _ in range(2):
    os.read(hear, 16)
    os.write(say, b"ack\\n")
signal.sigwait([signal.SIGINT])
sys.stderr.write(os.environ["FAKE_COUNT"])
"""


def touch_pages() -> None:
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE) as pages:
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        for place in range(0, len(pages), mmap.PAGESIZE):
            pages[place] = 1


def test_counts_of_a_thread_by_perf_and_by_the_kernel() -> None:
    """With an event that every machine has."""
    if not shutil.which("perf") or subprocess.run(["perf", "--version"], capture_output=True).returncode:
        pytest.skip("perf is not installed, or not for this kernel")
    (faults,) = choose_counters("page-faults").counters
    with PerfStat(threading.get_native_id(), "page-faults") as perf:
        counted = count_by_kernel(faults, threading.get_native_id(), touch_pages)
    assert counted is not None
    assert perf.count is not None
    assert PAGES <= counted <= perf.count < counted + PAGES


@pytest.mark.parametrize(
    ("printed", "count"),
    [
        ("1234.00,,instructions:u,5,100.00,,\n", 1234),
        ("40,,cpu_core/cycles/u,5,50.00,,\n<not counted>,,cpu_atom/cycles/u,0,0.00,,\n", 40),
        ("<not supported>,,cycles:u,0,100.00,,\n", None),
        ("", None),
    ],
)
def test_what_perf_prints(printed: str, count: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "perf"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_COUNT", printed)
    with PerfStat(os.getpid(), "cycles") as perf:
        pass
    assert perf.count == count


def test_within_one_percent() -> None:
    assert _agrees("cycles", 1000.0, "perf stat", 1009)
    assert not _agrees("cycles", 1000.0, "perf stat", 1011)
    assert not _agrees("cycles", 1000.0, "perf stat", None)


def test_says_why_not() -> None:
    refusal = find_refusal(choose_counters("instructions,cycles,branches"))
    if refusal is None:
        pytest.skip("there is a performance monitoring unit: run the script")
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.pmu_agreement"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, f"skipped: {refusal.reason}\n")
