# SPDX-License-Identifier: Apache-2.0
"""dpdk-testpmd and Open vSwitch in a row, over wires (veth pairs) in a network namespace of their own.

    gen - a0 testpmd a1 - b0 Open vSwitch b1 - sink

Each has one polling thread on a processor of its own. Frames are sent at an even pace, each different; faults are put
into either function from outside, and whoever puts them there writes down when: nothing of that comes from nfprobe.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from otel_nfprobe.base.clock import ANCHOR
from otel_nfprobe.causes.latency_causes import CauseKind
from otel_nfprobe.chains.follow import BETWEEN, Culprit
from otel_nfprobe.recording.recording import CLOCK, Block, RecordingReader
from otel_nfprobe.report.why import ChainAnalysis, WhyRequest, analyse_chain
from tests.support.culprit import START_S, Debugger
from tests.support.ovs_dpdk import start_wired_switch, wire_port
from tests.support.switch_processes import SwitchProcesses
from tests.support.testpmd import Testpmd

WIRES = (("gen", "a0"), ("a1", "b0"), ("b1", "sink"))
LAY = " && ".join(
    ["echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6"]
    + [f"ip link add {one} type veth peer name {other}" for one, other in WIRES]
    + [f"ip link set {name} up" for pair in WIRES for name in pair]
)
LAUNCHER = ("setsid", "unshare", "--net", "sh", "-c", f'{LAY} && exec "$@"', "sh")
FIRST, SECOND = "testpmd", "ovs"
CLONE_NEWNET, SENDTO, SYSTEM_CALL_WORD, GETREGS = 0x40000000, 44, 15, 12
ETHERNET = b"\x02\0\0\0\0\x02\x02\0\0\0\0\x01\x08\0"
FLOWS = 64
EACH_MS = 4  # frames: both functions, two monitors and the generator share two processors
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@dataclass(frozen=True)
class Fault:
    """What was done to a function, from when until when, in ticks."""

    nf: str
    kind: str
    start: int
    end: int


def make_frame(number: int) -> bytes:
    """A UDP frame unlike all others."""
    payload = struct.pack("!Q", number) + bytes(10)
    udp = struct.pack("!4H", 1024 + number % FLOWS, 53, 8 + len(payload), 0)
    addresses = bytes((10, 0, 0, 1 + number % FLOWS, 10, 1, 0, 2))
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(payload), number & 0xFFFF, 0, 64, 17, 0) + addresses
    return ETHERNET + ip + udp + payload


def is_sending(tid: int) -> bool:
    """Whether the stopped thread is in sendto."""
    registers = (ctypes.c_uint64 * 27)()
    done = _libc.ptrace(GETREGS, tid, None, ctypes.addressof(registers)) == 0
    return done and registers[SYSTEM_CALL_WORD] == SENDTO


def run_at_once() -> None:
    """Gives the calling thread, which needs a processor for moments only, the next one."""
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_FIFO, os.sched_param(2))


class Sender(threading.Thread):
    """Sends so many frames each ms."""

    def __init__(self, pid: int, each_ms: int) -> None:
        super().__init__()
        self._pid, self._each_ms = pid, each_ms
        self._ending = threading.Event()
        self.sent = 0

    def run(self) -> None:
        run_at_once()
        with open(f"/proc/{self._pid}/ns/net") as namespace:  # a namespace is a thread's
            assert _libc.setns(namespace.fileno(), CLONE_NEWNET) == 0
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind(("gen", 0))
            due = time.monotonic()
            while not self._ending.wait(max(0.0, due - time.monotonic())):
                due = max(due + 0.001, time.monotonic() - 0.005)
                for _ in range(self._each_ms):
                    self.sent += 1
                    sender.send(make_frame(self.sent))

    def end(self) -> None:
        self._ending.set()
        self.join()


class Hog:
    """A process that takes a processor with real-time priority, for some ms when it is asked to."""

    SCRIPT = """
import os, sys
from otel_nfprobe.base.clock import sample_pair
os.sched_setaffinity(0, {{{cpu}}})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
for line in sys.stdin:
    start = sample_pair()
    while sample_pair().unix_ns - start.unix_ns < float(line) * 1e6:
        pass
    print(start.ticks, sample_pair().ticks, flush=True)
"""

    def __init__(self, cpu: int) -> None:
        words = [sys.executable, "-c", self.SCRIPT.format(cpu=cpu)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
        self.take(0.01)

    def take(self, ms: float) -> tuple[int, int]:
        """Takes the processor; returns when, in ticks."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{ms}\n")
        process.stdin.flush()
        start, end = map(int, process.stdout.readline().split())
        return start, end

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class WiredChain:
    """The two functions, running.

    Args:
        binary: of dpdk-testpmd.
        folder: for sockets, database and recordings.
        actions: what Open vSwitch does with a frame before it sends it.
    """

    def __init__(self, binary: str, folder: Path, actions: str = "output:2") -> None:
        self._folder = folder
        self.cpus = {FIRST: min(os.sched_getaffinity(0)), SECOND: max(os.sched_getaffinity(0))}
        devices = "net_af_packet0,iface=a0,framecnt=2048 net_af_packet1,iface=a1,framecnt=2048"
        lcores = f"0@{self.cpus[SECOND]},1@{self.cpus[FIRST]}"
        self.testpmd = Testpmd(
            binary, f"nfpchain{os.getpid()}", devices, "macswap", False, lcores, LAUNCHER, topology="paired"
        )
        self._monitors: list[subprocess.Popen[str]] = []
        self.sender = Sender(self.testpmd.pid, EACH_MS)
        self._switch = SwitchProcesses(folder)
        try:
            self._start_switch(actions)
        except BaseException:
            self.stop()
            raise

    def _start_switch(self, actions: str) -> None:
        enter = ("setsid", "nsenter", f"--net=/proc/{self.testpmd.pid}/ns/net")
        ports = {"p1": wire_port(1, "b0"), "p2": wire_port(2, "b1")}
        self.switch_pid = start_wired_switch(self._switch, enter, self.cpus[SECOND], ports, actions)

    @property
    def pids(self) -> dict[str, int]:
        return {FIRST: self.testpmd.pid, SECOND: self.switch_pid}

    def worker(self, nf: str) -> int:
        """The thread that polls."""
        mark, found = "worker" if nf == FIRST else "pmd", []
        for task in Path(f"/proc/{self.pids[nf]}/task").iterdir():
            with suppress(OSError):  # one of the others may just have ended
                found += [int(task.name)] * (mark in (task / "comm").read_text())
        (tid,) = found
        return tid

    def attach(self) -> dict[str, Path]:
        """Attaches to both at once, and waits until both are measured; returns the recordings."""
        paths = {nf: self._folder / f"{nf}.nfp" for nf in self.pids}
        for nf, pid in self.pids.items():
            words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--for", "600s", "--trial", "0s"]
            words += ["--packets", "all", "--ring-size", "64MiB", "--service", nf, "--record", str(paths[nf])]
            self._monitors.append(subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True))
        for monitor in self._monitors:
            assert monitor.stderr is not None
            said = []
            for line in monitor.stderr:
                said.append(line)
                if "attached to" in line:
                    break
            else:
                raise AssertionError("".join(said))
        self._prefer(-10)
        time.sleep(START_S)
        return paths

    def _prefer(self, nice: int) -> None:
        # What else runs on the machine is no part of the experiment. The monitors are: where they get no processor for
        # a second, the kernel has no room for more context switches, and nobody can know what ran instead.
        for pid in (*self.pids.values(), *(monitor.pid for monitor in self._monitors)):
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(str(nice))

    def detach(self) -> None:
        """Ends both sessions: the recordings are whole."""
        self._prefer(0)
        for monitor in self._monitors:
            monitor.send_signal(signal.SIGINT)
        for monitor in self._monitors:
            _, errors = monitor.communicate(timeout=120)
            assert monitor.returncode == 0, errors
        self._monitors = []

    def stop(self) -> None:
        if self.sender.is_alive():
            self.sender.end()
        for monitor in self._monitors:
            monitor.kill()
            monitor.wait()
        self._switch.stop()
        self.testpmd.stop()


def pause(chain: WiredChain, nf: str, seconds: float, seed: int, length_s: float = 0.02) -> list[Fault]:
    """Stops the function's thread now and then while it sends, as a debugger does; returns when."""
    tid = chain.worker(nf)
    debugger = Debugger(tid, lambda: is_sending(tid), length_s, 0.3, seed)
    debugger.start()
    time.sleep(seconds)
    debugger.end()
    assert not debugger.failure, debugger.failure
    faults = [Fault(nf, "stop", *span) for span in debugger.pauses]
    return faults + [Fault(nf, "elsewhere", *span) for span in debugger.others]


def take_cpu(chain: WiredChain, nf: str, seconds: float, seed: int, ms: float = 20.0) -> list[Fault]:
    """Takes the function's processor now and then; returns when."""
    hog, rng, faults = Hog(chain.cpus[nf]), random.Random(seed), []
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.3 * rng.uniform(0.5, 1.5))
            faults.append(Fault(nf, "preemption", *hog.take(ms)))
    finally:
        hog.end()
    return faults


def disturb(chain: WiredChain, seconds: float, seed: int, ms: float = 20.0) -> list[Fault]:
    """Does one of the two to one of the functions now and then, all three at random; returns when."""
    rng, faults = random.Random(seed), []
    hogs = {nf: Hog(chain.cpus[nf]) for nf in (FIRST, SECOND)}
    try:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.3 * rng.uniform(0.5, 1.5))
            nf, kind = rng.choice((FIRST, SECOND)), rng.choice(("stop", "preemption"))
            if kind == "preemption":
                faults.append(Fault(nf, kind, *hogs[nf].take(ms)))
                continue
            tid = chain.worker(nf)
            debugger = Debugger(tid, lambda tid=tid: is_sending(tid), ms / 1000, 0.0, seed)
            debugger.pause_now()
            faults += [Fault(nf, kind, *span) for span in debugger.pauses]
            faults += [Fault(nf, "elsewhere", *span) for span in debugger.others]
    finally:
        for hog in hogs.values():
            hog.end()
    return faults


class OtherHost(RecordingReader):
    """A recording as if it were of another host, whose clock is wrong by so many ns."""

    def __init__(self, path: Path, skew_ns: int) -> None:
        super().__init__(path)
        self.header = replace(self.header, boot_id="another", host="another")
        self._skew_ns = skew_ns

    def blocks(self, leave_out: Collection[int] = ()) -> Iterator[Block]:
        for block in super().blocks(leave_out):
            if block.type != CLOCK:
                yield block
                continue
            anchors = block.array(ANCHOR).copy()
            anchors["unix_ns"] += np.uint64(self._skew_ns)
            yield Block(block.type, block.thread, anchors.tobytes())


# ---- whether they are named -----------------------------------------------------------------------------------------

COVERED_SHARE = 0.7  # of a packet's delay: what a fault must overlap with to explain it
KINDS = {
    "stop": {CauseKind.OWN, CauseKind.QUEUE},  # it gave up its CPU where it was
    "preemption": {CauseKind.PREEMPTION},
}


@dataclass
class ChainVerdict:
    """Late packets: all, those that the faults' log explains, and of these what is named right: with the other
    recordings and, as the baseline, without; `elsewhere`: those that were late in another function than the fault's.
    """

    late: int = 0
    covered: int = 0
    right: int = 0
    right_nf: int = 0
    local: int = 0
    local_nf: int = 0
    elsewhere: int = 0
    elsewhere_right: int = 0
    mistakes: Counter[str] = field(default_factory=Counter)

    def add(self, other: ChainVerdict) -> None:
        for name in vars(self):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def judge(paths: Mapping[str, Path], faults: Sequence[Fault], request: WhyRequest) -> ChainVerdict:
    """Compares what is said of all late packets with the faults' log."""
    verdict = ChainVerdict()
    for one in judge_by_kind(paths, faults, request).values():
        verdict.add(one)
    return verdict


def judge_by_kind(paths: Mapping[str, Path], faults: Sequence[Fault], request: WhyRequest) -> dict[str, ChainVerdict]:
    """As judge, by the kind of the fault; of packets that the log does not explain only their number, under ''."""
    analysis = analyse_chain([RecordingReader(path) for path in paths.values()], request)
    ways = analysis.ways
    verdicts = {kind: ChainVerdict() for kind in (*KINDS, "")}
    clock = analysis.recordings[0].clock
    first, last = ways.joined.first[:-1], ways.joined.first[1:] - 1
    names = [recording.name for recording in analysis.recordings]
    for late in analysis.late.packets:
        span = np.array([ways.arrival_ns[first[late.packet]], ways.until_ns[last[late.packet]]], np.uint64)
        begin, end = clock.convert_back(span).tolist()
        fault = _find_fault(faults, begin, end, clock.find_ticks(float(ways.late_ns[late.packet])))
        verdict = verdicts[fault.kind if fault else ""]
        verdict.late += 1
        if fault is None:
            continue
        verdict.covered += 1
        where = names[int(ways.joined.recording[late.where])]
        right = _is_right(late.culprit, fault, analysis)
        verdict.right += right
        verdict.right_nf += names[late.culprit.recording] == fault.nf
        verdict.local += _is_right(late.local, fault, analysis)
        verdict.local_nf += where == fault.nf
        verdict.elsewhere += where != fault.nf
        verdict.elsewhere_right += right and where != fault.nf
        if not right:
            said = f"{names[late.culprit.recording]} {CauseKind(late.culprit.kind % BETWEEN).name}"
            verdict.mistakes[f"{said}, but {fault.nf} {fault.kind}"] += 1
    return verdicts


def _find_fault(faults: Sequence[Fault], begin: int, end: int, late: int) -> Fault | None:
    """Returns the one fault that explains most of a packet's delay; None: none does, or two may."""
    found = []
    for fault in faults:
        overlap = min(end, fault.end) - max(begin, fault.start)
        if overlap >= 0.1 * late:
            found.append((overlap, fault))
    large = [fault for overlap, fault in found if overlap >= COVERED_SHARE * late]
    return large[0] if len(large) == 1 == len(found) and large[0].kind in KINDS else None


def _is_right(culprit: Culprit, fault: Fault, analysis: ChainAnalysis) -> bool:
    return analysis.recordings[culprit.recording].name == fault.nf and culprit.kind in KINDS[fault.kind]
