# SPDX-License-Identifier: Apache-2.0
"""Counters against the kernel's own count, for a person with a performance monitoring unit; elsewhere it says why not.

One thread calls a function of many instructions again and again. What its calls sum up to, and their probes, must be
what a plain perf event of that thread, and `perf stat -t` where perf is installed, count meanwhile, within 1 %: the
rest of the program is a few instructions a call. Prints the sums, their ratios, and whether instructions and branches
of a call are what the code of the function says, to the instruction (an interrupt now and then adds one on some
processors); exit status 1 when anything does not agree, but in a short round.

The thread stays on one CPU, so that on a hybrid processor one kind of core counts. Three events of one kind are open at
a time: end other programs that hold counters, and the NMI watchdog (`sysctl kernel.nmi_watchdog=0`), if it says that
they were not counted.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import Counter, choose_counters
from otel_nfprobe.counters.perf import Kernel
from tests.benchmarks.rounds import make_parser, write_figures
from tests.support.probed import Probed, Talker, wait_until

NAMES = ("instructions", "cycles", "branches")
CALLS, CALLS_SHORT = 20_000, 2_000
WITHIN = 0.01
PERF_PATIENCE_S = 20.0
# Of a call of `step`: mov, 50,000 times sub and jnz, ret. Without what the probes count, which is taken off.
EXACT = {"instructions": 2 * 50_000 + 2, "branches": 50_000 + 1}
TARGET = Path(__file__).resolve().parent.parent / "targets" / "stepping.c"


def start_target(folder: Path) -> Talker:
    """Compiles and starts the program that is measured."""
    program = folder / "stepping"
    subprocess.run(["gcc", "-O2", "-fcf-protection=none", str(TARGET), "-o", str(program)], check=True)
    return Talker(subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


class PerfStat:
    """What `perf stat` counts of a thread inside the `with`: exactly there, as perf is told to begin and to end.

    Attributes:
        count: None: there is no perf, or it has not counted.
    """

    def __init__(self, tid: int, name: str) -> None:
        self.count: float | None = None
        self._process: subprocess.Popen[str] | None = None
        self._command = ["perf", "stat", "-x", ",", "-D", "-1", "-e", f"{name}:u", "-t", str(tid), "--control"]

    def __enter__(self) -> PerfStat:
        if shutil.which("perf"):
            (theirs, self._say), (self._hear, answers) = os.pipe(), os.pipe()
            command = [*self._command, f"fd:{theirs},{answers}"]
            self._process = subprocess.Popen(command, pass_fds=(theirs, answers), stderr=subprocess.PIPE, text=True)
            os.close(theirs)
            os.close(answers)
            self._tell("enable")
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._tell("disable")
        self._process.send_signal(signal.SIGINT)
        _, printed = self._process.communicate(timeout=PERF_PATIENCE_S)
        os.close(self._say)
        os.close(self._hear)
        # On a hybrid processor a line for each kind of core; "<not counted>" is no number.
        values = [line.split(",")[0] for line in printed.splitlines() if line.count(",") > 3]
        counts = [float(value) for value in values if value.replace(".", "", 1).isdigit()]
        self.count = sum(counts) if counts else None

    def _tell(self, command: str) -> None:
        try:
            os.write(self._say, command.encode() + b"\n")
            if select.select([self._hear], [], [], PERF_PATIENCE_S)[0]:
                os.read(self._hear, 16)
        except BrokenPipeError:
            pass  # it has ended: there is no count


def count_by_kernel(counter: Counter, tid: int, act: Callable[[], object]) -> int | None:
    """What an event of the thread counts meanwhile; None: it did not, or not all of the time."""
    kernel = Kernel()
    descriptor = kernel.open(counter, counter.event_for(os.sched_getaffinity(tid)), tid, disabled=False)
    act()
    found = kernel.read(descriptor)
    kernel.close(descriptor)
    return found[0] if found is not None and found[1] == found[2] else None


def compare(talker: Talker, name: str, calls: int) -> bool:
    """Whether the sum over all calls is what the kernel, and perf, count for the thread."""
    (counter,) = choose_counters(name).counters
    probed = Probed(talker.pid, ["stepping*:step"], ring_bytes=64 << 20)
    probed.monitor.counters = (counter,)
    with probed:
        talker.ask("steps 10")  # a thread has counters once it has written a record
        assert wait_until(lambda: _is_counted(probed))
        with PerfStat(talker.pid, name) as perf:
            thread = count_by_kernel(counter, talker.pid, lambda: talker.ask(f"steps {calls}"))
    sums = probed.monitor.drain.counter_sums
    assert sums is not None
    counted = sums.of_function(probed.monitor.attachment.probes[0].id).get(name)
    if not counted or not counted["calls"]:
        print(f"{name}: no call was counted ({counted})")
        return False
    print(f"{name}: {counted}")
    expected = (counted["mean"] + counted["probe"]["whole"]) * calls  # a call that was switched out counts as another
    agrees = [_agrees(name, expected, "an event of the thread", thread)]
    if shutil.which("perf"):
        agrees.append(_agrees(name, expected, "perf stat", perf.count))
    else:
        print(f"{name}: perf is not installed")
    is_exact = round(counted["mean"]) == EXACT.get(name, round(counted["mean"]))
    if not is_exact:
        print(f"{name}: {counted['mean']:.3f} a call, where the function has {EXACT[name]}")
    return all(agrees) and is_exact


def _agrees(name: str, expected: float, who: str, count: float | None) -> bool:
    if not count:
        print(f"{name}: {who} was not counted all of the time: too few free counters?")
        return False
    print(f"{name}: {expected:,.0f} in the calls and their probes, {count:,.0f} by {who}, ratio {expected / count:.4f}")
    return abs(expected / count - 1) <= WITHIN


def stay_on_one_cpu(pid: int) -> None:
    """Of the first kind of core, where there are several kinds."""
    (counter,) = choose_counters(NAMES[0]).counters
    allowed = os.sched_getaffinity(pid)
    os.sched_setaffinity(pid, {max(allowed & counter.events[0].cpus or allowed)})


def _is_counted(probed: Probed) -> bool:
    threads = probed.monitor.counting
    return bool(threads.refused) or any(group.descriptors for group in threads._groups.values())


def main() -> int:
    arguments = make_parser(__doc__).parse_args()
    calls = CALLS_SHORT if arguments.short else CALLS
    refusal = find_refusal(choose_counters(",".join(NAMES)))
    if refusal is not None:
        print(f"skipped: {refusal.reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        talker = start_target(Path(folder))
        try:
            stay_on_one_cpu(talker.pid)
            agree = {name: compare(talker, name, calls) for name in NAMES}  # all of them are printed
            write_figures(arguments.json, agree)
            return 0 if all(agree.values()) or arguments.short else 1
        finally:
            talker.process.kill()


if __name__ == "__main__":
    sys.exit(main())
