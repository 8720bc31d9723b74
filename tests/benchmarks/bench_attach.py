# SPDX-License-Identifier: Apache-2.0
"""What an attach costs: analysis, trampolines, arming, the longest stop, and the monitor's memory.

Target: Debian's python3 with libcrypto, two threads of which hash without pause, one for each CPU. 20,000 functions of
the program, libcrypto and libc are analysed and get trampolines; 1,000 of libcrypto are armed. Then `nfprobe attach`
runs as a user runs it, for its memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from otel_nfprobe.choice import choose
from otel_nfprobe.clock import Clock
from otel_nfprobe.monitor import Monitor
from otel_nfprobe.target import Target

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


def start_target() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", HASHING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def measure_all(pid: int) -> dict[str, float]:
    """Seconds of processor time and of the clock for the analysis and trampolines of 20,000 functions."""
    target = Target(pid)
    target.modules()
    clock, processor = time.monotonic(), time.process_time()
    choice = choose(target, None, MODULES, [], None, False)
    choice.plans = choice.plans[:ALL_FUNCTIONS]
    planned, planned_processor = time.monotonic(), time.process_time()
    monitor = Monitor(target, choice, 1 << 20, False, lambda sentence: None)
    monitor.attach()
    attached = time.monotonic()
    monitor.start(Clock.start(), None, None)
    monitor.detach()
    monitor.close()
    return {
        "functions": len(choice.plans),
        "analysis_s": planned - clock,
        "analysis_processor_s": planned_processor - processor,
        "attach_s": attached - planned,
        "stops": monitor.patcher.stops.count,
        "longest_stop_ms": monitor.patcher.stops.longest_ns / 1e6,
    }


def measure_armed(pid: int) -> dict[str, float]:
    """Seconds to inject, make trampolines for and arm 1,000 functions, and the longest stop."""
    target = Target(pid)
    choice = choose(target, None, ["libcrypto.so*:*"], [], None, False)
    choice.plans = [plan for plan in choice.plans if plan.strategy is not None][::8][:ARMED]
    monitor = Monitor(target, choice, 1 << 20, False, lambda sentence: None)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    process = start_target()
    try:
        memory_mib = measure_memory(process.pid)  # first: a child counts what its parent had before it began
        everything, armed = measure_all(process.pid), measure_armed(process.pid)
    finally:
        process.kill()
        process.wait()
    print(
        f"{everything['functions']:,} functions: analysis {everything['analysis_s']:.2f} s "
        f"({everything['analysis_processor_s']:.2f} s of processor time), trampolines, arming and all else "
        f"{everything['attach_s']:.2f} s, {everything['stops']} stops, "
        f"the longest {everything['longest_stop_ms']:.2f} ms"
    )
    print(
        f"{armed['armed']:,} probes in place after {armed['armed_s']:.2f} s, {armed['changed_live']:,} changes "
        f"without a stop, longest stop {armed['longest_stop_ms']:.2f} ms"
    )
    print(f"memory of the monitor: {memory_mib:.0f} MiB")
    if arguments.json:
        arguments.json.write_text(json.dumps({"all": everything, "armed": armed, "memory_mib": memory_mib}) + "\n")


if __name__ == "__main__":
    main()
