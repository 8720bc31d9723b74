# SPDX-License-Identifier: Apache-2.0
"""What an attach costs: the first probe, analysis, trampolines, arming, the longest stop, and the monitor's memory.

Target: Debian's python3 with libcrypto. 20,000 functions of the program, libcrypto and libc are analysed and get
trampolines, by a monitor that has never seen these files and by one that has: on an idle target, since processor time
is longer where a busy one shares its caches. Processor time is the monitor's and that of the children that patch for
it. The stops are those of a target of which two threads hash without pause, one for each CPU: all 20,000 and 1,000 of
libcrypto are armed. `nfprobe attach` runs as a user runs it, for its memory, and on the double of VPP for the processor
time until its probes are in place. Medians of several rounds, each with targets of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from otel_nfprobe.base.clock import Clock
from otel_nfprobe.monitor.attachment import Attachment
from otel_nfprobe.monitor.latecapture import NONE
from otel_nfprobe.monitor.monitor import Monitor
from otel_nfprobe.probes.probe_selection import choose
from otel_nfprobe.target.target import Target
from tests.benchmarks.rounds import Spread, make_parser, spent_s, spread, write_figures
from tests.support.vpp_double import build_double

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
ROUNDS = 5
ARMED_EACH = 8  # of so many functions of libcrypto one is armed


@dataclass(frozen=True)
class Extent:
    """How much is attached to.

    Attributes:
        globs: what functions are chosen from.
        functions: how many of these.
        armed_globs: what functions for a few probes are chosen from.
        armed: how many of these.
        seconds: that `nfprobe attach` stays.
    """

    globs: Sequence[str]
    functions: int
    armed_globs: Sequence[str]
    armed: int
    seconds: float


FULL = Extent(("python3*:*", "libcrypto.so*:*", "libc.so*:*"), 20_000, ("libcrypto.so*:*",), 1_000, 2.0)
SHORT = Extent(("libcrypto.so*:EVP_*",), 500, ("libcrypto.so*:EVP_*",), 50, 0.2)


@contextmanager
def running(program: str) -> Iterator[int]:
    """The target's process id."""
    process = subprocess.Popen(
        ["/usr/bin/python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()


def measure_all(pid: int, extent: Extent) -> dict[str, float]:
    """Seconds of the clock and of processor time for all functions: their analysis, then everything else."""
    target = Target(pid)
    target.modules()
    began = time.monotonic(), spent_s()
    choice = choose(target, None, list(extent.globs), [], None, False)
    choice.plans = choice.plans[: extent.functions]
    planned = time.monotonic(), spent_s()
    monitor = Monitor(Attachment(target, choice, 1 << 20, lambda sentence: None), NONE)
    monitor.attachment.attach()
    attached = time.monotonic(), spent_s()
    monitor.start(Clock.start(), None, None)
    monitor.detach()
    monitor.attachment.close()
    analysis, rest = planned[1] - began[1], attached[1] - planned[1]
    return {
        "functions": len(choice.plans),
        "analysis_processor_s": analysis,
        "attach_processor_s": rest,
        "processor_s": analysis + rest,
        "attach_s": attached[0] - planned[0],
        "clock_s": attached[0] - began[0],
        "stops": monitor.attachment.patcher.stops.count,
        "longest_stop_ms": monitor.attachment.patcher.stops.longest_ns / 1e6,
    }


def measure_in_child(pid: int, cache_folder: str, is_short: bool) -> dict[str, float]:
    """As measure_all, by a process of its own, which knows of the files what it finds in a folder."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache_folder}
    words = [
        sys.executable,
        "-m",
        "tests.benchmarks.bench_attach",
        "--measure",
        str(pid),
        *(["--short"] if is_short else []),
    ]
    answer = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def measure_armed(pid: int, extent: Extent) -> dict[str, float]:
    """Seconds to inject, make trampolines for and arm some functions of libcrypto, and the longest stop."""
    target = Target(pid)
    choice = choose(target, None, list(extent.armed_globs), [], None, False)
    choice.plans = [plan for plan in choice.plans if plan.strategy is not None][::ARMED_EACH][: extent.armed]
    monitor = Monitor(Attachment(target, choice, 1 << 20, lambda sentence: None), NONE)
    began_s = time.monotonic()
    monitor.attachment.attach()
    seconds = time.monotonic() - began_s
    monitor.start(Clock.start(), None, None)
    monitor.detach()
    monitor.attachment.close()
    return {
        "armed": len(monitor.attachment.probes),
        "armed_s": seconds,
        "longest_stop_ms": monitor.attachment.patcher.stops.longest_ns / 1e6,
        "changed_live": monitor.attachment.patcher.live.changed,
    }


@contextmanager
def running_double(program: Path) -> Iterator[int]:
    """The process id of a double of VPP whose nodes have run."""
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write("1000\n")
        process.stdin.flush()
        process.stdout.readline()
        yield process.pid
    finally:
        process.kill()
        process.wait()


def measure_first_probe(pid: int, folder: str, *options: str) -> float:
    """Seconds of processor time that `nfprobe attach` has taken when its probes are in place and its gates open.

    Args:
        folder: for what it knows of files, and for its recording.
        options: further ones.
    """
    record = ["--record", f"{folder}/attach.nfprobe"]
    words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), *record, *options]
    process = subprocess.Popen(words, env={**os.environ, "XDG_CACHE_HOME": folder}, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("nfprobe: attached to "):
            break
    else:
        raise SystemExit(f"nfprobe attach has ended: {''.join(said)}")
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    children_s = sum(map(int, ticks[13:15])) / os.sysconf("SC_CLK_TCK")
    threads = Path(f"/proc/{process.pid}/task").iterdir()
    own_s = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9
    process.send_signal(signal.SIGINT)
    process.stderr.read()
    process.wait()
    return own_s + children_s


def measure_memory(pid: int, extent: Extent) -> dict[str, float]:
    """MiB that `nfprobe attach` has resident at most, with some hundred functions and defaults else."""
    words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--functions", "libcrypto.so*:EVP_*"]
    process = subprocess.Popen(
        [*words, "--for", f"{extent.seconds}s"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)  # of this one alone: RUSAGE_CHILDREN has the largest of all
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"nfprobe attach ended with status {process.returncode}: {said.decode(errors='replace')}")
    return {"mib": usage.ru_maxrss / 1024}


def measure_round(extent: Extent, is_short: bool, double: Path) -> dict[str, dict[str, float]]:
    """One of everything."""
    found = {}
    with running_double(double) as pid, tempfile.TemporaryDirectory() as folder:
        found["first_probe"] = {
            "never_seen_s": measure_first_probe(pid, folder),
            "known_s": measure_first_probe(pid, folder),
        }
    with running(IDLE) as pid:
        found["memory"] = measure_memory(pid, extent)
    with running(IDLE) as pid, tempfile.TemporaryDirectory() as folder:
        found["first"] = measure_in_child(pid, folder, is_short)
        found["kept"] = measure_in_child(pid, folder, is_short)
    with running(HASHING) as pid:
        found["all"], found["armed"] = measure_all(pid, extent), measure_armed(pid, extent)
    return found


def show(figures: dict[str, dict[str, Spread]]) -> None:
    """Prints the figures."""
    for name, what in (("never_seen_s", "files never seen before"), ("known_s", "files known from an earlier attach")):
        found = figures["first_probe"][name]
        print(
            f"VPP's double, {what}: its probes are in place after {found.median:.2f} s of processor time"
            f" ({found.low:.2f} .. {found.high:.2f})"
        )
    everything, armed, memory = figures["all"], figures["armed"], figures["memory"]["mib"]
    for name, what in (("first", "files never seen before"), ("kept", "files known from an earlier attach")):
        found = figures[name]
        whole = found["processor_s"]
        print(
            f"{found['functions'].median:,.0f} functions, {what}: analysis"
            f" {found['analysis_processor_s'].median:.2f} s of processor time, trampolines, arming and all else"
            f" {found['attach_processor_s'].median:.2f} s, together {whole.median:.2f} s ({whole.low:.2f} .. "
            f"{whole.high:.2f}; {found['clock_s'].median:.2f} s of the clock)"
        )
    stop, armed_s = everything["longest_stop_ms"], armed["armed_s"]
    print(
        f"the same with two busy threads: {everything['attach_s'].median:.2f} s of the clock for trampolines, arming"
        f" and all else, {everything['stops'].median:.0f} stops, the longest {stop.median:.2f} ms"
        f" ({stop.low:.2f} .. {stop.high:.2f})"
    )
    stop = armed["longest_stop_ms"]
    print(
        f"{armed['armed'].median:,.0f} probes in place after {armed_s.median:.2f} s ({armed_s.low:.2f} .."
        f" {armed_s.high:.2f}), {armed['changed_live'].median:,.0f} changes without a stop, longest stop"
        f" {stop.median:.2f} ms ({stop.low:.2f} .. {stop.high:.2f})"
    )
    print(f"memory of the monitor: {memory.median:.0f} MiB ({memory.low:.0f} .. {memory.high:.0f})")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", type=int, metavar="PID", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    extent = SHORT if arguments.short else FULL
    if arguments.measure:
        print(json.dumps(measure_all(arguments.measure, extent)))
        return
    with tempfile.TemporaryDirectory() as folder:
        double = build_double(Path(folder), 2606)
        turns = range(1 if arguments.short else arguments.rounds)
        rounds = [measure_round(extent, arguments.short, double) for _ in turns]
    figures = {
        part: {name: spread(found[part][name] for found in rounds) for name in rounds[0][part]} for part in rounds[0]
    }
    show(figures)
    write_figures(arguments.json, figures)


if __name__ == "__main__":
    main()
