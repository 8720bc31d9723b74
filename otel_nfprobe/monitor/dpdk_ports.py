# SPDX-License-Identifier: Apache-2.0
"""DPDK ports: how many packets each port of a DPDK application has missed because its receive queues were full.

A DPDK application listens on a Unix socket (dpdk_telemetry.v2 in its runtime folder; DPDK's "How To Guides", Telemetry
User Guide) where a thread of its own answers with the drivers' counters, `imissed` among them. The process that
listens is compared with the target; what it answers is bounded. nfprobe never waits: an answer is read when it is
there, since a target that is stopped answers late.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Collection
from contextlib import suppress
from typing import NamedTuple

from otel_nfprobe.base.clock import sample_pair
from otel_nfprobe.base.printable import printable
from otel_nfprobe.linux.queue_counters import Queue, QueueKind
from otel_nfprobe.pipeline.queue_drops import NAME_BYTES

SOCKET = "dpdk_telemetry.v2"
PORTS_MAX = 64
ANSWER_BYTES_MAX = 1 << 16
ASK_S = 0.05  # between two requests: a driver may read registers for each
LIST_S = 1.0  # between two lists of the ports
_SOCKETS_BYTES_MAX = 4 << 20  # of /proc/PID/net/unix
_LISTENS, _SEQPACKET = 0x10000, 5  # columns Flags and Type there
_CREDENTIALS = struct.Struct("=iii")  # struct ucred


class PortReading(NamedTuple):
    """`missed`: the port's count at some time between `since_ticks` and `until_ticks`."""

    queue: Queue
    missed: int
    since_ticks: int
    until_ticks: int


class DpdkPorts:
    """Asks one process, port after port.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._socket: socket.socket | None = None
        self._refused: set[int] = set()  # sockets of which nothing useful came
        self._inode = 0
        self._ports: list[int] = []
        self._names: dict[int, str] = {}
        self._turn = 0
        self._asked = ""  # the command whose answer is to come
        self._asked_ticks = 0
        self._due_at = self._list_at = 0.0

    def look(self, sockets: Collection[int]) -> None:
        """Connects, if the process listens on such a socket; to be called about once a second.

        Args:
            sockets: inodes of those that the process has.
        """
        if self._socket is not None:
            return
        with suppress(OSError, ValueError):
            for inode, path in _find_sockets(self._pid):
                if inode in sockets and inode not in self._refused:
                    self._inode = inode
                    self._socket = _connect(self._pid, path)
                    self._asked = "greeting"  # it comes unasked
                    return

    def read(self) -> list[PortReading]:
        """Returns what has been answered since the last call, and asks for more if it is time to."""
        if self._socket is None:
            return []
        try:
            found = self._take()
            if not self._asked and time.monotonic() >= self._due_at:
                self._ask()
        except BlockingIOError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self._refused.add(self._inode)
            self.close()
            return []
        return found

    def _ask(self) -> None:
        assert self._socket is not None
        now = time.monotonic()
        self._due_at = now + ASK_S
        if now >= self._list_at or not self._ports:
            self._list_at = now + LIST_S
            command = "/ethdev/list"
        else:
            self._turn = (self._turn + 1) % len(self._ports)
            port = self._ports[self._turn]
            command = f"/ethdev/{'stats' if port in self._names else 'info'},{port}"
        self._asked_ticks = sample_pair().ticks
        self._socket.send(command.encode())
        self._asked = command

    def _take(self) -> list[PortReading]:
        """Raises BlockingIOError: no answer yet; others: it is none that can be."""
        assert self._socket is not None
        if not self._asked:
            return []
        answer = self._socket.recv(ANSWER_BYTES_MAX)
        command, self._asked = self._asked, ""
        if command == "greeting":
            return []
        body = json.loads(answer)[command.partition(",")[0]]
        if command == "/ethdev/list":
            self._ports = [port for port in body if isinstance(port, int) and 0 <= port < 1 << 16][:PORTS_MAX]
            self._names = {port: name for port, name in self._names.items() if port in self._ports}
            return []
        port = self._ports[self._turn]
        if command.startswith("/ethdev/info"):
            self._names[port] = printable(str(body["name"])[:NAME_BYTES])
            return []
        missed = body["imissed"]
        if not isinstance(missed, int) or not 0 <= missed < 1 << 62:
            raise ValueError("no count of packets")
        queue = Queue(QueueKind.PORT, port, f"port {port} {self._names[port]}")
        return [PortReading(queue, missed, self._asked_ticks, sample_pair().ticks)]

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._ports, self._names, self._turn, self._asked = [], {}, 0, ""


def _find_sockets(pid: int) -> list[tuple[int, str]]:
    """Returns inode and path of the sockets of this name that somebody in the network namespace listens on."""
    with open(f"/proc/{pid}/net/unix", encoding="utf-8", errors="surrogateescape") as file:
        lines = file.read(_SOCKETS_BYTES_MAX).splitlines()[1:]
    found = []
    for line in lines:
        words = line.split(maxsplit=7)
        if len(words) != 8 or not words[7].startswith("/") or not words[7].endswith(f"/{SOCKET}"):
            continue
        if int(words[3], 16) & _LISTENS and int(words[4], 16) == _SEQPACKET:
            found.append((int(words[6]), words[7]))
    return found


def _connect(pid: int, path: str) -> socket.socket:
    """Returns a connection to this path as the process sees it. Raises OSError: another process listens there."""
    # By way of the folder: a path in a socket's address has 107 characters at most.
    folder = os.open(f"/proc/{pid}/root{os.path.dirname(path)}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        made.connect(f"/proc/self/fd/{folder}/{SOCKET}")
        peer, *_ = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if peer != pid:
            raise PermissionError(f"process {peer} listens there")
    except OSError:
        made.close()
        raise
    finally:
        os.close(folder)
    return made
