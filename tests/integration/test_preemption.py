# SPDX-License-Identifier: Apache-2.0
"""What the scheduler did to a thread: compared with what the kernel counts for it in /proc."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from probed import wait_until

from otel_nfprobe import preemption
from otel_nfprobe.clock import Clock, sample_pair
from otel_nfprobe.errors import NfprobeError
from otel_nfprobe.preemption import SwitchWatch
from otel_nfprobe.recording import SWITCHES, RecordingHeader, RecordingReader, RecordingWriter
from otel_nfprobe.replay import read_facts
from otel_nfprobe.switches import SWITCH, SwitchFlag

pytestmark = pytest.mark.integration

PREEMPTIONS = 20
BUSY = "while True: pass"


def read_counts(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) for line in lines if "ctxt_switches" in line}


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: is_stopped(pid))


def test_every_preemption_is_seen_and_stops_are_told_apart(spawn: Callable[..., subprocess.Popen[str]]) -> None:
    first, second = spawn(sys.executable, "-c", BUSY), spawn(sys.executable, "-c", BUSY)
    cpu = min(os.sched_getaffinity(0))
    for process in (first, second):
        os.sched_setaffinity(process.pid, {cpu})
    stop(first.pid)
    watch = SwitchWatch(Clock.start(), lambda tid: True)
    watch.watch(first.pid)
    watch.watch(first.pid)
    before, start = read_counts(first.pid), sample_pair().ticks
    rows = []
    for wanted in (PREEMPTIONS // 2, PREEMPTIONS):
        os.kill(first.pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while read_counts(first.pid)["nonvoluntary_ctxt_switches"] < before["nonvoluntary_ctxt_switches"] + wanted:
            assert time.monotonic() < deadline
            time.sleep(0.005)
            rows.append(watch.read(lambda: {first.pid: 7}))
        stop(first.pid)
    rows.append(watch.read(lambda: {first.pid: 7}))
    found, end, after = np.concatenate(rows), sample_pair().ticks, read_counts(first.pid)
    watch.close()
    preempted = (found["flags"] & SwitchFlag.PREEMPTED) != 0
    assert watch.lost == 0
    assert preempted.sum() == after["nonvoluntary_ctxt_switches"] - before["nonvoluntary_ctxt_switches"]
    # The last stop has not ended: it is no row yet.
    assert (~preempted).sum() == after["voluntary_ctxt_switches"] - before["voluntary_ctxt_switches"] - 1
    assert set(found["thread"].tolist()) == {7}
    assert set(found["from_cpu"].tolist()) | set(found["to_cpu"].tolist()) == {cpu}
    times = np.stack((found["out_ticks"], found["in_ticks"]), axis=1).ravel().astype(np.int64)
    slack = 26_000  # of the clocks' comparison: 10 us
    assert np.all(np.diff(times) >= -slack)
    assert start - slack < times[0]
    assert times[-1] < end + slack


def test_a_thread_that_is_gone_is_not_watched() -> None:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    watch = SwitchWatch(Clock.start(), lambda tid: True)
    watch.watch(int(done.stdout))
    assert len(watch.read(dict)) == 0
    watch.close()


def test_a_refusal_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(preemption, "_open_event", refuse)
    with pytest.raises(NfprobeError) as error:
        SwitchWatch(Clock.start(), lambda tid: True).watch(os.getpid())
    assert "perf_event_paranoid is" in error.value.sentence
    assert error.value.sentence.endswith(".")
    assert "\n" not in error.value.sentence


def test_lost_records_of_the_kernel_are_counted() -> None:
    event = np.zeros(1, preemption._EVENT)
    event["type"], event["size"] = 14, event.itemsize
    lost = np.zeros(48, np.uint8)
    lost[:8] = np.array([2, 48 << 16], "<u4").view(np.uint8)
    events, count = preemption._split(event.tobytes() + lost.tobytes() + event.tobytes())
    assert (len(events), count) == (2, 1)
    assert preemption._split(b"\0" * 31)[1] == 0


def test_recordings_keep_them(tmp_path: Path) -> None:
    rows = np.zeros(3, SWITCH)
    rows["out_ticks"], rows["in_ticks"], rows["thread"] = [5, 9, 20], [7, 11, 25], [0, 1, 0]
    writer = RecordingWriter(tmp_path / "r", RecordingHeader())
    for part in (rows[:2], rows[2:], rows[:0]):
        writer.switches(part)
    writer.finish({})
    reader = RecordingReader(tmp_path / "r")
    assert [block.type for block in reader.blocks()].count(SWITCHES) == 2
    assert read_facts(reader).switches.tolist() == rows.tolist()
