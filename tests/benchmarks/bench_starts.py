# SPDX-License-Identifier: Apache-2.0
"""How long a person waits: processor time of short commands, of a list of functions, and until the first probe.

Each command is a process of its own, its start included, of all its threads and children. The recording has some
hundred packets; its spans go to a receiver in this process. The functions are those of the largest of some files
that most machines have; what is kept of files is empty before ("never seen") or as the run before left it ("seen
before"). The first probe is that of a dpdk-testpmd, where it is installed, with `--trial 0s`: until its gates are open.
The first run of each is not counted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.bench_attach import measure_first_probe
from tests.benchmarks.rounds import Spread, make_parser, spread, write_figures
from tests.support.otlp_receiver import Receiver
from tests.support.synthetic_recording import write_recording
from tests.support.testpmd import Testpmd

RUNS, RUNS_SHORT = 15, 1
FILES = ("usr/lib/*/libcrypto.so.*", "usr/bin/python3.*", "usr/lib/*/libc.so.6")
SEEN, NEVER_SEEN = "seen before", "never seen"
TESTPMD = "dpdk-testpmd"


def cpu_seconds(words: list[str], folder: Path) -> float:
    """Of one command, its output thrown away; `folder` has what it keeps of files. Its exit status may be any."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-m", "otel_nfprobe", *words]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):  # 1: `status` where no session runs
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime


def find_file() -> Path:
    """The largest of FILES, so that it has many functions."""
    return max((path for glob in FILES for path in Path("/").glob(glob)), key=lambda path: path.stat().st_size)


@contextmanager
def running_testpmd() -> Iterator[int | None]:
    """Its process ID while it waits for commands, its ports started; None where it is not installed."""
    if not shutil.which(TESTPMD):
        print(f"{TESTPMD} is not installed: apt-get install dpdk")
        yield None
        return
    testpmd = Testpmd(TESTPMD, f"nfpstarts{os.getpid()}", "net_null0 net_null1", "macswap", True, "0@0,1@0")
    try:
        yield testpmd.pid
    finally:
        testpmd.stop()


def measure_round(commands: dict[str, list[str]], file: Path, pid: int | None, seen: Path) -> dict[str, float]:
    """One of everything, in seconds."""
    found = {name: cpu_seconds(words, seen) for name, words in commands.items()}
    with tempfile.TemporaryDirectory() as empty:
        for state, folder in ((NEVER_SEEN, Path(empty)), (SEEN, seen)):
            found[f"functions, {state}"] = cpu_seconds(["functions", str(file)], folder)
    if pid is not None:
        with tempfile.TemporaryDirectory() as empty:
            for state, place in ((NEVER_SEEN, empty), (SEEN, str(seen))):
                found[f"first probe, {state}"] = measure_first_probe(pid, place, "--trial", "0s")
    return found


def count_functions(file: Path) -> int:
    """How many `nfprobe functions` lists."""
    words = [sys.executable, "-m", "otel_nfprobe", "functions", str(file)]
    lines = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    summary = next(line for line in lines if " can be probed (" in line)
    return int(summary.split()[0].replace(",", ""))


def measure(runs: int) -> dict[str, Spread]:
    """Of each command, processor time in seconds."""
    rounds = []
    receiver, file = Receiver(), find_file()
    try:
        with tempfile.TemporaryDirectory() as folder, running_testpmd() as pid:
            recording = str(write_recording(Path(folder) / "small.nfprobe"))
            endpoint = f"http://127.0.0.1:{receiver.port}"
            commands = {
                "--version": ["--version"],
                "status": ["status"],
                "report": ["report", recording],
                "export": ["export", recording, "--endpoint", endpoint],
            }
            for _ in range(runs + 1):
                rounds.append(measure_round(commands, file, pid, Path(folder)))
    finally:
        receiver.stop()
    return {name: spread(found[name] for found in rounds[1:]) for name in rounds[0]}


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    runs = RUNS_SHORT if arguments.short else RUNS
    file = find_file()
    functions = count_functions(file)
    print(f"processor time, median of {runs} (quartiles); {file.name} has {functions:,} functions")
    figures = measure(runs)
    for name, found in figures.items():
        print(f"{name:28s} {found.median:.3f} s ({found.low:.3f} .. {found.high:.3f})", flush=True)
    write_figures(arguments.json, {"file": file.name, "functions": functions, "seconds": figures})
    return 0


if __name__ == "__main__":
    sys.exit(main())
