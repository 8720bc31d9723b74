# SPDX-License-Identifier: Apache-2.0
"""The kernel's own trace of one CPU, by perf: what tests and benchmarks compare with what nfprobe says."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def kernel_trace(cpu: int, path: Path, events: Iterable[str]) -> Iterator[None]:
    """perf's records of one CPU, until the block ends; times are those of CLOCK_MONOTONIC_RAW."""
    words = [
        "perf",
        "record",
        "-q",
        "-B",
        "-N",
        "-k",
        "CLOCK_MONOTONIC_RAW",
        "-C",
        str(cpu),
        "-m",
        "4M",
        "-o",
        str(path),
    ]
    words += ["-e", ",".join(events)]
    command_end, commands = os.pipe()
    answers, answer_end = os.pipe()
    words += ["-D", "-1", "--control", f"fd:{command_end},{answer_end}"]
    ends = (command_end, answer_end)
    perf = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=ends)
    for end in ends:
        os.close(end)
    os.write(commands, b"enable\n")
    os.read(answers, 16)  # acknowledged, or perf has ended
    try:
        yield
    finally:
        perf.terminate()
        _, errors = perf.communicate()
        os.close(commands)
        os.close(answers)
    if not path.exists() or not path.stat().st_size:
        raise SystemExit(f"perf recorded nothing: {errors}")
