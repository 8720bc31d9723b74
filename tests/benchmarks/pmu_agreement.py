# SPDX-License-Identifier: Apache-2.0
"""Counters against the kernel's own count, for a person with a performance monitoring unit; elsewhere it says why not.

One thread calls a function of many instructions again and again. What its calls sum up to must be what a plain perf
event of that thread counts meanwhile, within 1 %: the rest of the program is a few instructions a call. Prints both
sums, their ratio, and whether instructions and branches of a call are what the code of the function says, to the
instruction (an interrupt now and then adds one on some processors); exit status 1 when anything does not agree.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration"))
from probed import Probed, Talker, wait_until

from otel_nfprobe.counters.availability import find_refusal
from otel_nfprobe.counters.choice import choose_counters
from otel_nfprobe.counters.perf import Kernel

NAMES = ("instructions", "cycles", "branches")
CALLS = 20_000
WITHIN = 0.01
# Of a call of `step`: mov, 50,000 times sub and jnz, ret. Without what the probes count, which is taken off.
EXACT = {"instructions": 2 * 50_000 + 2, "branches": 50_000 + 1}
TARGET = Path(__file__).resolve().parent.parent / "targets" / "stepping.c"


def start_target(folder: Path) -> Talker:
    """Compiles and starts the program that is measured."""
    program = folder / "stepping"
    subprocess.run(["gcc", "-O2", "-fcf-protection=none", str(TARGET), "-o", str(program)], check=True)
    return Talker(subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


def compare(talker: Talker, name: str) -> bool:
    """Whether the sum over all calls is what the kernel counts for the thread."""
    choice, kernel = choose_counters(name), Kernel()
    probed = Probed(talker.pid, ["stepping*:step"], ring_bytes=64 << 20)
    probed.monitor.counters = choice.hardware
    with probed:
        talker.ask("steps 10")  # a thread has counters once it has written a record
        assert wait_until(lambda: _is_counted(probed))
        descriptor = kernel.open(choice.counters[0], choice.counters[0].events[0], talker.pid, disabled=False)
        talker.ask(f"steps {CALLS}")
        found = kernel.read(descriptor)
        kernel.close(descriptor)
    sums = probed.monitor.drain.counter_sums
    assert sums is not None
    counted = sums.of_function(probed.monitor.probes[0].id)[name]
    if found is None or not counted["calls"]:
        print(f"{name}: nothing was counted ({counted['invalid']} calls are marked)")
        return False
    expected = counted["mean"] * CALLS
    ratio = expected / found[0]
    print(f"{name}: {expected:,.0f} in the calls, {found[0]:,} in the thread, ratio {ratio:.4f}, {counted}")
    is_exact = round(counted["mean"]) == EXACT.get(name, round(counted["mean"]))
    if not is_exact:
        print(f"{name}: {counted['mean']:.3f} a call, where the function has {EXACT[name]}")
    return abs(ratio - 1) <= WITHIN and is_exact


def _is_counted(probed: Probed) -> bool:
    threads = probed.monitor.counting
    return bool(threads.refused) or any(group.descriptors for group in threads._groups.values())


def main() -> int:
    refusal = find_refusal(choose_counters(",".join(NAMES)))
    if refusal is not None:
        print(f"skipped: {refusal.reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        talker = start_target(Path(folder))
        try:
            agree = [compare(talker, name) for name in NAMES]  # all of them are printed
            return 0 if all(agree) else 1
        finally:
            talker.process.kill()


if __name__ == "__main__":
    sys.exit(main())
