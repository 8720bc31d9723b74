# SPDX-License-Identifier: Apache-2.0
"""The culprit found: faults are put into examples/firewall, and what nfprobe says of the latest packets is compared
with the faults' own log (culprit.py), in the recording and in the spans that were sent meanwhile.

Other work on the machine takes the CPU away, too: that is in the log, and nfprobe must say so. What nobody can know
(the machine itself stood still) is not judged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_nfprobe.causes.split import PARTS_MAX
from tests.support.culprit import START_S, Debugger, Found, Truth, Verdict, is_classifying, start_hog
from tests.support.otlp_receiver import Receiver
from tests.support.span_expectation import attributes_of

pytestmark = pytest.mark.integration

DESCRIPTION = Path(__file__).resolve().parents[2] / "examples" / "firewall" / "firewall.yaml"
RIGHT_SHARE, WRONG_SHARE = 0.95, 0.01
JUDGED_MIN = 100
RATE = 60_000
FAULTS = {
    "output": ("--slow-every", "700", "--slow-us", "6000"),
    "flow": ("--slow-flow-every", "30001", "--slow-flow-rules", "3000000"),
    "burst": ("--burst-every", "40000", "--burst-packets", "4096"),
}


class Run:
    """One firewall with faults, measured from its begin to its end."""

    def __init__(self, binary: Path, folder: Path, faults: set[str], seconds: float, seed: int) -> None:
        self.recording, self._log = folder / f"{seed}.nfprobe", folder / f"{seed}.faults"
        self._seconds, self._seed, self._faults = seconds, seed, faults
        self._cpu = max(os.sched_getaffinity(0))
        words = [str(binary), "--rate", str(RATE), "--seed", str(seed)]
        words += ["--faults", str(self._log), "--slow-every", "0"]
        if "hog" in faults:
            words += ["--worker-cpu", str(self._cpu)]
        for kind, options in FAULTS.items():
            words += options if kind in faults else ()
        self.firewall = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self._symbols = subprocess.run(["nm", "-D", str(binary)], capture_output=True, text=True, check=True).stdout
        self._binary = binary

    def measure(self, port: int) -> Truth:
        """Attaches, puts the faults in, ends everything. Returns what really happened."""
        pid = self.firewall.pid
        options = ["--adapter", DESCRIPTION, "--for", f"{self._seconds}s", "--record", self.recording]
        options += [
            "--packets",
            "all",
            "--ring-size",
            "64MiB",
            "--slowest",
            "1%",
            "--endpoint",
            f"http://127.0.0.1:{port}",
        ]
        words = [sys.executable, "-m", "otel_nfprobe", "attach", pid, *options]
        monitor = subprocess.Popen([str(word) for word in words], stderr=subprocess.PIPE, text=True)
        assert monitor.stderr is not None
        said = []
        for line in monitor.stderr:
            said.append(line)
            if "attached to" in line:
                break
        else:
            pytest.fail("".join(said))
        debugger = self._start_debugger() if "pause" in self._faults else None
        hog = start_hog(self._cpu, 0.008, 0.15) if "hog" in self._faults else None
        time.sleep(0.75 * self._seconds)  # a debugger must be gone before nfprobe is
        if debugger is not None:
            debugger.end()
            assert not debugger.failure
        if hog is not None:
            hog.kill()
            hog.wait()
        _, errors = monitor.communicate(timeout=120)
        assert monitor.returncode == 0, errors
        self.end()
        return Truth.read(self._log, debugger)

    def end(self) -> None:
        self.firewall.terminate()
        self.firewall.wait(timeout=60)

    def _start_debugger(self) -> Debugger:
        pid = self.firewall.pid
        tasks = Path(f"/proc/{pid}/task")
        (worker,) = [int(task.name) for task in tasks.iterdir() if (task / "comm").read_text() == "fw-worker\n"]
        offset = next(int(line.split()[0], 16) for line in self._symbols.splitlines() if line.endswith(" fw_stage"))
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        base = next(int(line.split("-")[0], 16) for line in maps if line.endswith(str(self._binary)))
        debugger = Debugger(worker, partial(is_classifying, pid, base + offset), 0.006, 0.15, self._seed)
        debugger.start()
        return debugger


def judge_spans(found: Found, roots: list[Span]) -> Verdict:
    """The same for the spans that were sent while the firewall ran."""
    verdict, clock = Verdict(), found.facts.make_clock()
    for span in roots:
        times = clock.convert_back(np.array([span.start_time_unix_nano, span.end_time_unix_nano], np.uint64))
        attributes = attributes_of(span.attributes)
        kind, function = attributes["nf.tail.cause"], attributes.get("nf.tail.function")
        found.compare(verdict, (int(times[0]), int(times[1])), kind, function, f"span {span.name}")
    return verdict


def check(verdict: Verdict) -> None:
    assert verdict.right >= RIGHT_SHARE * verdict.judged, f"{verdict}\n" + "\n".join(verdict.mistakes[:10])
    assert verdict.wrong <= WRONG_SHARE * verdict.judged, f"{verdict}\n" + "\n".join(verdict.mistakes[:10])


def check_parts(attributes: dict[str, Any]) -> None:
    """The largest part is the cause; no part is lost."""
    parts, kinds, sizes_ns = (attributes[f"nf.tail.{name}"] for name in ("parts", "part_kinds", "part_ns"))
    assert 1 <= len(parts) == len(kinds) == len(sizes_ns) <= PARTS_MAX + 1
    assert kinds[0] == attributes["nf.tail.cause"]
    assert sizes_ns[0] == attributes["nf.tail.excess_ns"] == max(sizes_ns) > 0
    assert attributes["nf.tail.share"] == pytest.approx(sizes_ns[0] / sum(sizes_ns), rel=0.01)
    assert parts[0].startswith(attributes.get("nf.tail.function", kinds[0] if kinds[0] not in ("own", "queue") else ""))
    assert sum(sizes_ns) < attributes["nf.packet.latency_ns"]


def check_live(found: Found, spans: list[Span]) -> None:
    """Every late packet says why; links lead to spans of batches that were sent, too."""
    late = [span for span in spans if not span.parent_span_id and span.name.startswith("late packet")]
    if not late:
        return  # the first ones, while it was attached to, were later than all that came after them

    for span in late:
        attributes = attributes_of(span.attributes)
        assert attributes["nf.sampling.reason"] == "slowest"
        if attributes["nf.tail.cause"] != "unknown":
            check_parts(attributes)
    batches = {(span.trace_id, span.span_id) for span in spans if span.name == "batch"}
    links = [(link.trace_id, link.span_id) for span in late for link in span.links]
    assert set(links) <= batches
    known = [span for span in late if attributes_of(span.attributes)["nf.tail.cause"] == "queue"]
    assert all(span.links for span in known)
    begin = min(span.start_time_unix_nano for span in spans)
    verdict = judge_spans(found, [span for span in late if span.start_time_unix_nano > begin + START_S * 1e9])
    if verdict.judged >= JUDGED_MIN:
        check(verdict)


def run_once(binary: Path, folder: Path, faults: set[str], seconds: float, seed: int) -> tuple[Found, list[Span]]:
    receiver = Receiver()
    run = Run(binary, folder, faults, seconds, seed)
    try:
        truth = run.measure(receiver.port)
    finally:
        with suppress(ProcessLookupError):
            run.end()
        receiver.stop()
    return Found(run.recording, truth), receiver.spans()


@pytest.mark.long  # on a busy machine nearly all late packets are preempted ones, and few are left to judge
def test_the_culprit_of_each_fault(firewall_binary: Path, tmp_path: Path) -> None:
    found, spans = run_once(firewall_binary, tmp_path, {"output", "flow", "burst", "pause"}, 3.0, 1)
    check_live(found, spans)
    later = found.judge(0.999)
    late = found.judge(0.98)  # the latest ones may all have one cause
    print(later, late, sep="\n")
    if late.judged < JUDGED_MIN:
        pytest.skip(f"the machine was too busy to know what made packets late: {late}")
    check(late)
    check(later)


@pytest.mark.long
@pytest.mark.parametrize("faults", ["output", "flow", "burst", "pause", "hog"])
def test_the_culprit_over_20_seeds(firewall_binary: Path, tmp_path: Path, faults: str) -> None:
    total = Verdict()
    for seed in range(20):
        found, _ = run_once(firewall_binary, tmp_path, {faults}, 4.0, seed)
        total.add(found.judge(0.999))
    print(total)
    assert total.judged >= JUDGED_MIN
    check(total)
