# SPDX-License-Identifier: Apache-2.0
"""The culprit found in dpdk-testpmd: a debugger holds its worker now and then while it is inside the call that hands
frames to the kernel, and its transmit function must be blamed for the packets that waited meanwhile."""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from otel_nfprobe.adapters.base import TRANSMIT
from tests.support.culprit import EXPECTED, Debugger, Found, Truth
from tests.support.testpmd import Testpmd

pytestmark = [pytest.mark.integration, pytest.mark.long]

RIGHT_SHARE, WRONG_SHARE = 0.95, 0.01
JUDGED_MIN = 100
RUNS = 20
SECONDS = 4.0
LATE = 0.98  # quantile of the latency beyond which packets are judged: 6 ms in every 150 delay some 4 % of them
FRAME = bytes(6) + b"\x02\0\0\0\0\x01\x08\0" + bytes(50)
BURST = 8
CLONE_NEWNET = 0x40000000
SENDTO = 44
SYSTEM_CALL_WORD = 15  # of struct user_regs_struct: orig_rax
GETREGS = 12
LINK = "ip link add nfp0 type veth peer name nfp1 && ip link set nfp0 up && ip link set nfp1 up"
LAUNCHER = ("unshare", "--net", "sh", "-c", f'{LINK} && exec "$@"', "sh")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def is_sending(tid: int) -> bool:
    """Whether the stopped thread is in sendto."""
    registers = (ctypes.c_uint64 * 27)()
    assert _libc.ptrace(GETREGS, tid, None, ctypes.addressof(registers)) == 0
    return registers[SYSTEM_CALL_WORD] == SENDTO


class Sender(threading.Thread):
    """Sends bursts of frames to the other end of testpmd's link, at an even pace."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._pid = pid
        self._ending = threading.Event()

    def run(self) -> None:
        with open(f"/proc/{self._pid}/ns/net") as namespace:  # a namespace is a thread's
            assert _libc.setns(namespace.fileno(), CLONE_NEWNET) == 0
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
            sender.bind(("nfp1", 0))
            while not self._ending.wait(0.001):
                for _ in range(BURST):
                    sender.send(FRAME)

    def end(self) -> None:
        self._ending.set()
        self.join()


def find_worker(pid: int) -> int:
    """The lcore that forwards."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # one of the others may just have ended
            found += [int(thread.name)] * ("worker" in (thread / "comm").read_text())
    (worker,) = found
    return worker


def attach(pid: int, recording: Path) -> subprocess.Popen[str]:
    """A monitor that measures for SECONDS; returns when its probes are in place."""
    words = [sys.executable, "-m", "otel_nfprobe", "attach", str(pid), "--for", f"{SECONDS}s", "--packets", "all"]
    words += ["--record", str(recording), "--ring-size", "64MiB"]
    monitor = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert monitor.stderr is not None
    said = []
    for line in monitor.stderr:
        said.append(line)
        if "attached to" in line:
            return monitor
    pytest.fail("".join(said))


def measure(testpmd: Testpmd, recording: Path, seed: int) -> Truth:
    monitor = attach(testpmd.pid, recording)
    worker = find_worker(testpmd.pid)
    debugger = Debugger(worker, partial(is_sending, worker), 0.006, 0.15, seed)
    debugger.start()
    time.sleep(0.75 * SECONDS)
    debugger.end()
    assert not debugger.failure
    _, errors = monitor.communicate(timeout=120)
    assert monitor.returncode == 0, errors
    return Truth({"transmit": debugger.pauses, "elsewhere": debugger.others})


def test_the_transmit_function_of_testpmd(start_testpmd: Callable[..., Testpmd], tmp_path: Path) -> None:
    testpmd = start_testpmd("net_af_packet0,iface=nfp0", interactive=False, launcher=LAUNCHER)
    sender = Sender(testpmd.pid)
    sender.start()
    judged = right = wrong = 0
    try:
        for seed in range(RUNS):
            found = Found(tmp_path / f"{seed}.nfprobe", measure(testpmd, tmp_path / f"{seed}.nfprobe", seed))
            roles = found.facts.roles
            (transmit,) = [found.facts.function_names[number] for number in (roles == TRANSMIT).nonzero()[0]]
            verdict = found.judge(LATE, EXPECTED | {"transmit": ({"own", "queue"}, transmit)})
            print(verdict, *verdict.mistakes[:3], sep="\n")
            judged, right, wrong = judged + verdict.judged, right + verdict.right, wrong + verdict.wrong
    finally:
        sender.end()
    assert judged >= JUDGED_MIN
    assert right >= RIGHT_SHARE * judged
    assert wrong <= WRONG_SHARE * judged
