# SPDX-License-Identifier: Apache-2.0
"""The kernel's own trace of one CPU, by perf: what tests and benchmarks compare with what nfprobe says."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VECTORS = (
    "local_timer",
    "reschedule",
    "call_function",
    "call_function_single",
)  # the kernel keeps irq_work's to itself
EVENTS = (
    *(f"irq_vectors:{vector}_{end}" for vector in VECTORS for end in ("entry", "exit")),
    "irq:irq_handler_entry",
    "irq:irq_handler_exit",
    "irq:softirq_entry",
    "irq:softirq_exit",
    "sched:sched_switch",
    "sched:sched_stat_runtime",
)
LINE = re.compile(r"\s*(\d+)\s+\[\d+\]\s+(\d+)\.(\d{9}):\s+\w+:(\w+):\s(.*)")
RUNTIME = re.compile(r"pid=(\d+) runtime=(\d+)")
ACTION = re.compile(r"action=(\w+)")
AT_ONCE_NS = 5000  # after an interrupt its softirqs begin: 1 to 4 us, as measured with this trace
SWITCH = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> .*next_pid=(\d+) ")


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


@dataclass
class Noise:
    """What the kernel saw on the target's CPU: per kind start and end (raw ns), and how much of that was noise (ns).

    Interrupts (by_name: each kind of them) are without those that interrupted them. A softirq that the thread's own
    system call runs, at its end, is of the kind `softirq`: nothing interrupted the thread.
    """

    spans: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    by_name: dict[str, list[tuple[int, int, int]]] = field(default_factory=dict)
    _arrays: dict[str, NDArray[np.int64]] = field(default_factory=dict)  # the same, once all are there

    def add(self, kind: str, start_ns: int, end_ns: int, noise_ns: int, name: str = "") -> None:
        self.spans.setdefault(kind, []).append((start_ns, end_ns, noise_ns))
        if name:
            self.by_name.setdefault(name, []).append((start_ns, end_ns, noise_ns))

    def during(self, kind: str, start: int, end: int) -> int:
        """ns of noise in [start, end]; of a span that is not all noise, as much of it as can lie in there."""
        rows = self._rows(kind)
        inside = np.minimum(rows[:, 1], end) - np.maximum(rows[:, 0], start)
        return int(np.minimum(inside[inside > 0], rows[inside > 0, 2]).sum())

    def _rows(self, kind: str) -> NDArray[np.int64]:
        if kind not in self._arrays:
            self._arrays[kind] = np.array(self.spans.get(kind, []), np.int64).reshape(-1, 3)
        return self._arrays[kind]


@dataclass
class _Interrupt:
    name: str
    start_ns: int
    kind: str
    nested_ns: int = 0  # of interrupts during it


class TraceReader:
    """Lines of `perf script` in, noise of one thread out."""

    def __init__(self, tid: int) -> None:
        self.noise = Noise()
        self._tid = tid
        self._open: list[_Interrupt] = []  # each during the one before
        self._left_ns = 0  # the end of the last interrupt, or of a softirq that ran at the end of one
        self._out_ns, self._out_kind = 0, ""
        self._updated_ns = 0  # when the thread's run time was counted last; 0: it has been away since

    def take(self, line: str) -> None:
        found = LINE.match(line)
        if found is None:
            return
        at_ns = int(found[2]) * 1_000_000_000 + int(found[3])
        event, rest = found[4], found[5]
        if event == "sched_switch":
            self._switch(at_ns, rest)
        elif event == "sched_stat_runtime":
            self._runtime(at_ns, rest)
        elif event.endswith("_entry"):
            self._enter(at_ns, event.removesuffix("_entry"), rest)
        else:
            self._leave(at_ns, event.removesuffix("_exit"), is_ours=int(found[1]) == self._tid)

    def _enter(self, at_ns: int, event: str, rest: str) -> None:
        name = f"softirq {action[1]}" if (action := ACTION.search(rest)) else event
        is_own = event == "softirq" and at_ns - self._left_ns > AT_ONCE_NS
        self._open.append(_Interrupt(name, at_ns, "softirq" if is_own else "interrupt"))

    def _leave(self, at_ns: int, event: str, is_ours: bool) -> None:
        while self._open:  # an end that was lost ends with the one around it
            left = self._open.pop()
            if left.name.split()[0] == event:
                break
        else:
            return
        if self._open:
            self._open[-1].nested_ns += at_ns - left.start_ns
        if left.kind == "interrupt":
            self._left_ns = at_ns
        if is_ours:
            own_ns = max(at_ns - left.start_ns - left.nested_ns, 0)
            self.noise.add(left.kind, left.start_ns, at_ns, own_ns, left.name)

    def _switch(self, at_ns: int, rest: str) -> None:
        found = SWITCH.search(rest)
        if found is None:
            return
        if int(found[1]) == self._tid:
            self._out_ns, self._updated_ns = at_ns, 0
            self._out_kind = "switched out" if found[2].startswith("R") else "slept"
        elif int(found[3]) == self._tid:
            if self._out_ns:
                self.noise.add(self._out_kind, self._out_ns, at_ns, at_ns - self._out_ns)
            self._updated_ns = at_ns

    def _runtime(self, at_ns: int, rest: str) -> None:
        found = RUNTIME.search(rest)
        if found is None or int(found[1]) != self._tid:
            return
        if self._updated_ns:
            stolen_ns = at_ns - self._updated_ns - int(found[2])
            if stolen_ns > 0:
                self.noise.add("steal", self._updated_ns, at_ns, stolen_ns)
            self._updated_ns = at_ns


def read_trace(path: Path, tid: int) -> Noise:
    """Noise of one thread in perf's records."""
    reader = TraceReader(tid)
    words = ["perf", "script", "-i", str(path), "--ns", "-F", "tid,cpu,time,event,trace"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        for line in script.stdout:
            reader.take(line)
    return reader.noise
