# SPDX-License-Identifier: Apache-2.0
"""Reads damaged recordings in this process: each must end in a report, rows or spans, or in a sentence.

    python recording_child.py FILE FIRST LAST [SECONDS]

Prints the seed before each case, so that the test that started this process knows which one killed it: a case
that takes too much processor time is ended by SIGPROF, one that asks for too much memory fails to get it. Stops
after SECONDS.
"""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from otel_nfprobe.cli.main import main as main_of_nfprobe
from tests.fuzz.mutate_recording import Parts, mutate

CASE_SECONDS = 30  # of processor time; a good file takes a tenth of one
MEMORY_BYTES = 4 << 30  # of addresses; threads of libraries reserve much that they never touch
RESIDENT_BYTES = 600 << 20


def verbs(path: str, folder: str, seed: int) -> list[str]:
    """How one file is read; reports reach the most."""
    tables = ["tables", path, "-o", f"{folder}/tables"]
    flame = ["report", path, "--format", "flame", "--by", "page-faults"]
    page = ["report", path, "-o", f"{folder}/page.html"]
    return [["report", path, "--json"], ["report", path], page, tables, flame][seed % 5]


def read(path: str, folder: str, seed: int) -> None:
    """An exit status that the documents name, and at least one word of why."""
    said, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
        status = main_of_nfprobe(verbs(path, folder, seed))
    assert status in (0, 1, 2), status
    assert status == 0 or refused.getvalue(), status
    assert "(unexpected" not in refused.getvalue(), refused.getvalue()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    assert resident < RESIDENT_BYTES, resident


def main(source: str, first: int, last: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["NFPROBE_DEBUG"] = "1"
    parts = Parts(Path(source).read_bytes())
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/damaged.nfp"
        for seed in range(first, last):
            if time.monotonic() - started > seconds:
                break
            print("case", seed, flush=True)
            Path(path).write_bytes(mutate(parts, seed))
            signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
            try:
                read(path, folder, seed)
            except Exception:
                print("finding", seed, traceback.format_exc().replace("\n", " | "), flush=True)
            signal.setitimer(signal.ITIMER_PROF, 0)
    print("end", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 1e9)
