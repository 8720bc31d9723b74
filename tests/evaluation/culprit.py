# SPDX-License-Identifier: Apache-2.0
"""Table 7: what each tool's user sees first when packets are late for a known reason.

Target: examples/firewall with symbols, at a rate that leaves it mostly idle, with one planted fault at a time, each a
run of its own for each tool. nfprobe: the first cause of its report on late packets. uftrace: the functions with the
most time of their own, and with the longest call. perf: the functions with the most samples. A tool names the culprit
if that comes first.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.evaluation import peers
from tests.evaluation.extent import Extent
from tests.evaluation.samples import Sample, missing

FIREWALL = Path(__file__).resolve().parents[2] / "examples" / "firewall"
RATE, SECONDS, SECONDS_SHORT = 60_000, 4.0, 1.0
FIGURE = "names the culprit"
OURS, OWN, LONGEST, PERF = "nfprobe report", "uftrace report, own time", "uftrace report, longest call", "perf report"
NOWHERE = "nothing"
ROUNDS = 3
CALLS_MIN = 10  # what is called more seldom is a loop around the work
WORKER = "fw-worker"


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Attributes:
        culprit: what made packets late: a function, or the cause as nfprobe calls it where no function did.
    """

    name: str
    options: Sequence[str]
    culprit: str


FAULTS = (
    Fault("one output of 500 takes 3 ms", ("--slow-every", "500", "--slow-us", "3000"), "fw_output"),
    Fault(
        "one packet of 5,000 passes 100,000 rules more",
        ("--slow-every", "0", "--slow-flow-every", "5000", "--slow-flow-rules", "100000"),
        "fw_classify",
    ),
    Fault(
        "after 20,000 packets 2,000 of one flow arrive at once",
        ("--slow-every", "0", "--burst-every", "20000", "--burst-packets", "2000"),
        "burst",
    ),
)


def describe_seen(first: str, culprit: str, names: Sequence[str]) -> str:
    """In words: what comes first, and where the culprit is if that is another."""
    if first == culprit:
        return first
    place = f"; {culprit} is number {names.index(culprit) + 1}" if culprit in names else ""
    return f"{first}{place}"


def read_causes(report: dict[str, list[dict[str, object]]]) -> list[str]:
    """Of late packets, by how many they made late: functions, or causes where it was none."""
    rows = sorted(report["causes"], key=lambda row: -float(str(row["packets"])))
    return [str(row["function"] or row["kind"]) for row in rows]


def read_uftrace(text: str) -> list[str]:
    """Functions of `uftrace report -f FIELD,call`, in its order, without the kernel's events and those called once."""
    rows = re.findall(r"^\s+[\d.]+ +\w+ +(\d+) +(\S+)", text, re.MULTILINE)
    return [name for calls, name in rows if int(calls) >= CALLS_MIN and not name.startswith("linux:")]


def read_perf(text: str) -> list[str]:
    """Functions of the program in `perf report --sort symbol`, in its order."""
    return re.findall(r"^\s*[\d.]+%\s+\[\.\] (\S+)", text, re.MULTILINE)


@contextmanager
def running(extent: Extent, fault: Fault, launcher: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """The firewall; it ends by SIGINT, as it prints its own counts then."""
    words = [*launcher, str(extent.folder / "firewall"), "--rate", str(RATE), "--worker-cpu", str(extent.cpus[1])]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([*words, *fault.options], stdin=quiet, stdout=quiet, stderr=quiet)
    try:
        time.sleep(0.5)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def find_worker(pid: int) -> int:
    """The thread that has the packets; a person would look at this one only."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return next(int(task.name) for task in tasks if (task / "comm").read_text().strip() == WORKER)


def see_by_nfprobe(extent: Extent, fault: Fault, seconds: float) -> list[str]:
    recording = extent.folder / "firewall.nfprobe"
    recording.unlink(missing_ok=True)
    command = [sys.executable, "-m", "otel_nfprobe"]
    with running(extent, fault) as process:
        options = ["--adapter", str(FIREWALL / "firewall.yaml"), "--for", f"{seconds:g}s", "--record", str(recording)]
        words = [*command, "attach", str(process.pid), "--trial", "0s", *options]
        subprocess.run(words, check=True, capture_output=True)
    done = subprocess.run([*command, "report", "--json", str(recording)], check=True, capture_output=True, text=True)
    return read_causes(json.loads(done.stdout)["packets"])


def see_by_uftrace(order: str, column: str) -> Callable[[Extent, Fault, float], list[str]]:
    def see(extent: Extent, fault: Fault, seconds: float) -> list[str]:
        data = str(extent.folder / "uftrace")
        launcher = ["uftrace", "record", "-P", ".", "--no-libcall", "--buffer", "16m", "-d", data]
        with running(extent, fault, launcher) as recorder:
            time.sleep(seconds)
            child = int(Path(f"/proc/{recorder.pid}/task/{recorder.pid}/children").read_text().split()[0])
            worker = find_worker(child)
            os.kill(child, signal.SIGINT)
            recorder.wait(60)
        words = ["uftrace", "report", "--no-pager", "-d", data, f"--tid={worker}", "-s", order, "-f", f"{column},call"]
        return read_uftrace(subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    return see


def see_by_perf(extent: Extent, fault: Fault, seconds: float) -> list[str]:
    data = str(extent.folder / "perf.data")
    with running(extent, fault) as process:
        words = [
            "perf",
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-F",
            "999",
            "-t",
            str(find_worker(process.pid)),
            "-o",
            data,
        ]
        subprocess.run([*words, "-o", data, "--", "sleep", f"{seconds:g}"], check=True, capture_output=True)
    words = ["perf", "report", "-i", data, "--stdio", "--sort", "symbol"]
    return read_perf(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


TOOLS: dict[str, tuple[peers.Peer | None, Callable[[Extent, Fault, float], list[str]]]] = {
    OURS: (None, see_by_nfprobe),
    OWN: (peers.UFTRACE, see_by_uftrace("self", "self")),
    LONGEST: (peers.UFTRACE, see_by_uftrace("total_max", "total-max")),
    PERF: (peers.PERF, see_by_perf),
}


def run(extent: Extent) -> list[Sample]:
    subprocess.run(["make", "-s", "-C", str(FIREWALL), f"BUILD={extent.folder}"], check=True)
    os.sched_setaffinity(0, set(extent.cpus))
    samples = []
    for fault in FAULTS[:1] if extent.is_short else FAULTS:
        for tool, (peer, see) in TOOLS.items():
            if reason := peer.find_missing() if peer else "":
                samples.append(missing(fault.name, tool, FIGURE, reason))
                continue
            for number in range(extent.count_rounds(ROUNDS)):
                names = see(extent, fault, SECONDS_SHORT if extent.is_short else SECONDS)
                seen = describe_seen(names[0] if names else NOWHERE, fault.culprit, names)
                is_named = float(bool(names) and names[0] == fault.culprit)
                samples.append(Sample(fault.name, tool, FIGURE, number, is_named, seen))
                print(f"  {fault.name}: {tool}: {seen}", flush=True)
    return samples
