# SPDX-License-Identifier: Apache-2.0
"""Reads damaged ELF files in this process: each must end in a plan or in a sentence.

    python reading_child.py FILE FIRST LAST [SECONDS]

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
import time
import traceback
from collections import Counter
from pathlib import Path

from otel_nfprobe.base.errors import NfprobeError
from otel_nfprobe.base.strategies import STRATEGIES
from otel_nfprobe.cli.main import main as main_of_nfprobe
from otel_nfprobe.elf import elf
from otel_nfprobe.elf.modules import Module
from otel_nfprobe.elf.symbols import functions_of
from otel_nfprobe.probes.analysis import plan_functions
from tests.fuzz.mutate import Layout, mutate

CASE_SECONDS = 10  # of processor time; a good file takes one
MEMORY_BYTES = 4 << 30
NEXT_STRATEGY = (None, *STRATEGIES)


def read(path: str, seed: int) -> str:
    """What became of one file: "ok", or a sentence. Other exceptions are findings."""
    try:
        module = Module.from_file(path)
        functions = functions_of(module)
        plans = plan_functions(functions, None, NEXT_STRATEGY[seed % len(NEXT_STRATEGY)])
        assert all(plan.strategy or plan.reason for plan in plans)
        _ = (module.build_id, module.names, module.image.is_go, module.image.slots)
    except NfprobeError as error:
        if not error.sentence.endswith("."):
            raise AssertionError("no sentence") from error
        return error.sentence
    return "ok"


def list_functions(path: str, seed: int) -> None:
    """The same by the command line: an exit status that the documents name, and at least one word of why."""
    words = [["--json"], [], ["--inlined", "--json"]][seed % 3]
    said, refused = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(refused):
        status = main_of_nfprobe(["functions", path, *words])
    assert status in range(4), status
    assert status == 0 or refused.getvalue(), status
    assert "(unexpected" not in refused.getvalue(), refused.getvalue()


def main(source: str, first: int, last: int, seconds: float) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["NFPROBE_DEBUG"] = "1"
    layout = Layout(Path(source).read_bytes())
    path = f"{source}.damaged{os.getpid()}"
    ends: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(first, last):
        if time.monotonic() - started > seconds:
            break
        print("case", seed, flush=True)
        Path(path).write_bytes(mutate(layout, seed))
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        try:
            ends["ok" if read(path, seed) == "ok" else "refused"] += 1
            list_functions(path, seed)
        except Exception:
            print("finding", seed, traceback.format_exc().replace("\n", " | "), flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)
        elf._images.clear()
    os.unlink(path)
    print("end", dict(ends), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) if len(sys.argv) > 4 else 1e9)
