# SPDX-License-Identifier: Apache-2.0
"""How fast a trace is read: nfprobe beside babeltrace2 and uftrace, where they are installed, with equally many events.

nfprobe reads a recording of calls; babeltrace2 a CTF trace of the same entries and exits (clock, kind, function);
uftrace what it recorded of a program that makes as many calls. CPU time of each reader as a process, start included;
the first run of each is not counted.
Debian: apt-get install babeltrace2 uftrace.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from otel_nfprobe.base.columns import Rows
from tests.benchmarks.bench_pipeline import RING_BYTES, RING_BYTES_SHORT
from tests.benchmarks.bench_recording import varied_stream, write
from tests.benchmarks.rounds import make_parser, spread, write_figures

RUNS = 5
LAPS = 3  # of the stream of bench_recording.py: more than that does not fit into its queue at once
METADATA = """/* CTF 1.8 */
typealias integer { size = 32; align = 8; signed = false; } := uint32_t;
trace { major = 1; minor = 8; byte_order = le; };
clock { name = tsc; freq = 2600000000; };
typealias integer { size = 64; align = 8; signed = false; map = clock.tsc.value; } := time_t;
stream { event.header := struct { uint32_t id; time_t timestamp; }; };
event { name = "entry"; id = 0; fields := struct { uint32_t function; }; };
event { name = "exit"; id = 1; fields := struct { uint32_t function; }; };
"""
PROGRAM = """
__attribute__((noinline)) int leaf(int x) { __asm__ volatile(""); return x + 1; }
int main(void) { int x = 0; for (int i = 0; i < CALLS; i++) x = leaf(x); return x == 7; }
"""


def make_records(ring_bytes: int) -> Rows:
    """Entries and exits only, in order of time."""
    lap = varied_stream(32, False, ring_bytes)
    lap = lap[(lap["tag"] >> 24) <= 3]
    records = np.tile(lap, LAPS)
    records["value"] += np.repeat(np.arange(LAPS, dtype=np.uint64) * (lap["value"].max() + np.uint64(1000)), len(lap))
    return records


def write_ctf(folder: Path, records: Rows) -> None:
    """The records as events of a common trace format, one stream without packets' headers."""
    folder.mkdir()
    events = np.zeros(len(records), dtype=[("id", "<u4"), ("timestamp", "<u8"), ("function", "<u4")])
    events["id"] = (records["tag"] >> 24) & 1
    events["timestamp"] = np.maximum.accumulate(records["value"])
    events["function"] = records["tag"] & 0xFFFF
    (folder / "metadata").write_text(METADATA)
    (folder / "stream").write_bytes(events.tobytes())


def record_by_uftrace(folder: Path, calls: int) -> Path:
    source, program, data = folder / "calls.c", folder / "calls", folder / "uftrace"
    source.write_text(PROGRAM.replace("CALLS", str(calls)))
    subprocess.run(["gcc", "-O2", "-pg", "-o", program, source], check=True)
    command = ["uftrace", "record", "--no-libcall", "--buffer", "64m", "-d", data, program]
    subprocess.run(command, check=True, capture_output=True)
    return data


def cpu_seconds(command: list[str | Path]) -> float:
    """Of one run, its output thrown away."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def find_commands(folder: Path, records: Rows) -> dict[str, list[str | Path]]:
    """What reads what, by name; says which reader is missing."""
    write(folder / "recording.nfp", records)
    commands: dict[str, list[str | Path]] = {
        "nfprobe report": [sys.executable, "-m", "otel_nfprobe", "report", folder / "recording.nfp"]
    }
    if shutil.which("babeltrace2"):
        write_ctf(folder / "ctf", records)
        commands["babeltrace2, counter"] = ["babeltrace2", folder / "ctf", "--component=sink.utils.counter"]
        commands["babeltrace2, text"] = ["babeltrace2", folder / "ctf"]
    else:
        print("babeltrace2 is not installed: apt-get install babeltrace2")
    if shutil.which("uftrace"):
        data = record_by_uftrace(folder, len(records) // 2)
        commands["uftrace report"] = ["uftrace", "report", "-d", data]
        commands["uftrace replay"] = ["uftrace", "replay", "--no-pager", "-d", data]
    else:
        print("uftrace is not installed: apt-get install uftrace")
    return commands


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    records = make_records(RING_BYTES_SHORT if arguments.short else RING_BYTES)
    runs = 1 if arguments.short else RUNS
    figures: dict[str, Any] = {"events": len(records)}
    print(f"{len(records):,} entries and exits; million a second of one core (CPU time, median of {runs}, quartiles)")
    with tempfile.TemporaryDirectory() as folder:
        for name, command in find_commands(Path(folder), records).items():
            seconds = [cpu_seconds(command) for _ in range(runs + 1)][1:]
            rate = figures[name] = spread(len(records) / spent for spent in seconds)
            shown = f"{rate.median / 1e6:7.1f} ({rate.low / 1e6:.1f} .. {rate.high / 1e6:.1f})"
            print(f"{name:24s} {shown}", flush=True)
    write_figures(arguments.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
