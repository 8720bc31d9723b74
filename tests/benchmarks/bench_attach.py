# SPDX-License-Identifier: Apache-2.0
"""What an attach costs: analysis, trampolines, arming, the longest stop, and the monitor's memory.

Target: Debian's python3 with libcrypto. 20,000 functions of the program, libcrypto and libc are analysed and get
trampolines, by a monitor that has never seen these files and by one that has: on an idle target, since processor time
is longer where a busy one shares its caches. The stops are those of a target of which two threads hash without pause,
one for each CPU: all 20,000 and 1,000 of libcrypto are armed. Then `nfprobe attach` runs as a user runs it, for its
memory.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.target import Target

IDLE = """
import hashlib
print("ready", flush=True)
input()
"""
HASHING = """
import hashlib, threading
block = bytes(1 << 20)
def hash_blocks():
    while True:
        hashlib.sha256(block).digest()
for _ in range(2):
    threading.Thread(target=hash_blocks, daemon=True).start()
print("ready", flush=True)
input()
"""
MODULES = ("python3*:*", "libcrypto.so*:*", "libc.so*:*")
ALL_FUNCTIONS = 20_000
ARMED = 1_000


def start_target(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def measure_all(pid: int) -> dict[str, float]:
    """Seconds of the clock and of processor time for 20,000 functions: their analysis, then everything else."""
    target = Target(pid)
    target.modules()
    began = time.monotonic(), time.process_time()
    choice = choose(target, None, MODULES, [], None, False)
    choice.plans = choice.plans[:ALL_FUNCTIONS]
    planned = time.monotonic(), time.process_time()
    monitor = Monitor(target, choice, 1 << 20, "none", lambda sentence: None)
    monitor.attach()
    attached = time.monotonic(), time.process_time()
    monitor.start(Clock.start(), None, None)
    monitor.detach()
    monitor.close()
    return {
        "functions": len(choice.plans),
        "analysis_s": planned[0] - began[0],
        "analysis_processor_s": planned[1] - began[1],
        "attach_s": attached[0] - planned[0],
        "attach_processor_s": attached[1] - planned[1],
        "stops": monitor.patcher.stops.count,
        "longest_stop_ms": monitor.patcher.stops.longest_ns / 1e6,
    }


def measure_in_child(pid: int, cache_folder: str) -> dict[str, float]:
    """As measure_all, by a process of its own, which knows of the files what it finds in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache_folder}
    words = [sys.executable, __file__, "--measure", str(pid)]
    answer = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def measure_idle() -> tuple[dict[str, float], dict[str, float]]:
    """The figures of the first monitor that sees these files, and of the next one."""
    process = start_target(IDLE)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return measure_in_child(process.pid, folder), measure_in_child(process.pid, folder)
    finally:
        process.kill()
        process.wait()


def measure_armed(pid: int) -> dict[str, float]:
    """Seconds to inject, make trampolines for and arm 1,000 functions, and the longest stop."""
    target = Target(pid)
    choice = choose(target, None, ["libcrypto.so*:*"], [], None, False)
    choice.plans = [plan for plan in choice.plans if plan.strategy is not None][::8][:ARMED]
    monitor = Monitor(target, choice, 1 << 20, "none", lambda sentence: None)
    clock = time.monotonic()
    monitor.attach()
    seconds = time.monotonic() - clock
    monitor.start(Clock.start(), None, None)
    monitor.detach()
    monitor.close()
    return {
        "armed": len(monitor.probes),
        "armed_s": seconds,
        "longest_stop_ms": monitor.patcher.stops.longest_ns / 1e6,
        "changed_live": monitor.patcher.live.changed,
    }


def measure_memory(pid: int) -> float:
    """MiB that `nfprobe attach` has resident at most, with 1,000 functions and defaults else."""
    words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--functions", "libcrypto.so*:EVP_*"]
    subprocess.run([*words, "--for", "2s"], check=True, capture_output=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def print_processor_time(what: str, figures: dict[str, float]) -> None:
    analysis, rest = figures["analysis_processor_s"], figures["attach_processor_s"]
    print(
        f"{figures['functions']:,} functions, {what}: analysis {analysis:.2f} s of processor time, trampolines, arming "
        f"and all else {rest:.2f} s, together {analysis + rest:.2f} s "
        f"({figures['analysis_s'] + figures['attach_s']:.2f} s of the clock)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--measure", type=int, metavar="PID", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure_all(arguments.measure)))
        return
    process = start_target(HASHING)
    try:
        memory_mib = measure_memory(process.pid)  # first: it counts the largest of all children until then
    finally:
        process.kill()
        process.wait()
    first, kept = measure_idle()
    process = start_target(HASHING)
    try:
        everything, armed = measure_all(process.pid), measure_armed(process.pid)
    finally:
        process.kill()
        process.wait()
    print_processor_time("files never seen before", first)
    print_processor_time("files known from an earlier attach", kept)
    print(
        f"the same with two busy threads: {everything['attach_s']:.2f} s of the clock for trampolines, arming and all "
        f"else, {everything['stops']} stops, the longest {everything['longest_stop_ms']:.2f} ms"
    )
    print(
        f"{armed['armed']:,} probes in place after {armed['armed_s']:.2f} s, {armed['changed_live']:,} changes "
        f"without a stop, longest stop {armed['longest_stop_ms']:.2f} ms"
    )
    print(f"memory of the monitor: {memory_mib:.0f} MiB")
    if arguments.json:
        figures = {"first": first, "kept": kept, "all": everything, "armed": armed, "memory_mib": memory_mib}
        arguments.json.write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
