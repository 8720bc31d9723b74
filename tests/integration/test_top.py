# SPDX-License-Identifier: Apache-2.0
"""`nfprobe top` on a running firewall: rates beside its own rate, late packets with their cause, a real terminal."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import time
from collections.abc import Callable
from fcntl import ioctl
from termios import TIOCSWINSZ
from typing import Any

import pytest

from tests.support.firewall import DESCRIPTION, Firewall
from tests.support.probed import wait_until

pytestmark = pytest.mark.integration

RATE = 20_000
CHOICE = ("--adapter", DESCRIPTION, "--trial", "0s", "--ring-size", "64MiB")


# Not beside other tests: on a busy machine packets are late because of these.
def test_each_second_as_json(nfprobe: Any, start_firewall: Callable[..., Firewall]) -> None:
    firewall = start_firewall(RATE, "--slow-every", "300", "--slow-us", "4000")
    done = nfprobe.run("top", firewall.pid, *CHOICE, "--packets", "all", "--for", "6s", "--json")
    assert done.returncode == 0, done.stderr
    views = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(view["pid"] == firewall.pid and view["cost"]["probes"] >= 3 for view in views)
    workers = [view["threads"][0] for view in views if view["threads"]]
    assert len(workers) >= 2
    # On a busy machine the generator falls behind, and makes good for it later.
    assert 0 < sum(thread["packets_per_s"] for thread in workers) / len(workers) < 2 * RATE
    assert all(0 < thread["busy_share"] + thread["poll_share"] <= 1.1 for thread in workers)
    names = {function["name"] for view in views for function in view["functions"]}
    assert {"fw_receive", "fw_transmit"} <= {name.rpartition(":")[2] for name in names}
    firewall.assert_restored()
    late = [packet for view in views for packet in view["late"]["slowest"]]
    # Other programs, or the host, may have had the processor for longer.
    kinds = {packet["cause"] for packet in late}
    assert any("fw_output" in (packet["function"] or "") for packet in late) or kinds & {"preemption", "host"}
    assert all(packet["latency_ns"] >= packet["excess_ns"] > 0 for packet in late if packet["cause"] != "unknown")


@pytest.mark.shared
def test_once(nfprobe: Any, start_firewall: Callable[..., Firewall]) -> None:
    firewall = start_firewall(RATE)
    done = nfprobe.run("top", firewall.pid, *CHOICE, "--once")
    assert done.returncode == 0, done.stderr
    assert f"({firewall.pid})" in done.stdout.splitlines()[0]
    assert "fw_receive" in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    firewall.assert_restored()


@pytest.mark.shared
def test_the_page_on_a_terminal(nfprobe: Any, start_firewall: Callable[..., Firewall]) -> None:
    firewall = start_firewall(RATE)
    terminal, slave = pty.openpty()
    ioctl(slave, TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    words = [*nfprobe.command, "top", str(firewall.pid), *map(str, CHOICE)]
    environment = {**os.environ, "TERM": "xterm-256color"}
    process = subprocess.Popen(["setsid", "--ctty", *words], stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    os.set_blocking(terminal, False)
    shown = bytearray()

    def shows(*texts: bytes) -> bool:
        try:
            shown.extend(os.read(terminal, 1 << 16))
        except BlockingIOError:
            pass
        except OSError:  # the other side has closed it
            return all(text in shown for text in texts)
        assert process.poll() is None or all(text in shown for text in texts), bytes(shown[-2000:])
        return all(text in shown for text in texts)

    assert wait_until(lambda: shows(b"fw_receive", b"packets/s", b"sort"), 120)
    os.write(terminal, b"s")
    assert wait_until(lambda: shows(b"calls/s"), 60)
    os.write(terminal, b"q")
    deadline = time.monotonic() + 120
    while process.poll() is None:
        shows(b"")
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.close(terminal)
    assert process.returncode == 0
    firewall.assert_restored()
