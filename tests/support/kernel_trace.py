# SPDX-License-Identifier: Apache-2.0
"""The kernel's own trace of one CPU, by perf: what tests and benchmarks compare with what nfprobe says."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kernel_trace(cpu: int, path: Path, events: Iterable[str]) -> Iterator[None]:
    """perf's records of one CPU, until the block ends; times are those of CLOCK_MONOTONIC_RAW."""
    words = ["perf", "record", "-q", "-B", "-N", "-k", "CLOCK_MONOTONIC_RAW", "-C", str(cpu), "-m", "4M", "-o", str(path)]
    words += ["-e", ",".join(events)]
    perf = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while perf.poll() is None and not path.exists():  # made when the events are open
        time.sleep(0.01)
    time.sleep(0.3)
    try:
        yield
    finally:
        perf.terminate()
        _, errors = perf.communicate()
    if not path.exists() or not path.stat().st_size:
        raise SystemExit(f"perf recorded nothing: {errors}")
